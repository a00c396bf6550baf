"""`Call`: the operands, the other arguments and the result of one attention, as a source saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.core.attention import Attention, attend
from intently.core.biases import Bias
from intently.core.kernels.operands import in_autocast, transformed
from intently.core.masks import Mask
from intently.core.matrix import Dense, LazyMatrix
from intently.core.matrix.blocks import InBlocks
from intently.core.scores import Score
from intently.foundation.values import Value

Weights: TypeAlias = Attention | Dense | InBlocks
"""The lazy matrix of a call."""


@dataclass(frozen=True)
class AttentionSpec:
    """All arguments of `intently.attend` beside q and k, or the ``weights`` themselves.

    True in a mask means attend.
    """

    score: Score | None = None
    mask: Mask | None = None
    bias: Bias | None = None
    scale: float | Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    weights: Tensor | InBlocks | None = None
    softmax: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """The tensors of score, mask, bias, scale, sinks, weights and softmax."""
        values = [x.tensors() if isinstance(x, Value) else (x,) for x in vars(self).values()]
        return [x for some in values for x in some if isinstance(x, Tensor)]

    def attend(self, q: Tensor, k: Tensor) -> Weights:
        """The weights of queries (b, h, t, d) and keys (b, g, s, d), lazily."""
        if isinstance(self.weights, InBlocks):
            return self.weights
        if self.weights is not None:
            return Dense(self.weights, softmax=self.softmax)
        given = {name: x for name, x in vars(self).items() if name not in ("weights", "softmax")}
        return attend(q, k, **given)


@dataclass(frozen=True)
class Projected:
    """An operand inside a fused operator: ``heads`` of x (b, steps, c) · weightᵀ + bias.

    ``weight`` is (heads · d, c) and ``bias`` (heads · d,).
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    heads: int

    def tensor(self) -> Tensor:
        """The operand (b, heads, steps, d)."""
        made = F.linear(self.x, self.weight, self.bias)
        return made.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    @property
    def shape(self) -> tuple[int, ...]:
        """(b, heads, steps, d)."""
        *lead, steps, _ = self.x.shape
        return (*lead, self.heads, steps, len(self.weight) // self.heads)


IN_FUNC = "it ran inside torch.func (vmap, grad), where tensors stand for many"
IN_TRACE = "it ran inside torch.jit.trace, which would trace the recording too"
IN_TRACER = "it ran inside a tracer such as make_fx, torch.export or FakeTensorMode"
ON_META = "its operands are on the meta device and hold no numbers"
_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,  # pyright: ignore[reportAttributeAccessIssue]
    torch._C._TorchDispatchModeKey.PROXY,  # pyright: ignore[reportAttributeAccessIssue]
    torch._C._TorchDispatchModeKey.FUNCTIONAL,  # pyright: ignore[reportAttributeAccessIssue]
)


@dataclass(frozen=True)
class After:
    """The output of an operator that computes more of a layer than A @ v.

    ``output`` (b, t, c) is its result; ``finish(mixed, rows)`` turns A[rows] @ v (b, h, n, e) into
    the output (b, n, c) of those rows (n,).
    """

    output: Tensor
    finish: Callable[[Tensor, Tensor], Tensor]


Put: TypeAlias = "Callable[[Tensor, LazyMatrix], Any]"
"""Makes what the model gets of another y and its weights."""


@dataclass
class Call:
    """One attention call: q (b, h, t, d), k (b, g, s, d), v (b, g, s, e), and y = A @ v.

    ``source`` names the source that saw it. ``module`` is the caller if the source knows it;
    otherwise the innermost running module is. ``handed`` is the tensor that the model continues
    with, if that is not y itself, and ``back`` turns its gradient into that of y (b, h, t, e).
    ``put`` of another y and its weights is what the model gets in place of the result; ``edited``
    says which edits changed the call; ``shut`` is why it cannot be changed. It
    ran ``again`` if a checkpoint computed it in the backward pass.

    Attention by hand: y is None where the product was not seen, and ``then`` why. If v holds the
    values of some keys only, ``columns`` says which. ``real`` are the weights (b, h, t, s) that
    ran, and ``met`` those that dropout left of them; ``changed`` names the operations that changed
    them between what made them a whole and the values; ``as_weights`` of a reason makes a call that
    keeps them, ``as_it_is`` is that reason, and ``keys`` are its keys as far as they are known.
    """

    q: Tensor | Projected
    k: Tensor | Projected
    v: Tensor | Projected
    y: Tensor | After | None
    how: AttentionSpec = field(default_factory=AttentionSpec)
    source: str = "functional"
    module: nn.Module | None = None
    columns: slice | None = None
    as_it_is: str | None = None
    changed: str | None = None
    keys: Tensor | None = None
    then: str | None = None
    shut: str | None = None
    real: Tensor | None = None
    met: Tensor | None = None
    as_weights: Callable[[str], Call] | None = None
    handed: Tensor | None = None
    put: Put | None = None
    passed: Callable[[], Tensor] | None = None
    edited: str | None = None
    again: bool = False
    back: Callable[[Tensor], Tensor] | None = None

    @property
    def shown(self) -> Tensor | None:
        """What a cache shows of the call: its keys, or its values if only weights are known."""
        if isinstance(self.how.weights, InBlocks):
            return None
        if self.as_it_is is None or self.keys is not None:
            return operand(self.k) if self.keys is None else self.keys
        known, v = self.y is not None and self.columns is None and self.v.shape[-1], operand(self.v)
        return v if known and v.ndim == len(self.q.shape) else None


def given(x: Tensor | Projected) -> Tensor:
    """An operand itself, or the tensor that is projected to it."""
    return x.x if isinstance(x, Projected) else x


def operand(x: Tensor | Projected) -> Tensor:
    """The tensor (b, heads, steps, d) of an operand, computed if necessary."""
    return x.tensor() if isinstance(x, Projected) else x


def traced() -> str | None:
    """Why nothing may be computed beside the operations that run; None if something may."""
    if torch._C._get_tracing_state() is not None:
        return IN_TRACE
    return IN_TRACER if any(map(torch._C._get_dispatch_mode, _TRACERS)) else None


def numberless(call: Call) -> str | None:
    """Why the operands of a call hold no numbers to compute with; None if they do."""
    if "meta" in (given(call.q).device.type, given(call.k).device.type):
        return ON_META
    return IN_FUNC if transformed() else None


def as_multiplied(x: Tensor) -> Tensor:
    """X in the dtype in which it is multiplied: autocast changes all floats but float64."""
    if x.dtype is torch.float64 or not x.is_floating_point() or not in_autocast(x.device):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def itself(y: Tensor, matrix: LazyMatrix) -> Tensor:
    """What a function that returns y alone returns."""
    return y
