"""Rebuild the attention matrix of a block from cached queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from intently.attention_matrix import attend
from intently.biases import Bias, as_bias
from intently.foundation.values import Value
from intently.masks import Mask, causal
from intently.matrix import LazyMatrix, stack_rows
from intently.modules.caches.masks import standing
from intently.modules.caches.rotary import by_length
from intently.modules.projected import Projected
from intently.positions import Rotary


@dataclass(frozen=True)
class Replay:
    """A snapshot of a block's attention settings without its projections; tensors are copied.

    >>> from intently.modules import AttentionOptions, MultiHeadAttention
    >>> replay = Replay.of(MultiHeadAttention(8, 2, attention=AttentionOptions(softcap=3.0)))
    >>> replay.steps(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)).shape
    (2, 3, 3)
    """

    mask: Mask | None
    bias: Bias | None
    positions: Rotary | None
    """Positions that turn what is kept anew at every length."""
    how: dict[str, Any]
    """Score, scale, softcap and sinks."""

    @classmethod
    def of(cls, block: Projected) -> Replay:
        """Return the current attention settings of ``block``."""
        positions = block.attention.positions
        return cls(
            _copied(block.mask),
            None if block.bias is None else as_bias(_copied(block.bias)),
            positions if positions is not None and by_length(positions) else None,
            {
                "score": _copied(block.score),
                "sinks": _copied(block.sinks),
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
        return attend(q[None], k[None], mask=mask, bias=self.bias, **self.how)[0]


def _copied(value: Any) -> Any:
    if isinstance(value, nn.Module):
        value = value()
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.replaced(lambda x: x.detach().clone()) if isinstance(value, Value) else value
