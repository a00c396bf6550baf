"""Compare two attentions that should be the same: where they part, and by which difference.

Each pair is compared from the outside in: heads, projections, layout, kind and scale of the scores,
what is added, what is hidden, the softmax, the projection of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from intently.checker.calling.holding import held_by
from intently.checker.calling.subject import Subject
from intently.checker.examined import Examination
from intently.checker.judging.biases import off_rows
from intently.checker.judging.intent import inferred
from intently.checker.judging.judged import Judged, scale_named
from intently.checker.judging.masks import counterexample, mistake_of
from intently.checker.judging.rotations import BACKWARDS
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.flow import Operand, whole
from intently.checker.report.finding import Finding

Inside = Callable[[Subject], Examination]
"""Examines the attentions of a subject."""
SIDES = {"q": "queries", "k": "keys", "v": "values"}


def parted(mine: Examination, theirs: Examination, same: float) -> list[Finding]:
    """How the first differs from the second; nothing if no difference has a name."""
    found: list[Finding] = []
    if len(mine.attentions) != len(theirs.attentions):
        n, m = len(mine.attentions), len(theirs.attentions)
        said = f"{n} attentions run where the reference runs {m}"
        found.append(Finding("attentions-differ", said))
    for a, b in zip(mine.attentions, theirs.attentions):
        found += pair(a, b, mine, theirs, same, first=not found)
    return found


def pair(
    a: Judged, b: Judged, mine: Examination, theirs: Examination, same: float, *, first: bool
) -> list[Finding]:
    """How two attentions differ: what comes in counts at the ``first`` only."""
    found = _layout(a.attention, b.attention)
    if first:
        found += _projections(a.attention, b.attention, mine, theirs, same, bool(found))
    found += _scores(a.attention, b.attention, bool(found))
    found += _mask(a, b)
    if first and not found:
        found += _output(a.attention, b.attention, mine, theirs, same)
    text = _first(a.attention, b.attention, same)
    return [replace(f, where=f.where or a.where, said=f"{f.said}{text}") for f in found]


def _first(a: Attention, b: Attention, same: float) -> str:
    """Where the outputs of two attentions part first, in words."""
    x, y = (whole(z.output.detach()) for z in (a, b))
    if x.shape != y.shape:
        return ""
    off = ((x - y).abs() / y.abs().amax().clamp(min=1e-12)).amax(-1)
    rows = (off > same).nonzero()
    if not len(rows):
        return ""
    n, h, i = rows[rows[:, 2].argmin()].tolist()
    return f"; first at query {i} of head {h}, batch row {n}, by {float(off[n, h, i]):.2g}"


# --- layouts and projections --------------------------------------------------------------------


def _layout(a: Attention, b: Attention) -> list[Finding]:
    """Heads that lie otherwise in the projections."""
    if a.fused and b.fused and a.fused != b.fused:
        said = f"the fused projection is read as {a.fused}, not as {b.fused}"
        return [Finding("layout-of-fused-rows", said)]
    one, two = (any(x is not None and x.interleaved for x in (y.q, y.v)) for y in (a, b))
    if one != two:
        said = "a head takes every h-th number of its projection, not d neighbours"
        if two:
            said = "a head takes d neighbours of its projection, not every h-th number"
        return [Finding("heads-interleaved", said)]
    if a.v.tiled is not None and b.v.tiled is not None and a.v.tiled != b.v.tiled:
        lies = "tiled (0, 1, 0, 1)", "repeated (0, 0, 1, 1)"
        said = f"key heads are {lies[not a.v.tiled]}, not {lies[not b.v.tiled]}"
        return [Finding("key-heads-tiled", said)]
    return []


def raw(x: Operand | None) -> Tensor | None:
    """What an operand is made of (b, n, h · m), as its layer made it."""
    if x is None or x.at is None or x.rows != "own" or not x.reads or bool((x.at < 0).any()):
        return None
    source = x.sources[0].value.detach()
    rest = [i for i in range(source.ndim) if i not in x.row_axes]
    flat = source.permute(*x.row_axes, *rest).reshape(math.prod(x.row_sizes), -1)
    columns = torch.cat([r.nonzero()[:, 0] for r in x.reads])
    return flat[x.at[:, 0]][..., columns]


def _projections(
    a: Attention, b: Attention, mine: Examination, theirs: Examination, same: float, laid: bool
) -> list[Finding]:
    """Queries, keys and values of the example beside those of the reference."""
    one = {n: raw(getattr(a, n)) for n in "qkv"}
    two = {n: raw(getattr(b, n)) for n in "qkv"}
    known = [n for n in "qkv" if one[n] is not None and two[n] is not None]
    off = [n for n in known if not _equal(one[n], two[n], same)]
    moved: list[tuple[str, str]] = []
    found: list[Finding] = []
    for n in list(off):
        other = next((m for m in known if m != n and _equal(one[n], two[m], same)), None)
        if other is not None:
            moved.append((n, other))
            off.remove(n)
    if moved and not laid:
        said = ", ".join(f"{SIDES[n]} come from the projection of {SIDES[m]}" for n, m in moved)
        found.append(Finding("projections-exchanged", said))
    for n in off:
        x, y = one[n], two[n]
        assert x is not None and y is not None
        names = getattr(a, n).name, getattr(b, n).name
        if laid:  # read in another order: only a constant can be told
            x, y = (getattr(z, n).sources[0].value.detach() for z in (a, b))
            if x.shape == y.shape and _constant(x, y, same) and not _equal(x, y, same):
                said = "a projection adds another constant: its bias is missing or differs"
                return [*found, Finding("projection-bias-missing", said)]
            continue
        found.append(_weights(SIDES[n], x, y, (mine, names[0]), (theirs, names[1]), same))
    return found


def _constant(x: Tensor, y: Tensor, same: float) -> bool:
    off = (x - y).flatten(0, -2)
    return float((off - off.mean(0)).abs().max()) <= 10 * same * float(y.abs().max())


def _weights(
    what: str,
    x: Tensor,
    y: Tensor,
    mine: tuple[Examination, str],
    theirs: tuple[Examination, str],
    same: float,
) -> Finding:
    """Why a projection gives something else than that of the reference."""
    if x.shape != y.shape:
        said = f"the {what} have shape {tuple(x.shape)}, the reference's {tuple(y.shape)}"
        return Finding("projection-other", said)
    if _constant(x, y, same):
        said = f"the projection of {what} adds another constant: its bias is missing or differs"
        return Finding("projection-bias-missing", said)
    if _transposed(*mine, x) != _transposed(*theirs, y):
        return Finding(
            "weight-transposed", f"the weight of the projection of {what} is used transposed"
        )
    factor = float((x * y).sum() / (y * y).sum())
    if float((x - factor * y).abs().max()) <= 10 * same * float(y.abs().max()):
        return Finding("projection-scaled", f"the {what} are {factor:.4g} times the reference's")
    said = f"the {what} differ from the reference's: different weights, or a different input"
    return Finding("projection-other", said)


def _transposed(whole: Examination, name: str, made: Tensor) -> bool | None:
    """Whether a square weight is applied as x W, not as x Wᵀ; None if it cannot be told."""
    held = dict(held_by(whole.subject.owner))
    other = name.removesuffix("bias") + "weight" if name.endswith("bias") else name
    w = held.get(other, held.get(name))
    run = whole.run
    if w is None or w.ndim != 2 or run is None:
        return None
    for node, y in run.results.items():
        if node.name not in ("mm", "addmm") or y.shape[-1] not in w.shape:
            continue
        fixed = [v for _, v in node.views if not v.node.data]
        if not any(run.name_of(v) in (name, other) for v in fixed):
            continue
        first = 1 if node.name == "addmm" else 0
        x = run.tensor(node.args[first]).detach()
        plain = y.detach()
        bias = held.get(other.removesuffix("weight") + "bias")
        for base in (0.0, bias if bias is not None else 0.0):
            for turned in (True, False):
                if x.shape[-1] != (w.shape[0] if turned else w.shape[1]):
                    continue
                made = x @ (w if turned else w.mT) + base
                if made.shape == plain.shape and _equal(made.detach(), plain, 1e-6):
                    return turned
    return None


def _output(
    a: Attention, b: Attention, mine: Examination, theirs: Examination, same: float
) -> list[Finding]:
    """The projection that follows: the same input, another output."""
    one, two = a.after, b.after
    if one is None or two is None or one.follows is None or two.follows is None:
        return []
    if mine.run is None or theirs.run is None:
        return []
    names = [
        next((n for _, v in o.follows.views if (n := r.name_of(v)) and not v.node.data), "")
        for o, r in ((one, mine.run), (two, theirs.run))
        if o.follows is not None
    ]
    x, y = mine.run.results[one.follows].detach(), theirs.run.results[two.follows].detach()
    if x.numel() != y.numel() or not _equal(
        one.value.detach().reshape(-1), two.value.detach().reshape(-1), same
    ):
        return []
    x = x.reshape(y.shape)
    if _equal(x, y, same):
        return []
    return [_weights("output", x[None], y[None], (mine, names[0]), (theirs, names[1]), same)]


# --- scores -------------------------------------------------------------------------------------


def _scores(a: Attention, b: Attention, laid: bool) -> list[Finding]:
    """Rotation, scale, softcap, sinks, what is added, and the axis of the softmax."""
    found: list[Finding] = []
    if a.rotation != b.rotation:
        found.append(_other_rotation(a.rotation, b.rotation))
    elif a.kind != b.kind and "" not in (a.kind, b.kind):
        found.append(Finding("scores-other", f"scores are {a.kind}, the reference's {b.kind}"))
    if a.scale is not None and b.scale is not None:
        x, y = float(a.scale.mean()), float(b.scale.mean())
        if not math.isclose(x, y, rel_tol=max(1e-3, a.precision.same, b.precision.same)):
            d = a.width
            name, said = scale_named(x, d, (a.weights.shape[1] * d,), y, a.weights.shape[1])
            found.append(Finding(name, said))
    if not _close(a.softcap, b.softcap):
        name = "softcap-missing" if a.softcap is None else "softcap-other"
        has = "no softcap" if a.softcap is None else f"a softcap of {a.softcap:g}"
        should = "none" if b.softcap is None else f"one of {b.softcap:g}"
        found.append(Finding(name, f"{has}; the reference has {should}"))
    if a.sink is not None and b.sink is not None:
        if not torch.allclose(a.sink, b.sink, rtol=1e-3):
            found.append(Finding("sinks-other", "its sinks are not the reference's"))
    elif a.sink is not b.sink:
        said = (
            "the sinks of the reference are left out"
            if a.sink is None
            else "a sink takes weight that the reference gives to keys"
        )
        found.append(Finding("sinks-missing" if a.sink is None else "sink", said))
    if a.axis != b.axis and b.axis == "keys":
        over = next((x for x in ("batch", "heads", "queries") if x in a.axis), "")
        if over:
            said = f"weights sum to 1 over {a.axis}, not over keys"
            found.append(Finding(f"softmax-over-{over}", said))
    sums = [x.weights.sum(-1).mean() for x in (a, b)]
    if a.axis == "keys" and a.sink is None and float((sums[0] - sums[1]).abs()) > 1e-3:
        said = f"weights are multiplied by {float(sums[0] / sums[1]):.4g} after the softmax"
        found.append(Finding("not-normalised", said))
    if not found and not laid and a.added is not None and b.added is not None:
        found += _added(a, b)
    return found


def _close(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-3)


def _other_rotation(one: str, two: str) -> Finding:
    said = f"scores are {one or 'not rotated'}, the reference's are {two or 'not rotated'}"
    if not one:
        return Finding("rotation-missing", said)
    if not two:
        return Finding("rotation-other", said)
    if (BACKWARDS in one) != (BACKWARDS in two):
        return Finding("rotary-direction", said)
    pairs = [x.split(",")[0] for x in (one, two)]
    return Finding("rotary-pairs" if pairs[0] != pairs[1] else "rotary-base", said)


def _added(a: Attention, b: Attention) -> list[Finding]:
    """What is added to the scores beside q · k."""
    if a.added is None or b.added is None or a.added.shape != b.added.shape:
        return []
    both = a.shown & b.shown
    one, two = off_rows(a.added, both), off_rows(b.added, both)
    size = float(two.abs().max())
    little = max(a.precision.added, b.precision.added)
    if float((one - two).abs().max()) <= little * max(1.0, size):
        return []
    if size < 1e-6:
        return [Finding("bias-other", "a bias is added that the reference has not")]
    if float(one.abs().max()) < 1e-6:
        return [Finding("bias-missing", "the bias of the reference is not added")]
    factor = float((one * two).sum() / (two * two).sum())
    if float((one - factor * two).abs().max()) < 1e-4 * size:
        if math.isclose(factor, -1.0, rel_tol=1e-3):
            return [Finding("bias-sign", "the bias has the wrong sign")]
        said = f"the bias is {factor:.4g} times the reference's"
        name = "bias-twice" if math.isclose(factor, 2.0, rel_tol=1e-3) else "bias-scaled"
        return [Finding(name, said)]
    slopes = (one * two).sum((0, -2, -1)) / (two * two).sum((0, -2, -1)).clamp(min=1e-30)
    if float((one - slopes[:, None, None] * two).abs().max()) < 1e-4 * size:
        told = ", ".join(f"{x:.3g}" for x in slopes.tolist()[:8])
        said = f"by head, the bias is {told} times the reference's: other slopes"
        return [Finding("bias-slopes", said)]
    return [Finding("bias-other", "the bias differs from the reference's")]


def _mask(a: Judged, b: Judged) -> list[Finding]:
    """Keys that one attends and the other does not."""
    one, two = a.attention.shown, b.attention.shown
    if one.shape != two.shape or b.intent is None or torch.equal(one, two):
        return []
    intent = b.intent
    if intent.explained(two, 0) is None:
        intent = inferred(two, intent, cross=False)
    wrong = intent.explained(one)
    at, text = counterexample(one, two)
    if not wrong:
        return [Finding("mask-other", f"unlike the reference, {text}", cell=at)]
    return [Finding(mistake_of(p, v), f"{p}: {v}; {text}", cell=at) for p, v in wrong]


def _equal(a: Tensor | None, b: Tensor | None, same: float) -> bool:
    if a is None or b is None or a.shape != b.shape:
        return False
    return float((a - b).abs().max()) <= same * float(b.abs().amax().clamp(min=1e-12))


def in_one(steps: Examination, plain: Examination) -> Examination:
    """The attentions of steps, each with all of its calls as one."""
    made = []
    for one in plain.attentions:
        calls = [x for x in steps.attentions if x.where == one.where]
        if calls:
            made.append(joined(calls, one))
    return replace(steps, attentions=tuple(made))


def joined(calls: Sequence[Judged], plain: Judged) -> Judged:
    """The calls of one attention in steps as one over all queries, keys from the first on."""
    w = [x.attention for x in calls]
    s = max(plain.attention.weights.shape[-1], *(x.weights.shape[-1] for x in w))
    ends: dict[int, int] = {}
    for x in w:  # the last keys so far, where some were dropped
        ends[id(x)] = x.weights.shape[-2] + max(ends.values(), default=0)

    def wide(x: Tensor, fill: float, of: Attention) -> Tensor:
        first = max(0, min(ends[id(of)], s) - x.shape[-1])
        return torch.nn.functional.pad(x, (first, s - first - x.shape[-1]), value=fill)

    weights = torch.cat([wide(x.weights, 0.0, x) for x in w], -2)
    added = None
    if all(x.added is not None for x in w):
        added = torch.cat([wide(x.added, torch.nan, x) for x in w if x.added is not None], -2)
    filled = None
    if any(x.filled is not None for x in w):
        cells = [
            x.filled[0] if x.filled is not None else torch.zeros_like(x.weights).bool() for x in w
        ]
        filled = torch.cat([wide(c.double(), 0.0, x).bool() for c, x in zip(cells, w)], -2), 0.0
    best = max(w, key=lambda x: (x.slope is not None, x.weights.shape[-1]))
    made = replace(
        best,
        rotation=plain.attention.rotation,
        weights=weights,
        added=added,
        soft=None,
        filled=filled,
        scores=None,
        product=None,
    )
    return replace(plain, attention=made)
