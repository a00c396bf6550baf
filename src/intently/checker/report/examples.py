"""The smallest example of a finding: weights as they should be beside those that were measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from intently.checker.computing.intent import Intent
from intently.checker.computing.measuring import Weights
from intently.checker.computing.rotations import MISTAKES, Rotation
from intently.checker.computing.scores_found import AXES, Score, Scores
from intently.checker.report.finding import Example, Finding

ROWS, COLUMNS = 8, 10
"""The largest example that is shown."""
APART = 1e-6
"""Weights that differ by less are the same."""


def with_examples(
    findings: Iterable[Finding],
    weights: Weights,
    scores: Scores,
    intent: Intent,
    bias: Tensor | None,
    score: Score,
) -> tuple[Finding, ...]:
    """The findings, each with the weights that show it, where weights do."""
    q, k = weights.q[0], weights.k[0]
    z, straight = score(q, k), _straight(score)(q, k)

    def shown(x: Finding) -> Finding:
        if x.kind != "mistake" or x.example is not None:
            return x
        right = straight if x.name in MISTAKES.values() else z
        expected = _mended(x.name, right, q.shape[-1], scores, intent, bias)
        cell, example = around(x.cell, expected, weights.w[0])
        return replace(x, cell=cell, example=example)

    return tuple(map(shown, findings))


def _straight(score: Score) -> Score:
    """The score without what its rotation does wrong."""
    rotation = getattr(score, "__self__", None)
    if isinstance(rotation, Rotation) and rotation.way in MISTAKES:
        return replace(rotation, way="").score
    return score


def _mended(
    name: str, z: Tensor, d: int, scores: Scores, intent: Intent, bias: Tensor | None
) -> Tensor:
    """The weights (b, h, t, s) of the scores ``z``, not yet scaled, with one mistake mended."""
    masks = name.startswith(("mask", "causal", "window", "padding", "lengths"))
    mended = replace(
        scores,
        scale=torch.full_like(scores.scale, d**-0.5) if "scale" in name else scores.scale,
        added=_added(name, scores, bias),
        seen=intent.allowed if masks else scores.seen,
        after=scores.after and not masks,
        axis="keys" if name.startswith("softmax-over") else scores.axis,
        factor=1.0,
    )
    return formula(mended, z)


def formula(scores: Scores, x: Tensor) -> Tensor:
    """The weights (b, h, t, s) that measured scores make of products ``x``, not yet scaled."""
    z = scores.scale.to(x.dtype)[:, None, None] * x
    if scores.softcap is not None:
        z = scores.softcap * torch.tanh(z / scores.softcap)
    z = z + scores.added.nan_to_num(0.0).to(x.dtype)
    if scores.after:
        return scores.factor * z.softmax(-1).masked_fill(~scores.seen, 0.0)
    z = z.masked_fill(~scores.seen, -torch.inf)
    if scores.extra is not None:
        sink = scores.extra.log().to(x.dtype)[:, None, None].expand_as(z[..., :1])
        return scores.factor * torch.cat([z, sink], -1).softmax(-1)[..., :-1]
    if scores.axis in ("keys", "none"):
        return scores.factor * z.softmax(-1).nan_to_num(0.0)
    return (z - z.logsumexp(AXES[scores.axis], keepdim=True)).exp().nan_to_num(0.0)


def _added(name: str, scores: Scores, bias: Tensor | None) -> Tensor:
    """What is added to the scores once the mistake is mended."""
    if bias is not None and name.startswith("bias"):
        return bias
    if name in ("mask-too-weak", "mask-boolean-added") or scores.axis not in ("keys", "none"):
        return torch.zeros_like(scores.added)
    added = scores.added.nan_to_num(0.0)
    return -added if name == "bias-sign" else added


def around(
    cell: tuple[int, ...], expected: Tensor, found: Tensor
) -> tuple[tuple[int, ...], Example | None]:
    """The block around a cell, or around the first one that is clearly off; None if none is."""
    off = (expected - found).abs()
    if not float(off.max()) >= APART:  # none is off, or what was found is no number
        return cell, None
    if len(cell) != 4:
        clear = off > 0.5 * off.max()
        cell = tuple(clear.nonzero()[0].tolist())
    b, h, i, j = cell
    rows = _near(i, expected.shape[-2], ROWS)
    columns = _near(j, expected.shape[-1], COLUMNS)
    right, wrong = (
        tuple(tuple(round(w, 6) for w in x[b, h, r, columns].tolist()) for r in rows)
        for x in (expected, found)
    )
    return cell, Example(right, wrong, tuple(rows), tuple(columns), (i, j))


def _near(at: int, size: int, most: int) -> range:
    """At most so many positions around one."""
    first = max(0, min(at - most // 2, size - most))
    return range(first, min(size, first + most))
