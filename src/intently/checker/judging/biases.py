"""What is added to the scores: nothing, a bias, right or not, or a mask that hides too little."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from intently.checker.judging.intent import Intent
from intently.checker.measuring.attention import Attention
from intently.checker.report.finding import Finding


def added_to(
    scores: Attention, intent: Intent, bias: Tensor | None, given: Tensor | None, where: str
) -> tuple[str, list[Finding]]:
    """What was added: nothing, a bias by distance, a mask that hides too little."""
    added = scores.added
    if added is None or scores.axis not in ("keys", "none"):
        return "", []
    stated = [x for x in (bias, given) if x is not None]
    rest = off_rows(added - sum(x.nan_to_num(0.0) for x in stated), scores.compared)
    if float(rest.abs().max()) < scores.precision.added:
        return "bias as intended" if stated else "", []
    told, found = "", _as_a_mask(added, scores, intent, bias)
    if not found and stated:
        told, found = _other_bias(added, scores, stated[0])
    if not found or (bias is None and found[0].name == "bias-other"):
        told, found = _by_distance(added, scores)
    return told, [replace(f, where=where) for f in found]


def off_rows(x: Tensor, seen: Tensor) -> Tensor:
    """X minus the mean of each row over what is seen; 0 where hidden."""
    x = x.masked_fill(~seen, 0.0)
    n = seen.sum(-1, keepdim=True).clamp(min=1)
    return (x - x.sum(-1, keepdim=True) / n).masked_fill(~seen, 0.0)


def _as_a_mask(
    added: Tensor, scores: Attention, intent: Intent, bias: Tensor | None
) -> list[Finding]:
    """Cells that should be hidden and only have a number added, or keys that gain 1."""
    seen, little = scores.compared, 10 * scores.precision.added
    hidden, shown = seen & ~intent.allowed, seen & intent.allowed
    low, high = (added.masked_fill(~x, torch.nan).nanmean(-1, True) for x in (hidden, shown))
    apart = (added - torch.where(hidden, low, high)).masked_fill(~seen, 0.0)
    steady = bias is not None or float(apart.abs().max()) <= little  # by distance: no mask
    gap = (high - low)[hidden.any(-1) & shown.any(-1)]
    step = float(gap.mean())  # NaN if there is none
    if steady and abs(step) >= little / 10 and bool(((gap - step).abs() <= little).all()):
        if math.isclose(abs(step), 1.0, rel_tol=little):
            side = "allowed" if step > 0 else "hidden"
            said = f"a boolean mask is added as a number: {side} keys gain 1, none is hidden"
            return [Finding("mask-boolean-added", said)]
        said = f"the mask adds {-step:.4g} to hidden keys, which still have weight"
        inverted = Finding("mask-inverted", "allowed keys lose weight, not hidden ones")
        return [Finding("mask-too-weak", said), *[inverted] * (step < 0)]
    gain = (added - added.masked_fill(~seen, -torch.inf).amax(-1, True))[seen]
    ones, zeros = (gain + 1).abs() < little, gain.abs() < little
    if not bool((ones | zeros).all()) or not bool(ones.any()):
        return []
    said = "a boolean mask is added as a number: some keys gain 1, none is hidden"
    return [Finding("mask-boolean-added", said)]


def _other_bias(added: Tensor, scores: Attention, bias: Tensor) -> tuple[str, list[Finding]]:
    """How the bias that was measured differs from the intended one."""
    little, bias = 10 * scores.precision.added, bias.expand(added.shape)
    mine, theirs = (off_rows(x, scores.compared) for x in (added, bias))
    if float(mine.abs().max()) < scores.precision.added:
        return "no bias", [Finding("bias-missing", "the bias is not added")]
    factor = float((mine * theirs).sum() / (theirs * theirs).sum())
    fits = float((mine - factor * theirs).abs().max()) < little
    if not fits or (factor >= 0 and not math.isclose(factor, 2.0, rel_tol=1e-3)):
        slopes = (_slope(x, _distance(x), scores, (0, -2, -1)) for x in (added, bias))
        told = [", ".join(f"{-y:.3g}" for y in x[0].tolist()[:8]) for x in slopes if x is not None]
        if len(told) == 2:
            said = f"by head, scores fall by {told[0]} a step, where they should fall by {told[1]}"
            return "another bias by distance", [Finding("bias-slopes", said)]
    if fits and math.isclose(factor, -1.0, rel_tol=little):
        said = "the bias has the wrong sign"
        return "bias with the wrong sign", [Finding("bias-sign", said)]
    if fits:
        text = f"the bias is added {factor:.3g} times"
        return text, [Finding("bias-twice" if factor > 1 else "bias-scaled", text)]
    one, two = mine.flatten(0, 1), theirs.flatten(0, 1)
    off = (one[:, None] - two).abs().amax((-2, -1)) > little
    wrong = off.diagonal().nonzero()
    if len(wrong) and not bool(off.all(0).any() | off.all(1).any()):  # each is of some row
        h, i = mine.shape[1], int(wrong[0])
        own, other = divmod(i, h), divmod(int(off[i].int().argmin()), h)
        said = f"(batch row, head) {own} has the bias of {other}"
        return "another bias", [Finding("mask-of-other-rows", said)]
    return "another bias", [Finding("bias-other", "the bias is another than intended")]


def _distance(x: Tensor) -> Tensor:
    """How far each key lies before each query (t, s), where both end together."""
    t, s = x.shape[-2:]
    return torch.arange(t)[:, None] + (s - t) - torch.arange(s)


def _slope(
    added: Tensor, distance: Tensor, scores: Attention, over: tuple[int, ...] = (-2, -1)
) -> Tensor | None:
    """The slopes (b, h) of what was added by a distance (t, s); None if it does not follow it."""
    rest = off_rows(added, scores.compared)
    line = off_rows(distance.double().expand(added.shape), scores.compared)
    slope = (rest * line).sum(over, True) / (line * line).sum(over, True).clamp(min=1e-9)
    off = float((rest - slope * line).abs().max())
    return slope[..., 0, 0] if off < 10 * scores.precision.added else None


def _by_distance(added: Tensor, scores: Attention) -> tuple[str, list[Finding]]:
    """A bias in words: by distance, ALiBi with its slopes, or any."""
    t, s = added.shape[-2:]
    distance = _distance(added)
    slope = _slope(added, distance, scores)
    if slope is None:
        if t < s and _slope(added, (distance - (s - t)).abs(), scores) is not None:
            said = f"a bias by distance that counts queries from 0, beside {s - t} keys before them"
            return "", [Finding("bias-offset-lost", said)]
        return "a bias that does not depend on q and k", []
    slopes = ", ".join(f"{x:.3g}" for x in slope[0].tolist()[:4])
    if float((slope - slope[:1]).abs().max()) > 1e-6:
        said = f"the slopes by distance of batch row 0, {slopes}, are not those of other rows"
        return "", [Finding("mask-of-other-rows", said)]
    if float(slope.max()) > 1e-6 and float(slope.min()) > -1e-6:
        said = f"scores grow with distance, by {slopes} a step: the wrong sign"
        return "", [Finding("bias-sign", said)]
    found, h = -slope[0], slope.shape[1]
    usual = 2.0 ** (-8 * torch.arange(1, h + 1, dtype=found.dtype) / h)
    said = ""
    if h > 1 and not torch.allclose(found, usual, rtol=1e-3):
        if torch.allclose(found.sort().values, usual.sort().values, rtol=1e-3):
            said = f"the heads have the slopes of ALiBi in another order: {slopes}"
        elif torch.allclose(found / usual, (found / usual)[:1].expand(h), rtol=1e-3):
            said = (
                f"the slopes of all heads are {float(found[0] / usual[0]):.3g} times those of ALiBi"
            )
        elif torch.allclose(found, found[:1].expand(h), rtol=1e-3):
            said = f"all heads have the same slope, {float(found[0]):.3g}: those of ALiBi differ"
    hazards = [Finding("bias-slopes", said, "hazard")] if said else []
    return f"a bias by distance of slope {slopes} (ALiBi)", hazards
