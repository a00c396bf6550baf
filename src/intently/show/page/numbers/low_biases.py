"""Biases that hide a key with a very low number, and rows in which they hide every key.

Where the model adds −10⁹ or the lowest float32 to a score, the sum loses the score's digits: a row
of padding attends to its keys equally. A page that kept those digits, or lost them in its lse,
would show other weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from intently.core.kernels.problem import Problem
from intently.show.page.numbers.mask_bias import BLOCK, Laid, Rule

HEARD = 1e-4
"""A bias with a wider spacing of its dtype than this makes scores coarse."""

APART = 32.0
"""At this spacing the lower of two biases leaves its key no weight, e⁻³²."""

STEP = 2.0**23
"""How far below each other such biases are stored."""

MOST = 1024
"""Most different biases of this kind: a page keeps digits for so many."""


def drowned(
    p: Problem, rule: Rule, mask: Tensor | None, scores: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the rows (h, t) whose scores are lost in their bias, and all rows with any.

    ``scores`` gives (h, rows, s) for some rows. A score below half the distance from the highest
    bias to its neighbour is rounded away.
    """
    g = p.geometry._replace(device=torch.device("cpu"))
    h = g.lead[-1] if g.lead else 1
    even, coarse = torch.zeros(h, g.t, dtype=torch.bool), torch.zeros(g.t, dtype=torch.bool)
    if not bool((_spacing(rule.values, p.compute_dtype) > HEARD).any()):
        return even, coarse.nonzero()[:, 0]
    laid, cols = Laid(rule.kind, rule.values), torch.arange(g.s)
    for rows in torch.arange(g.t).split(max(1, BLOCK // max(1, h * g.s))):
        bias = laid.tile(g._replace(lead=(1,)), rows, cols)
        bias = bias.expand(-1, len(rows), -1)
        if mask is not None:
            bias = bias.masked_fill(~mask[:, rows], -torch.inf)
        space = _spacing(bias.amax(-1), p.compute_dtype)
        low = (space > HEARD).any(0)
        if not bool(low.any()):
            continue
        found = scores(rows[low]).abs().masked_fill(bias[:, low].isneginf(), 0).amax(-1)
        even[:, rows[low]] = (space[:, low] > HEARD) & (found < space[:, low] / 2)
        coarse[rows[low]] = True
    return even, coarse.nonzero()[:, 0]


def lifted(rule: Rule, dtype: torch.dtype) -> Rule:
    """Return the same rule with hiding biases raised to where float64 still resolves scores.

    They keep their order, so far apart that the lower of two keys has no weight.
    """
    values = rule.values
    low = _spacing(values, dtype) >= APART
    kinds = values[low].unique()
    if not 0 < len(kinds) <= MOST:
        return rule
    heard = values[~low & values.isfinite()]
    base = min(0.0, float(heard.amin())) if heard.numel() else 0.0
    rank = len(kinds) - torch.searchsorted(kinds, values.contiguous())
    step = max(STEP, -base / MOST)
    return Rule(rule.kind, torch.where(low, base - step * rank, values.double()).float())


def _spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of finite numbers below 0 in a dtype; 0 for all others."""
    x = values.to(dtype)
    space = (torch.nextafter(x, torch.zeros_like(x)) - x).double()
    return space.where((x < 0) & x.isfinite(), 0)
