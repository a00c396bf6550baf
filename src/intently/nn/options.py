"""The options that a block passes to `intently.attend` on every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from intently.core.biases import Bias
from intently.core.masks import Mask
from intently.core.positions import Rotary
from intently.core.scores import Score
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_kind
from intently.foundation.field_names import answered
from intently.foundation.values import Value

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
