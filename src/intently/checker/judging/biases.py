"""What is added to the scores: nothing, a bias, right or not, or a mask that hides too little."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from intently.checker.judging.intent import Intent
from intently.checker.measuring.attention import Attention
from intently.checker.report.finding import Finding


def added_to(
    scores: Attention, intent: Intent, bias: Tensor | None, given: Tensor | None, where: str
) -> tuple[str, list[Finding]]:
    """What was added: nothing, a bias by distance, a mask that hides too little."""
    if scores.added is None or scores.axis not in ("keys", "none"):
        return "", []
    added = scores.added
    known = torch.zeros_like(added)
    for x in (bias, given):
        known = known if x is None else known + x.nan_to_num(0.0)
    rest = off_rows(added - known, scores.compared)
    if float(rest.abs().max()) < scores.precision.added:
        return ("" if bias is None and given is None else "bias as intended"), []
    weak = _weak(added, scores, intent, bias, where) or _boolean(added, scores, where)
    if weak:
        return "", weak
    if bias is not None:
        return _other_bias(scores, added, bias, where)
    if given is not None:
        told, found = _other_bias(scores, added, given, where)
        if found and found[0].name != "bias-other":
            return told, found
    return _by_distance(added, scores, where)


def off_rows(x: Tensor, seen: Tensor) -> Tensor:
    """X minus the mean of each row over what is seen; 0 where hidden."""
    x = x.masked_fill(~seen, 0.0)
    n = seen.sum(-1, keepdim=True).clamp(min=1)
    return (x - x.sum(-1, keepdim=True) / n).masked_fill(~seen, 0.0)


def _weak(
    added: Tensor, scores: Attention, intent: Intent, bias: Tensor | None, where: str
) -> list[Finding]:
    """Cells that should be hidden and only have a number added."""
    allowed, seen, little = intent.allowed, scores.compared, scores.precision.added
    hidden, shown = seen & ~allowed, seen & allowed
    both = hidden.any(-1) & shown.any(-1)
    if not bool(both.any()):
        return []
    low = added.masked_fill(~hidden, torch.nan).nanmean(-1)[both]
    high = added.masked_fill(~shown, torch.nan).nanmean(-1)[both]
    even = [
        (added - x[..., None]).masked_fill(~cells, 0.0).abs().amax()
        for x, cells in (
            (added.masked_fill(~hidden, torch.nan).nanmean(-1), hidden),
            (added.masked_fill(~shown, torch.nan).nanmean(-1), shown),
        )
    ]
    if bias is None and float(max(even)) > 10 * little:
        return []  # something varies with the distance, so it is no mask
    gap = high - low
    if float((gap - gap.mean()).abs().max()) > 10 * little:
        return []
    step = float(gap.mean())
    if not abs(step) >= little:
        return []
    if math.isclose(abs(step), 1.0, rel_tol=10 * little):
        side = "allowed" if step > 0 else "hidden"
        return [
            Finding(
                "mask-boolean-added",
                where=where,
                said=f"a boolean mask is added as a number: {side} keys gain 1, none is hidden",
            )
        ]
    said = f"the mask adds {-step:.4g} to hidden keys, which still have weight"
    found = [Finding("mask-too-weak", where=where, said=said)]
    if step < 0:
        said = "allowed keys lose weight, not hidden ones"
        found.append(Finding("mask-inverted", where=where, said=said))
    return found


def _boolean(added: Tensor, scores: Attention, where: str) -> list[Finding]:
    """Keys that gain 1 beside keys that gain nothing, whichever were meant."""
    gain = added - added.masked_fill(~scores.compared, torch.nan).nan_to_num(-torch.inf).amax(
        -1, True
    )
    gain, little = gain[scores.compared], 10 * scores.precision.added
    ones, zeros = (gain + 1).abs() < little, gain.abs() < little
    if not bool((ones | zeros).all()) or not bool(ones.any()):
        return []
    said = "a boolean mask is added as a number: some keys gain 1, none is hidden"
    return [Finding("mask-boolean-added", said, where=where)]


def _other_bias(
    scores: Attention, added: Tensor, bias: Tensor, where: str
) -> tuple[str, list[Finding]]:
    """How the bias that was measured differs from the intended one."""
    mine = off_rows(added, scores.compared)
    theirs = off_rows(bias.expand(added.shape), scores.compared)
    if float(mine.abs().max()) < scores.precision.added:
        return "no bias", [Finding("bias-missing", where=where, said="the bias is not added")]
    factor = float((mine * theirs).sum() / (theirs * theirs).sum())
    twice = math.isclose(factor, 2.0, rel_tol=1e-3)
    fits = float((mine - factor * theirs).abs().max()) < 10 * scores.precision.added
    slopes = None if fits and (twice or factor < 0) else _two_slopes(scores, mine, theirs)
    if slopes is not None:
        found, expected = (", ".join(f"{float(x):.3g}" for x in y[:8]) for y in slopes)
        said = f"by head, scores fall by {found} a step, where they should fall by {expected}"
        return "another bias by distance", [Finding("bias-slopes", said, where=where)]
    if fits:
        if math.isclose(factor, -1.0, rel_tol=10 * scores.precision.added):
            return "bias with the wrong sign", [
                Finding("bias-sign", where=where, said="the bias has the wrong sign")
            ]
        text = f"the bias is added {factor:.3g} times"
        name = "bias-twice" if factor > 1 else "bias-scaled"
        return text, [Finding(name, where=where, said=text)]
    order = _order(mine, theirs, 10 * scores.precision.added)
    if order is not None:
        said = f"(batch row, head) {order[0]} has the bias of {order[1]}"
        return "another bias", [Finding("mask-of-other-rows", said, where=where)]
    return "another bias", [
        Finding("bias-other", where=where, said="the bias is another than intended")
    ]


def _two_slopes(scores: Attention, mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor] | None:
    """The slopes by distance of two biases, by head; None if one does not fall so."""
    t, s = mine.shape[-2:]
    distance = torch.arange(t)[:, None] + (s - t) - torch.arange(s)
    line = off_rows(distance.to(mine.dtype).expand(mine.shape), scores.compared)
    size = (line * line).sum((0, -1, -2)).clamp(min=1e-30)
    found = []
    for x in (mine, theirs):
        slope = (x * line).sum((0, -1, -2)) / size
        if float((x - slope[:, None, None] * line).abs().max()) > 10 * scores.precision.added:
            return None
        found.append(-slope)
    return found[0], found[1]


def _slopes(found: Tensor, told: str, where: str) -> list[Finding]:
    """Whether heads have the slopes of ALiBi in another order, or all the same one."""
    h = len(found)
    usual = 2.0 ** (-8 * torch.arange(1, h + 1, dtype=found.dtype) / h)
    if h < 2 or torch.allclose(found, usual, rtol=1e-3):
        return []
    if torch.allclose(found.sort().values, usual.sort().values, rtol=1e-3):
        said = f"the heads have the slopes of ALiBi in another order: {told}"
    elif torch.allclose(found, found[:1].expand(h), rtol=1e-3):
        said = f"all heads have the same slope, {float(found[0]):.3g}: those of ALiBi differ"
    else:
        return []
    return [Finding("bias-slopes", said, "hazard", where)]


def _order(
    mine: Tensor, theirs: Tensor, little: float
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The first (batch row, head) that has what another should have; None if that is not it."""
    h = mine.shape[1]
    one, two = mine.flatten(0, 1), theirs.flatten(0, 1)
    off = (one[:, None] - two).abs().amax((-2, -1))
    if float(off.min(1).values.max()) > little or float(off.min(0).values.max()) > little:
        return None
    wrong = (off.diagonal() > little).nonzero()
    if not len(wrong):
        return None
    i = int(wrong[0])
    return divmod(i, h), divmod(int(off[i].argmin()), h)


def _slope(added: Tensor, distance: Tensor, scores: Attention) -> Tensor | None:
    """The slope (b, h) of what was added by a distance (t, s); None if it does not follow it."""
    rest = off_rows(added, scores.compared)
    line = off_rows(distance.double().expand(added.shape), scores.compared)
    slope = (rest * line).sum((-1, -2)) / (line * line).sum((-1, -2)).clamp(min=1e-9)
    off = (rest - slope[..., None, None] * line).abs().max()
    return slope if float(off) < 10 * scores.precision.added else None


def _by_distance(added: Tensor, scores: Attention, where: str) -> tuple[str, list[Finding]]:
    """A bias in words: by distance, ALiBi with its slopes, or any."""
    t, s = added.shape[-2:]
    distance = torch.arange(t)[:, None] + (s - t) - torch.arange(s)
    slope = _slope(added, distance, scores)
    if slope is not None:
        slopes = ", ".join(f"{x:.3g}" for x in slope[0].tolist()[:4])
        if float((slope - slope[:1]).abs().max()) > 1e-6:
            said = f"the slopes by distance of batch row 0, {slopes}, are not those of other rows"
            return "", [Finding("mask-of-other-rows", said, where=where)]
        if float(slope.max()) > 1e-6 and float(slope.min()) > -1e-6:
            return "", [
                Finding(
                    "bias-sign",
                    where=where,
                    said=f"scores grow with distance, by {slopes} a step: the wrong sign",
                )
            ]
        return f"a bias by distance of slope {slopes} (ALiBi)", _slopes(-slope[0], slopes, where)
    if t < s and _slope(added, (distance - (s - t)).abs(), scores) is not None:
        said = f"a bias by distance that counts queries from 0, beside {s - t} keys before them"
        return "", [Finding("bias-offset-lost", said, where=where)]
    return "a bias that does not depend on q and k", []
