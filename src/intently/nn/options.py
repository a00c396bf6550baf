"""The options that a block passes to `intently.attend` on every call, learned ones among them.

Learned scores, biases and sinks are modules whose call returns the value; several layers may share
one, like the table of T5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from intently.core.biases import Bias, relative_buckets
from intently.core.masks import Mask
from intently.core.positions import Rotary
from intently.core.scores import Additive, General, Score
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_kind
from intently.foundation.field_names import answered
from intently.foundation.values import Value
from intently.nn.weights.copying import AllOrNothing

MODULE = "an nn.Module whose call returns it"


@answered
@dataclass(frozen=True)
class AttentionOptions:
    """How a block attends: its score, mask, bias, positions, softcap and norms of q and k.

    ``mask`` is combined with the mask of each call by ``&``, ``bias`` is added to the scores,
    ``positions`` rotate queries and keys of self-attention (starting at the position of the cache),
    and ``qk_norm`` makes a norm from the head width d, one for queries and one for keys, applied
    before the rotation (for example ``torch.nn.RMSNorm``). ``scale`` multiplies the scores instead
    of 1/√d; ``sinks`` (h,) or () take weight and contribute no value.

    Learned values belong to a module: ``score``, ``bias`` and ``sinks`` may be an ``nn.Module``
    whose call returns the value, see `RelativeBias`. Raises `ArgumentError` for a value that needs
    a gradient but does not belong to a module, and `KindError` for other types.

    >>> import intently as it
    >>> AttentionOptions(mask=it.causal(), softcap=30.0).mask
    causal()
    """

    score: Score | nn.Module | None = None
    mask: Mask | Tensor | None = None
    bias: Bias | Tensor | nn.Module | None = None
    positions: Rotary | None = None
    softcap: float | None = None
    qk_norm: Callable[[int], nn.Module] | None = None
    scale: float | None = None
    sinks: Tensor | nn.Module | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[tuple[type, ...], str]] = {
            "score": ((Score, nn.Module), f"a score such as it.Cosine(), or {MODULE}"),
            "mask": ((Mask, Tensor), "a mask such as it.causal(), or a boolean tensor"),
            "bias": ((Bias, Tensor, nn.Module), f"a bias such as it.alibi(), or {MODULE}"),
            "positions": ((Rotary,), "it.Rotary(d): other positions are added to the embeddings"),
            "sinks": ((Tensor, nn.Module), f"a tensor (h,) or (), or {MODULE}"),
        }
        for name, (allowed, expected) in kinds.items():
            value = getattr(self, name)
            check_kind(value, (*allowed, type(None)), name, expected)
            if _learns(value):
                raise build(
                    ArgumentError,
                    name,
                    f"a value without gradients, or {MODULE}",
                    "a tensor that needs a gradient",
                    "what is learned belongs to a module, which "
                    "moves it, saves it and shows it to the optimiser",
                )
        if self.qk_norm is not None and (
            isinstance(self.qk_norm, nn.Module) or not callable(self.qk_norm)
        ):
            raise build(
                KindError,
                "qk_norm",
                "a function that makes a norm from the head width d",
                type(self.qk_norm).__name__,
                fix="write qk_norm=torch.nn.RMSNorm, not RMSNorm(d)",
            )


def _learns(value: Any) -> bool:
    tensors = value.tensors() if isinstance(value, Value) else (value,)
    return any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


class RelativeBias(nn.Module):
    """The table (buckets, h) of T5: a learned number for each head and bucket of distances.

    Source: Raffel et al. 2020, section 2.1; see `intently.relative_buckets`.

    >>> RelativeBias(8)()
    relative_buckets(32×8 tensor)
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self()

    def forward(self) -> Bias:
        """Return the bias with the table as it is now."""
        return relative_buckets(
            self.table, max_distance=self.max_distance, bidirectional=self.bidirectional
        )


class Sinks(nn.Module):
    """One learned logit per head, which takes weight and contributes no value.

    >>> Sinks(4)()
    Parameter containing:
    tensor([0., 0., 0., 0.], requires_grad=True)
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(heads))

    def forward(self) -> Tensor:
        """Return the logits (h,)."""
        return self.logits


class GeneralScore(nn.Module):
    """qᵀ W k with a learned W (h, d, d_k) per head, initialised to the identity.

    Source: Luong et al. 2015, section 3.1, equation 8 ("general").

    >>> GeneralScore(4, 8)()
    General(4×8×8 tensor)
    """

    def __init__(self, heads: int, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(d).repeat(heads, 1, 1))

    def forward(self) -> General:
        """Return the score with the weight as it is now."""
        return General(self.weight)


class AdditiveScore(AllOrNothing):
    """vᵀ tanh(W q + U k + b) with learned W, U (h, a, d), v and b (h, a) for each of h heads.

    Source: Bahdanau et al. 2015, appendix A.1.2.

    >>> AdditiveScore(2, 8, 16)()
    Additive(2×16×8 tensor, 2×16×8 tensor, 2×16 tensor, 2×16 tensor)
    """

    def __init__(self, heads: int, d: int, hidden: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(heads, hidden, d))
        self.key_weight = nn.Parameter(torch.empty(heads, hidden, d))
        self.energy = nn.Parameter(torch.empty(heads, hidden))
        self.bias = nn.Parameter(torch.zeros(heads, hidden))
        for weight in (self.query_weight, self.key_weight):
            for own in weight.detach():
                nn.init.xavier_uniform_(own)
        nn.init.uniform_(self.energy, -(hidden**-0.5), hidden**-0.5)

    def forward(self) -> Additive:
        """Return the score with the weights as they are now."""
        return Additive(self.query_weight, self.key_weight, self.energy, self.bias)
