"""What a page computes anew while one drags: the numbers of a story, and the shapes that show them.

The page applies the one formula, z = softcap(scale / τ · q·k) + bias, masked, then softmax with the
sink, to the numbers stored here (`live.js`), and rewrites the shapes of the first scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from intently.show.animate.numerals import Numerals
from intently.show.animate.operands import Steps

Step = Literal["q", "scores", "scaled", "capped", "biased", "logits", "weights", "output"]


@dataclass(frozen=True)
class Row:
    """A grid that shows one step of the formula for one query."""

    key: str
    step: Step
    query: int
    written: Numerals
    largest: float = 1.0


@dataclass(frozen=True)
class Column:
    """Texts, one for each key, that show one step of the dragged query."""

    key: str
    step: Step
    written: Numerals


@dataclass(frozen=True)
class Live:
    """The formula of a story, the query that is dragged, and where its numbers stand.

    ``features`` name the numbers of the query; none where they cannot be dragged. ``bar`` is the
    length of a weight's bar at 1; ``texts`` holds by key the texts that say {τ} or {scale};
    ``left_out`` are the keys of shapes that would no longer be true.
    """

    formula: dict[str, Any]
    names: tuple[str, ...]
    query: int
    asked: str
    features: tuple[str, ...]
    bar: float
    rows: tuple[Row, ...] = ()
    columns: tuple[Column, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON, with every digit."""
        return asdict(self)


def formula(every: Sequence[Steps], values: np.ndarray) -> dict[str, Any]:
    """Return the formula of some queries over values (s, e); scores that are no products, as such.

    Numbers of hidden keys are replaced by 0, for JSON knows no −∞.
    """
    one = every[0]
    products = one.products
    return {
        "q": _listed([steps.q for steps in every]) if products else None,
        "k": one.k.tolist() if products else None,
        "scores": None if products else _listed([steps.scores for steps in every]),
        "v": values.tolist(),
        "scale": one.scale,
        "softcap": one.softcap,
        "bias": None if one.biased is None else _listed([_bias(steps) for steps in every]),
        "allowed": [np.isfinite(steps.logits).tolist() for steps in every],
        "sink": one.sink,
    }


def _bias(steps: Steps) -> np.ndarray:
    assert steps.biased is not None
    return steps.biased - (steps.scaled if steps.capped is None else steps.capped)


def _listed(rows: Sequence[np.ndarray]) -> list[list[float]]:
    found = np.stack(rows).astype(np.float64)
    return np.where(np.isfinite(found), found, 0.0).tolist()
