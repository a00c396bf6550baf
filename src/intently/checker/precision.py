"""How close numbers have to be to count as the same, by the dtype in which a subject runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """Bounds for one dtype.

    ``same`` is the largest relative difference of outputs that are the same; ``close`` the relative
    residual up to which a formula explains numbers; ``added`` the size from which something counts
    as added to scores.
    """

    dtype: torch.dtype
    same: float
    close: float
    added: float


HALF = Precision(torch.half, same=2e-2, close=0.1, added=0.2)
ROUGH = Precision(torch.float, same=2e-5, close=1e-3, added=2e-3)
EXACT = Precision(torch.double, same=1e-7, close=1e-6, added=1e-5)


def precision_of(dtype: torch.dtype) -> Precision:
    """The bounds for what runs in a dtype."""
    return {torch.double: EXACT, torch.float: ROUGH}.get(dtype, HALF)
