"""Hidden keys that get a number of their own: as a score, or as a weight after the softmax."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from intently.checker.computing.intent import Intent
from intently.checker.computing.measuring import Weights
from intently.checker.computing.score_kinds import kinds
from intently.checker.computing.scores_found import Scores, apart
from intently.checker.computing.tracing import Found
from intently.checker.report.finding import Finding

LOW = -50.0
"""No weight is so low, but for what a mask puts in its place."""


def after_softmax(w: Tensor, where: str) -> Finding | None:
    """The mistake in weights (n, b, h, t, s) that are one low number in all draws, or −∞."""
    mean = w.mean(0)
    cells = (w == -torch.inf).all(0)
    cells |= (mean < LOW) & ((w - mean).abs().amax(0) < 1e-2 * mean.abs())
    if not bool(cells.any()):
        return None
    at = tuple(cells.nonzero()[0].tolist())
    number = float(mean[at])
    shown = "−∞" if number == -math.inf else f"{number:.4g}".replace("-", "−")
    said = f"weights of {shown} meet the values: keys are hidden after the softmax"
    return Finding("mask-after-softmax", said, where=where, cell=at)


def with_filled(
    weights: Weights, scores: Scores, intent: Intent, found: Found, where: str
) -> tuple[Scores, Finding] | None:
    """The scores of allowed keys, and the number that hidden keys have; None if that is not it.

    A mask by `masked_fill(~allowed, c)` with a finite c gives all hidden keys the score c, whatever
    their content.
    """
    hidden = scores.seen & ~intent.allowed
    if not bool(hidden.any()) or not bool((scores.seen & intent.allowed).any()):
        return None
    only = apart(weights, kinds(weights), found, intent.allowed)
    if not only.known:
        return None
    z = only.scale[:, None, None] * only.score(weights.q, weights.k)
    if only.softcap is not None:
        z = only.softcap * torch.tanh(z / only.softcap)
    z = z + only.added.nan_to_num(0.0)
    log = weights.w.clamp(min=1e-300).log()
    free = (log - z).masked_fill(~only.seen, torch.nan).nanmean(-1, keepdim=True)
    both = only.seen.any(-1, keepdim=True) & hidden
    filled = (log - free)[both.expand_as(log)]
    if not len(filled):
        return None
    number = round(float(filled.mean()), 9) + 0.0
    if float((filled - number).abs().max()) > 100 * only.precision.added * max(1.0, abs(number)):
        return None
    if only.softcap is not None and math.isclose(number, -only.softcap, rel_tol=1e-2):
        said = f"the softcap comes after the mask: hidden keys have the score {number:.4g}"
        return only, Finding("softcap-after-mask", said, where=where)
    said = f"the mask gives hidden keys the score {number:.4g}, and they still have weight"
    return only, Finding("mask-too-weak", said, where=where)
