"""Score functions: how well a query matches a key, before scale, softcap, bias and mask.

A score is a value handed to ``attend(q, k, score=…)``. It says the shape it needs and turns
queries (…, t, d) and keys (…, s, d) into raw scores (…, t, s).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Score(Protocol):
    """What `attend` needs of a score."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Raw scores (…, t, s) of queries (…, t, d) against keys (…, s, d)."""
        ...

    def default_scale(self, d: int) -> float:
        """The scale used where the caller gives none."""
        ...

    def tensors(self) -> tuple[Tensor, ...]:
        """The parameters the score holds, for gradients and the check of their versions."""
        ...


@dataclass(frozen=True)
class Dot:
    """The dot product q·k; scaled by 1/√d where no scale is given.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation 1.

    >>> import torch
    >>> Dot()(torch.eye(2), torch.eye(2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Raw scores (…, t, s) = q kᵀ."""
        return q @ k.mT

    def default_scale(self, d: int) -> float:
        """Return 1/√d, so that scores of random vectors keep unit variance."""
        return 1 / math.sqrt(d) if d else 1.0

    def tensors(self) -> tuple[Tensor, ...]:
        """The dot product has no parameters."""
        return ()


DOT = Dot()
