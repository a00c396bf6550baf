"""Measurements of every head for a page: sums, an overview and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.matrix import Dense, LazyMatrix
from intently.core.matrix.patterns import measure

CELLS = 64
"""Most rows and columns of an overview."""

AT_ONCE = 2**28
"""Most bytes of weights held in memory, so that they are computed once for all measures."""

FEW = 2**20
"""Most weights whose statistics are those of the held weights; more are measured by the kernel."""


@dataclass(frozen=True)
class Measured:
    """Of h heads: ``lse`` (h, t) or None, ``entropy`` (h, t), ``received`` (h, s).

    ``overview`` (h, n, m) are bytes, round(255 √(w / largest)) of mean weights w, and ``largest``
    (h,) those that are 255. ``statistics`` (h,) by name are NaN where a head has none.
    """

    lse: Tensor | None
    entropy: Tensor
    received: Tensor
    overview: Tensor
    largest: Tensor
    statistics: dict[str, Tensor]


def measured(matrix: LazyMatrix, tokens: Sequence[int] | None) -> Measured:
    """Measure the heads of one item, (t, s), (h, t, s) or (1, h, t, s).

    ``tokens`` number the tokens of a self-attention; None where they are unknown.
    """
    *lead, t, s = matrix.shape
    h = lead[-1] if lead else 1
    with torch.no_grad():
        lse = matrix.lse.reshape(h, t) if isinstance(matrix, Attention) else None
        fits = h * t * s * 8 <= AT_ONCE
        held = Dense(matrix.dense()) if fits and not isinstance(matrix, Dense) else matrix
        few = tokens is None and h * t * s <= FEW  # with tokens, the mask tells which are padding
        statistics = measure(held if few else matrix, tokens)
        pooled = held.pool(min(CELLS, t), min(CELLS, s)).reshape(h, min(CELLS, t), min(CELLS, s))
        largest = pooled.flatten(1).amax(-1) if t * s else torch.zeros(h)
        shares = (pooled / largest.clamp_min(1e-300)[:, None, None]).clamp(0, 1).nan_to_num(0)
        return Measured(
            lse,
            held.entropy().reshape(h, t),
            held.received().reshape(h, s),
            (255 * shares.sqrt()).round().to(torch.uint8),
            largest,
            {name: average.value().reshape(h) for name, average in statistics.items()},
        )
