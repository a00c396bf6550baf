"""The attention matrices of blocks: of a forward pass, or of queries and keys that were kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from intently.core.attention import Attention, attend
from intently.core.biases import Bias, as_bias
from intently.core.masks import Mask, causal
from intently.core.matrix import LazyMatrix, stack_rows
from intently.core.positions import Rotary
from intently.foundation.values import Value
from intently.nn.caches.masks import standing
from intently.nn.projected_attention import Projected, by_length

T = TypeVar("T")


def attended(
    blocks: Iterable[tuple[str, nn.Module]], run: Callable[[], Any]
) -> dict[str, Attention]:
    """Return the lazy matrices of ``blocks`` by name, in the order in which ``run`` calls them.

    ``attend`` of each block returns the matrix that its ``forward`` of the same arguments
    multiplies, so masks, biases, positions and all other options are those of the forward pass. A
    block with several names appears under each in turn. All blocks are restored afterwards, even if
    ``run`` raises.

    >>> import torch
    >>> from intently.nn import MultiHeadAttention
    >>> block = MultiHeadAttention(8, 2)
    >>> attended([("only", block)], lambda: block(torch.zeros(1, 3, 8)))["only"].shape
    (1, 2, 3, 3)
    """
    names: dict[nn.Module, list[str]] = {}
    for name, block in blocks:
        names.setdefault(block, []).append(name)
    return {names[block].pop(0): matrix for block, matrix in asked(names, run)[1]}


def asked(
    blocks: Iterable[nn.Module], run: Callable[[], T]
) -> tuple[T, list[tuple[nn.Module, Attention]]]:
    """Return what ``run`` returns, and the lazy matrix of each call of one of the ``blocks``."""
    found: list[tuple[nn.Module, Attention]] = []

    def ask(block: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        found.append((block, block.attend(*given, **options)))

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block.register_forward_pre_hook(ask, with_kwargs=True))
        return run(), found


def attention_blocks(**stacks: Any) -> list[tuple[str, nn.Module]]:
    """Return the attention of layers by module path: "decoder.0.self_attention", …

    Each keyword is the name of a stack, its value the layers.
    """
    return [
        (f"{stack}.{i}.{name}", block)
        for stack, layers in stacks.items()
        for i, layer in enumerate(layers)
        for name, block in layer.named_children()
        if name in ("self_attention", "cross_attention")
    ]


@dataclass(frozen=True)
class Replay:
    """A snapshot of a block's attention settings without its projections; tensors are copied.

    >>> from intently.nn import AttentionOptions, MultiHeadAttention
    >>> replay = Replay.of(MultiHeadAttention(8, 2, attention=AttentionOptions(softcap=3.0)))
    >>> replay.steps(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)).shape
    (2, 3, 3)
    """

    mask: Mask | None
    bias: Bias | None
    positions: Rotary | None
    """Positions that turn what is kept anew at every length."""
    settings: dict[str, Any]
    """Score, scale, softcap and sinks."""

    @classmethod
    def of(cls, block: Projected) -> Replay:
        """Return the current attention settings of ``block``."""
        positions = block.attention.positions
        return cls(
            snapshot(block.mask),
            None if block.bias is None else as_bias(snapshot(block.bias)),
            positions if positions is not None and by_length(positions) else None,
            {
                "score": snapshot(block.score),
                "sinks": snapshot(block.sinks),
                "scale": block.attention.scale,
                "softcap": block.attention.softcap,
            },
        )

    def whole(self, q: Tensor, k: Tensor, length: int) -> LazyMatrix:
        """Return (h, t, s) of self-attention in one pass over a text padded to ``length``."""
        if self.positions is not None:
            q, k = (self.positions(x, length=length) for x in (q, k))
        return self._matrix(q, k)

    def steps(self, q: Tensor, k: Tensor) -> LazyMatrix:
        """Return (h, t, t) of causal self-attention, one step after the other."""
        if self.positions is None:
            return self._matrix(q, k, causal())
        rows = []
        for i in range(q.shape[-2]):
            now = self.positions(q[:, i : i + 1], i, length=i + 1)
            rows.append(self._matrix(now, self.positions(k[:, : i + 1], length=i + 1)))
        return stack_rows(rows)

    def reads(self, q: Tensor, k: Tensor, length: int) -> LazyMatrix:
        """Return (h, t, s) of attention to a context padded to ``length``, one step at a time.

        Each step was the last query over the context (contract 3).
        """
        if self.bias is None and (self.mask is None or self.mask.per_key):
            return self._matrix(q, k)
        end = torch.tensor([length - 1], device=q.device)
        mask, bias = (x if x is None else standing(x, end) for x in (self.mask, self.bias))
        last = replace(self, mask=mask, bias=bias)
        return stack_rows([last._matrix(step, k) for step in q.split(1, -2)])

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask | None = None) -> LazyMatrix:
        """(h, t, s); heads are grouped if a batch axis precedes them."""
        if self.mask is not None:
            mask = self.mask if mask is None else mask & self.mask
        return attend(q[None], k[None], mask=mask, bias=self.bias, **self.settings)[0]


def snapshot(value: Any) -> Any:
    """Return a copy of a setting as it is now: of a tensor, of a value's tensors, or of None."""
    if isinstance(value, nn.Module):
        value = value()
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.replaced(lambda x: x.detach().clone()) if isinstance(value, Value) else value
