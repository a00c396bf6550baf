"""What a source saw of one attention call: operands, everything else `attend` takes, the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from intently.biases import Bias
from intently.masks import Mask
from intently.scores import Score


@dataclass(frozen=True)
class AttentionSpec:
    """All that `intently.attend` takes beside q and k; masks say True where they attend."""

    score: Score | None = None
    mask: Mask | None = None
    bias: Bias | None = None
    scale: float | Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class Projected:
    """Operands that an operator keeps to itself: ``heads`` of x (b, steps, c) · weightᵀ + bias.

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


@dataclass(frozen=True)
class After:
    """What an operator shows of A @ v once it went through the rest of a layer.

    ``output`` (b, t, c) came out; ``finish(mixed, rows)`` turns A[rows] @ v (b, h, n, e) into the
    output (b, n, c) of those rows (n,).
    """

    output: Tensor
    finish: Callable[[Tensor, Tensor], Tensor]


@dataclass
class Call:
    """One attention call: q (b, h, t, d), k (b, g, s, d), v (b, g, s, e), and y = A @ v.

    ``source`` says who saw it; ``module`` whose call it is where the source knows, else it is the
    innermost running module. ``handed`` is what the model goes on with, where that is not y itself;
    ``back`` turns its gradient into the one of y (b, h, t, e). Nothing is kept yet.
    """

    q: Tensor | Projected
    k: Tensor | Projected
    v: Tensor | Projected
    y: Tensor | After
    how: AttentionSpec = field(default_factory=AttentionSpec)
    source: str = "functional"
    module: nn.Module | None = None
    handed: Tensor | None = None
    back: Callable[[Tensor], Tensor] | None = None


def operand(x: Tensor | Projected) -> Tensor:
    """The tensor (b, heads, steps, d) of an operand, computed where it has to be."""
    return x.tensor() if isinstance(x, Projected) else x
