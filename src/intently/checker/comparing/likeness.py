"""Compare two attentions that should be the same: where they part, and by which difference.

Both are examined; then each pair of attentions is compared from the outside in: weights of the
projections, layout, kind and scale of the scores, what is added, what is hidden, the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.computing.added import off_rows
from intently.checker.computing.cores import Examined
from intently.checker.computing.explaining import counterexample, mistake_of, scale_named
from intently.checker.computing.intent import in_calls, inferred
from intently.checker.computing.rotations import BACKWARDS, mistake_in
from intently.checker.computing.tracing import Found, held_by
from intently.checker.report.finding import Finding

Inside = Callable[[Subject], tuple[list[Examined], list[Finding]]]
"""Examines the attentions of a subject."""
SIDES = {"q": "queries", "k": "keys", "v": "values"}


@dataclass(frozen=True)
class Whole:
    """One of two subjects, with its traced run and the attentions inside."""

    subject: Subject
    found: Found
    cores: list[Examined]


def parted(mine: Whole, theirs: Whole, same: float) -> list[Finding]:
    """How the first differs from the second; nothing if no difference has a name."""
    found: list[Finding] = []
    if len(mine.cores) != len(theirs.cores):
        said = f"{len(mine.cores)} attentions run where the reference runs {len(theirs.cores)}"
        found.append(Finding("attentions-differ", said))
    for a, b in zip(mine.cores, theirs.cores):
        found += _pair(a, b, mine, theirs, same, first=not found)
    return found


def _pair(
    a: Examined, b: Examined, mine: Whole, theirs: Whole, same: float, *, first: bool
) -> list[Finding]:
    """How two attentions differ: what comes in counts at the ``first`` only."""
    found = _layout(a, b)
    if first and found:
        found += _raw_bias(a, b, mine, theirs, same)
    elif first:
        found += _projections(a, b, mine, theirs, same)
    if a.scores is not None and b.scores is not None:
        found += _scores(a, b)
        found += _mask(a, b)
    if first:
        found += _output(a, b, mine, theirs, same)
    return [replace(f, said=f"{f.said}{_first(a, b, same)}") for f in found]


def _first(a: Examined, b: Examined, same: float) -> str:
    """Where the outputs of two attentions part first, in words."""
    if a.operands is None or b.operands is None or a.operands.made.shape != b.operands.made.shape:
        return ""
    off = _apart(a.operands.made, b.operands.made).amax(-1)
    rows = (off > same).nonzero()
    if not len(rows):
        return ""
    n, h, i = rows[rows[:, 2].argmin()].tolist()
    return f"; first at query {i} of head {h}, batch row {n}, by {float(off[n, h, i]):.2g}"


# --- layouts and projections --------------------------------------------------------------------


def _layout(a: Examined, b: Examined) -> list[Finding]:
    """Heads that lie otherwise in the projections."""
    if a.weights is None or b.weights is None or a.scores is None or b.scores is None:
        return []
    one, two = a.weights.values, b.weights.values
    names = [x.reading.name for x in (one, two)]
    if all(n.startswith("(") for n in names) and names[0] != names[1]:
        said = f"the fused projection is read as {one.reading.name}, not as {two.reading.name}"
        return [Finding("layout-of-fused-rows", said, where=a.where)]
    interleaved = [
        "btdh" in (x.reading.v.order, s.split) for x, s in ((one, a.scores), (two, b.scores))
    ]
    if interleaved[0] != interleaved[1]:
        said = "a head takes every h-th number of its projection, not d neighbours"
        if interleaved[1]:
            said = "a head takes d neighbours of its projection, not every h-th number"
        return [Finding("heads-interleaved", said, where=a.where)]
    if one.tiled != two.tiled:
        lies = "tiled (0, 1, 0, 1)", "repeated (0, 0, 1, 1)"
        said = f"key heads are {lies[not one.tiled]}, not {lies[not two.tiled]}"
        return [Finding("key-heads-tiled", said, where=a.where)]
    return []


def _projections(
    a: Examined, b: Examined, mine: Whole, theirs: Whole, same: float
) -> list[Finding]:
    """Queries, keys and values of the example beside those of the reference."""
    x, y = a.operands, b.operands
    if x is None or y is None:
        return []
    one, two = ({n: getattr(o, n) for n in "qkv"} for o in (x, y))
    off = {n: _apart(one[n], two[n]) for n in "qkv"}
    wrong = [n for n in "qkv" if float(off[n].amax()) > same]
    found = []
    for n in list(wrong):
        other = next((m for m in "qkv" if m != n and _equal(one[n], two[m], same)), None)
        if other is not None:
            found.append((n, other))
            wrong.remove(n)
    if found:
        said = ", ".join(f"{SIDES[n]} come from the projection of {SIDES[m]}" for n, m in found)
        exchanged = [Finding("projections-exchanged", said, where=a.where)]
    else:
        exchanged = []
    for n in wrong:
        i, j = x.sources["qkv".index(n)], y.sources["qkv".index(n)]
        exchanged.append(_weights(SIDES[n], one[n], two[n], (mine, i), (theirs, j), a.where, same))
    return exchanged


def _raw_bias(a: Examined, b: Examined, mine: Whole, theirs: Whole, same: float) -> list[Finding]:
    """Whether projections that are read in other layouts differ by a constant."""
    if a.operands is None or b.operands is None:
        return []
    for i, j in zip(dict.fromkeys(a.operands.sources), dict.fromkeys(b.operands.sources)):
        one, two = mine.found.sources[i].value, theirs.found.sources[j].value
        if one.shape != two.shape or _equal(one, two, same):
            continue
        off = (one - two).flatten(0, -2)
        if float((off - off.mean(0)).abs().max()) <= same * float(two.abs().max()):
            said = "a projection adds another constant: its bias is missing or differs"
            return [Finding("projection-bias-missing", said, where=a.where)]
    return []


def _weights(
    what: str,
    one: Tensor,
    two: Tensor,
    mine: tuple[Whole, int],
    theirs: tuple[Whole, int],
    where: str,
    same: float,
) -> Finding:
    """Why a projection gives something else than that of the reference."""
    if one.shape != two.shape:
        said = f"the {what} have shape {tuple(one.shape)}, the reference's {tuple(two.shape)}"
        return Finding("projection-other", said, where=where)
    off = one - two
    steady = off - off.mean((0, -2), keepdim=True)
    if float(steady.abs().max()) <= 10 * same * float(two.abs().max()):
        said = f"the projection of {what} adds another constant: its bias is missing or differs"
        return Finding("projection-bias-missing", said, where=where)
    if _transposed(mine) != _transposed(theirs):
        said = f"the weight of the projection of {what} is used transposed"
        return Finding("weight-transposed", said, where=where)
    factor = float((one * two).sum() / (two * two).sum())
    if float(_apart(one, factor * two).amax()) <= 10 * same:
        said = f"the {what} are {factor:.4g} times the reference's"
        return Finding("projection-scaled", said, where=where)
    said = f"the {what} differ from the reference's: different weights, or a different input"
    return Finding("projection-other", said, where=where)


def _transposed(of: tuple[Whole, int]) -> bool | None:
    """Whether a square weight is applied as x W, not as x Wᵀ; None if it cannot be told."""
    whole, number = of
    source = whole.found.sources[number]
    weight = dict(held_by(whole.subject.owner)).get(_named(whole, source.weight))
    if weight is None or source.entry is None or weight.ndim != 2:
        return None
    if weight.shape[0] != weight.shape[1] or source.entry.shape[-1] != weight.shape[0]:
        return None
    x = source.entry.reshape(-1, weight.shape[0])
    made = source.value.reshape(x.shape)
    moved = weight.detach().to(x.dtype)
    straight, across = (_constant(made - x @ w) for w in (moved.mT, moved))
    return across < straight


def _named(whole: Whole, name: str) -> str:
    """The name of the weight that belongs to the parameter of an operation."""
    names = [n for n, _ in held_by(whole.subject.owner)]
    if not name.endswith("bias"):
        return name
    other = name.removesuffix("bias") + "weight"
    return other if other in names else name


def _constant(x: Tensor) -> float:
    """How far rows are from one another."""
    return float((x - x.mean(0)).abs().max())


def _output(a: Examined, b: Examined, mine: Whole, theirs: Whole, same: float) -> list[Finding]:
    """The projection that follows: the same input, another output."""
    i, j = a.end, b.end
    if a.operands is None or b.operands is None or i is None or j is None:
        return []
    one, two = mine.found.sources[i], theirs.found.sources[j]
    if one.entry is None or two.entry is None or one.value.shape != two.value.shape:
        return []
    if not _equal(one.entry.reshape(two.entry.shape), two.entry, same):
        if _transposed((mine, i)) != _transposed((theirs, j)):
            said = "the weight of the projection of the output is used transposed"
            return [Finding("weight-transposed", said, where=a.where)]
        return []
    if _equal(one.value, two.value, same):
        return []
    x, y = (z.value.flatten(0, -2)[None, None] for z in (one, two))
    return [_weights("output", x, y, (mine, i), (theirs, j), a.where, same)]


# --- scores -------------------------------------------------------------------------------------


def _scores(a: Examined, b: Examined) -> list[Finding]:
    """Kind, scale, softcap, sinks, what is added, and the axis of the softmax."""
    assert a.scores is not None and b.scores is not None and a.weights is not None
    one, two, where = a.scores, b.scores, a.where
    found: list[Finding] = []
    if one.kind != two.kind and two.residual < 1e-6:
        found.append(_other_kind(one.kind, two.kind, where))
    if one.scale.shape == two.scale.shape and one.residual < 1e-4 > two.residual:
        x, y = float(one.scale.mean()), float(two.scale.mean())
        if not math.isclose(x, y, rel_tol=1e-3):
            r = a.weights.values.reading
            name, said = scale_named(x, r.width, (r.heads * r.width,), y)
            found.append(Finding(name, said, where=where))
    if not _close(one.softcap, two.softcap):
        name = "softcap-missing" if one.softcap is None else "softcap-other"
        has = "no softcap" if one.softcap is None else f"a softcap of {one.softcap:g}"
        should = "none" if two.softcap is None else f"one of {two.softcap:g}"
        found.append(Finding(name, f"{has}; the reference has {should}", where=where))
    if one.factor != two.factor:
        said = f"weights are multiplied by {one.factor / two.factor:.4g} after the softmax"
        found.append(Finding("not-normalised", said, where=where))
    if one.extra is not None and two.extra is not None:
        known = all(float(off_rows(x.added, x.seen).abs().max()) < 1e-5 for x in (one, two))
        if known and not torch.allclose(one.extra.double(), two.extra.double(), rtol=1e-3):
            found.append(Finding("sinks-other", "its sinks are not the reference's", where=where))
    elif one.extra is not two.extra:
        said = (
            "the sinks of the reference are left out"
            if one.extra is None
            else "a sink takes weight that the reference gives to keys"
        )
        found.append(Finding("sinks-missing" if one.extra is None else "sink", said, where=where))
    if one.axis != two.axis and two.axis == "keys" and one.axis in ("queries", "heads", "batch"):
        said = f"weights sum to 1 over {one.axis}, not over keys"
        found.append(Finding(f"softmax-over-{one.axis}", said, where=where))
    if not found and one.added.shape == two.added.shape:
        found += _added(a, b)
    return found


def _close(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-3)


def _other_kind(one: str, two: str, where: str) -> Finding:
    said = f"scores are {one}, the reference's are {two}"
    name = "scores-other"
    if two.startswith("rotary"):
        name = "rotation-missing" if one == "dot" else "rotation-other"
        if one.startswith("rotary"):
            pairs = [x.split(",")[0] for x in (one, two)]
            name = "rotary-pairs" if pairs[0] != pairs[1] else "rotary-base"
            if (BACKWARDS in one) != (BACKWARDS in two):
                name = "rotary-direction"
            name = mistake_in(one)[0] or name
    return Finding(name, said, where=where)


def _added(a: Examined, b: Examined) -> list[Finding]:
    """What is added to the scores beside q · k."""
    assert a.scores is not None and b.scores is not None
    both = a.scores.seen & b.scores.seen
    one, two = (off_rows(x.scores.added, both) for x in (a, b) if x.scores is not None)
    size = float(two.abs().max())
    little = max(a.scores.precision.added, b.scores.precision.added)
    if float((one - two).abs().max()) <= little * max(1.0, size):
        return []
    if size < 1e-6:
        return [Finding("bias-other", "a bias is added that the reference has not", where=a.where)]
    if float(one.abs().max()) < 1e-6:
        return [Finding("bias-missing", "the bias of the reference is not added", where=a.where)]
    factor = float((one * two).sum() / (two * two).sum())
    if float((one - factor * two).abs().max()) < 1e-4 * size:
        if math.isclose(factor, -1.0, rel_tol=1e-3):
            return [Finding("bias-sign", "the bias has the wrong sign", where=a.where)]
        said = f"the bias is {factor:.4g} times the reference's"
        name = "bias-twice" if math.isclose(factor, 2.0, rel_tol=1e-3) else "bias-scaled"
        return [Finding(name, said, where=a.where)]
    slopes = (one * two).sum((0, -2, -1)) / (two * two).sum((0, -2, -1)).clamp(min=1e-30)
    if float((one - slopes[:, None, None] * two).abs().max()) < 1e-4 * size:
        told = ", ".join(f"{x:.3g}" for x in slopes.tolist()[:8])
        said = f"by head, the bias is {told} times the reference's: other slopes"
        return [Finding("bias-slopes", said, where=a.where)]
    return [Finding("bias-other", "the bias differs from the reference's", where=a.where)]


def _mask(a: Examined, b: Examined) -> list[Finding]:
    """Keys that one attends and the other does not."""
    assert a.scores is not None and b.scores is not None
    if a.scores.seen.shape != b.scores.seen.shape or b.intent is None:
        return []
    if bool((a.scores.seen == b.scores.seen).all()):
        return []
    intent = in_calls(b.intent, a.weights.calls) if a.weights is not None else b.intent
    if intent.explained(b.scores.seen, 0) is None:
        intent = inferred(b.scores.seen, intent, cross=False)
    wrong = intent.explained(a.scores.seen)
    at, text = counterexample(a.scores.seen, b.scores.seen)
    if not wrong:
        return [Finding("mask-other", f"unlike the reference, {text}", where=a.where, cell=at)]
    return [
        Finding(mistake_of(part, v), f"{part}: {v}; {text}", where=a.where, cell=at)
        for part, v in wrong
    ]


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Differences relative to the largest entry; infinite where shapes differ."""
    if a.shape != b.shape:
        return torch.full((1, 1, 1, 1), torch.inf)
    return (a - b).abs() / b.abs().amax().clamp(min=1e-12)


def _equal(a: Tensor, b: Tensor, same: float) -> bool:
    return a.shape == b.shape and float(_apart(a, b).amax()) <= same
