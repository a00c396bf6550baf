"""The kinds of scores that are known: dot products, cosines, and dot products after rotation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from intently.checker.computing.inside import INSIDE
from intently.checker.computing.measuring import Weights
from intently.checker.computing.rotations import tabled, usual
from intently.checker.computing.scores_found import Score


def kinds(weights: Weights, tables: Sequence[tuple[float, ...]] = ()) -> dict[str, Score]:
    """The scores to try; ``tables`` are rates of rotations that the module holds."""
    d = weights.q.shape[-1]
    found: dict[str, Score] = {"dot": lambda q, k: q @ k.mT, "cosine": _cosine}
    if weights.values.reading.name == INSIDE:  # queries and keys are rotated already
        return found
    return found | {r.name(d): r.score for r in (*usual(d), *tabled(tables, d))}


def _cosine(q: Tensor, k: Tensor) -> Tensor:
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
