"""Compare two attentions that should be the same: where they part, and by which difference.

Each pair is compared from the outside in: heads, projections, layout, kind and scale of the scores,
what is added, what is hidden, the softmax, the projection of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.checker.calling.subject import Subject, held_by
from intently.checker.examined import Examination
from intently.checker.judging.biases import off_rows
from intently.checker.judging.intent import inferred
from intently.checker.judging.judged import Judged, scale_named
from intently.checker.judging.masks import counterexample, mistake_of
from intently.checker.judging.rotations import BACKWARDS
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.flow import Operand, whole
from intently.checker.properties.trial import part
from intently.checker.report.examples import shown
from intently.checker.report.finding import Finding

Inside = Callable[[Subject], Examination]
"""Examines the attentions of a subject."""
SIDES = {"q": "queries", "k": "keys", "v": "values"}


def parted(mine: Examination, theirs: Examination, same: float) -> list[Finding]:
    """How the first differs from the second; nothing if no difference has a name."""
    n, m = len(mine.attentions), len(theirs.attentions)
    said = f"{n} attentions run where the reference runs {m}"
    found = [Finding("attentions-differ", said)] if n != m else []
    for a, b in zip(mine.attentions, theirs.attentions):
        found += pair(a, b, mine, theirs, same, first=not found)
    return found


def with_matrices(
    findings: Iterable[Finding], mine: Examination, theirs: Examination
) -> list[Finding]:
    """The findings, each with the weights of both at its place, where they differ."""
    both = zip(mine.attentions, theirs.attentions)
    weights = {a.where: (b.attention.weights, a.attention.weights) for a, b in both}
    return [shown(x, *weights[x.where]) if x.where in weights else x for x in findings]


def pair(
    a: Judged, b: Judged, mine: Examination, theirs: Examination, same: float, *, first: bool
) -> list[Finding]:
    """How two attentions differ: what comes in counts at the ``first`` only."""
    x, y = a.attention, b.attention
    found = _layout(x, y)
    if first:
        found += _projections(x, y, mine, theirs, same, bool(found))
    found += _scores(x, y)
    found = found or _added(x, y)
    found += _mask(a, b)
    found = _output(x, y, mine, theirs, same) if first and not found else found
    text = _first(x, y, same)
    return [replace(f, where=a.where, said=f"{f.said}{text}") for f in found]


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
        lies = "every h-th number", "d neighbours"
        said = f"a head takes {lies[two]} of its projection, not {lies[one]}"
        return [Finding("heads-interleaved", said)]
    if None not in (a.v.tiled, b.v.tiled) and a.v.tiled != b.v.tiled:
        lies = "repeated (0, 0, 1, 1)", "tiled (0, 1, 0, 1)"
        said = f"key heads are {lies[bool(a.v.tiled)]}, not {lies[bool(b.v.tiled)]}"
        return [Finding("key-heads-tiled", said)]
    return []


def _raw(x: Operand | None) -> Tensor | None:
    """What an operand is made of (b, n, h · m), as its layer made it."""
    if x is None or x.at is None or x.rows != "own" or not x.reads or bool((x.at < 0).any()):
        return None
    source = x.sources[0].value.detach()
    rows = source.movedim(x.row_axes, tuple(range(len(x.row_axes))))
    columns = torch.cat([r.nonzero()[:, 0] for r in x.reads])
    return rows.reshape(math.prod(x.row_sizes), -1)[x.at[:, 0]][..., columns]


def _projections(
    a: Attention, b: Attention, mine: Examination, theirs: Examination, same: float, laid: bool
) -> list[Finding]:
    """Queries, keys and values of the example beside those of the reference."""
    one, two = ({n: x for n in "qkv" if (x := _raw(getattr(y, n))) is not None} for y in (a, b))
    off = [n for n in one if n in two and part(one[n], two[n]) > same]
    equal = {n: [m for m in two if m in one and part(one[n], two[m]) <= same] for n in off}
    off = [n for n in off if not equal[n]]
    if laid:  # read in another order: only a constant can be told
        made = [[getattr(z, n).sources[0].value.detach() for z in (a, b)] for n in off]
        if any(_constant(x, y, same) and part(x, y) > same for x, y in made):
            said = "a projection adds another constant: its bias is missing or differs"
            return [Finding("projection-bias-missing", said)]
        return []
    come = [f"{SIDES[n]} come from the projection of {SIDES[m[0]]}" for n, m in equal.items() if m]
    found = [Finding("projections-exchanged", ", ".join(come))] if come else []
    for n in off:
        ends = (mine, getattr(a, n).name), (theirs, getattr(b, n).name)
        found.append(_weights(SIDES[n], one[n], two[n], ends, same))
    return found


def _constant(x: Tensor, y: Tensor, same: float) -> bool:
    """Whether all rows differ by the same."""
    if x.shape != y.shape:
        return False
    off = (x - y).flatten(0, -2)
    return float((off - off.mean(0)).abs().max()) <= 10 * same * float(y.abs().max())


def _weights(
    what: str, x: Tensor, y: Tensor, ends: Sequence[tuple[Examination, str]], same: float
) -> Finding:
    """Why a projection gives something else than that of the reference."""
    if x.shape != y.shape:
        said = f"the {what} have shape {tuple(x.shape)}, the reference's {tuple(y.shape)}"
        return Finding("projection-other", said)
    if _constant(x, y, same):
        said = f"the projection of {what} adds another constant: its bias is missing or differs"
        return Finding("projection-bias-missing", said)
    if {_transposed(*end) for end in ends} == {True, False}:
        said = f"the weight of the projection of {what} is used transposed"
        return Finding("weight-transposed", said)
    factor = float((x * y).sum() / (y * y).sum())
    if float((x - factor * y).abs().max()) <= 10 * same * float(y.abs().max()):
        return Finding("projection-scaled", f"the {what} are {factor:.4g} times the reference's")
    said = f"the {what} differ from the reference's: different weights, or a different input"
    return Finding("projection-other", said)


@torch.no_grad()
def _transposed(whole: Examination, name: str) -> bool | None:
    """Whether a square weight is applied as x W, not as x Wᵀ; None if it cannot be told."""
    held, run = dict(held_by(whole.subject.owner)), whole.run
    other = name.removesuffix("bias") + "weight" if name.endswith("bias") else name
    w = held.get(other, held.get(name))
    if w is None or w.ndim != 2 or run is None:
        return None
    biases = 0.0, held.get(other.removesuffix("weight") + "bias", 0.0)
    for node, y in run.results.items():
        fixed = (v for _, v in node.views if not v.node.data)
        if node.name in ("mm", "addmm", "bmm") and {name, other} & {*map(run.name_of, fixed)}:
            x = run.tensor(node.args[node.name == "addmm"])
            for turned, used in ((True, w), (False, w.mT)):
                fits = (x.shape[-1], y.shape[-1]) == used.shape
                if fits and any(part(x @ used + bias, y) <= 1e-6 for bias in biases):
                    return turned
    return None


def _output(
    a: Attention, b: Attention, mine: Examination, theirs: Examination, same: float
) -> list[Finding]:
    """The projection that follows: the same input, another output."""
    ends = []
    for after, end in ((a.after, mine), (b.after, theirs)):
        if after is None or after.follows is None or end.run is None:
            return []
        views = (v for _, v in after.follows.views if not v.node.data)
        name = next(filter(None, map(end.run.name_of, views)), "")
        made = end.run.results[after.follows].detach()
        ends.append((after.value.detach().flatten(), made, (end, name)))
    (read, x, one), (other, y, two) = ends
    if x.numel() != y.numel() or part(read, other) > same or part(x.reshape_as(y), y) <= same:
        return []
    return [_weights("output", x.reshape_as(y)[None], y[None], (one, two), same)]


# --- scores -------------------------------------------------------------------------------------


def _scores(a: Attention, b: Attention) -> Iterator[Finding]:
    """Rotation, kind, scale, softcap, sinks, the axis of the softmax, and its sums."""
    if a.rotation != b.rotation:
        ways = [x.rotation or _turned(x) * "rotated in another way" for x in (a, b)]
        one, two = (x or "not rotated" for x in ways)
        said = f"scores are {one}, the reference's are {two}"
        yield Finding(_other_rotation(*ways), said)
    elif a.kind != b.kind and "" not in (a.kind, b.kind):
        yield Finding("scores-other", f"scores are {a.kind}, the reference's {b.kind}")
    if a.scale is not None and b.scale is not None:
        x, y = float(a.scale.mean()), float(b.scale.mean())
        if not math.isclose(x, y, rel_tol=max(1e-3, a.precision.same, b.precision.same)):
            heads = a.weights.shape[1]
            yield Finding(*scale_named(x, a.width, (heads * a.width,), y, heads))
    if not math.isclose(a.softcap or 0.0, b.softcap or 0.0, rel_tol=1e-3):
        has = f"a softcap of {a.softcap:g}" if a.softcap else "no softcap"
        should = f"one of {b.softcap:g}" if b.softcap else "none"
        name = "softcap-other" if a.softcap else "softcap-missing"
        yield Finding(name, f"{has}; the reference has {should}")
    if a.sink is None and b.sink is not None:
        yield Finding("sinks-missing", "the sinks of the reference are left out")
    elif a.sink is not None and b.sink is None:
        yield Finding("sink", "a sink takes weight that the reference gives to keys")
    elif a.sink is not None and b.sink is not None and not a.sink.allclose(b.sink, rtol=1e-3):
        yield Finding("sinks-other", "its sinks are not the reference's")
    over = next((x for x in ("batch", "heads", "queries") if x in a.axis), "")
    if over and b.axis == "keys":
        yield Finding(f"softmax-over-{over}", f"weights sum to 1 over {a.axis}, not over keys")
    one, two = (float(x.weights.sum(-1).mean()) for x in (a, b))
    if a.axis == "keys" and a.sink is None and abs(one - two) > 1e-3:
        said = f"weights are multiplied by {one / two:.4g} after the softmax"
        yield Finding("not-normalised", said)


def _turned(a: Attention) -> bool:
    """Whether rows of queries are made of their sources in ways that depend on the position."""
    maps = () if a.q is None else a.q.maps[:1]
    return any(float((m - m[:1]).abs().max()) > 1e-6 for m in maps)


def _other_rotation(one: str, two: str) -> str:
    """The name of the difference of two rotations in words."""
    if not (one and two):
        return "rotation-other" if one else "rotation-missing"
    if (BACKWARDS in one) != (BACKWARDS in two):
        return "rotary-direction"
    if one.split(",")[0] == two.split(",")[0]:
        return "rotary-base"
    return "rotary-pairs" if "base" in one else "rotation-other"


def _added(a: Attention, b: Attention) -> list[Finding]:
    """What is added to the scores beside q · k."""
    if a.added is None or b.added is None or a.added.shape != b.added.shape:
        return []
    one, two = (off_rows(x, a.shown & b.shown) for x in (a.added, b.added))
    size, little = float(two.abs().max()), max(a.precision.added, b.precision.added)
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
        name = "bias-twice" if math.isclose(factor, 2.0, rel_tol=1e-3) else "bias-scaled"
        return [Finding(name, f"the bias is {factor:.4g} times the reference's")]
    slopes = (one * two).sum((0, -2, -1)) / (two * two).sum((0, -2, -1)).clamp(min=1e-30)
    if float((one - slopes[:, None, None] * two).abs().max()) < 1e-4 * size:
        told = ", ".join(f"{x:.3g}" for x in slopes.tolist()[:8])
        said = f"by head, the bias is {told} times the reference's: other slopes"
        return [Finding("bias-slopes", said)]
    return [Finding("bias-other", "the bias differs from the reference's")]


def _mask(a: Judged, b: Judged) -> list[Finding]:
    """Keys that one attends and the other does not."""
    one, two, intent = a.attention.shown, b.attention.shown, b.intent
    if one.shape != two.shape or intent is None or torch.equal(one, two):
        return []
    intent = inferred(two, intent, cross=False) if intent.explained(two, 0) is None else intent
    at, text = counterexample(one, two)
    wrong = [(mistake_of(p, v), f"{p}: {v}; {text}") for p, v in intent.explained(one) or ()]
    wrong = wrong or [("mask-other", f"unlike the reference, {text}")]
    return [Finding(name, said, cell=at) for name, said in wrong]


def in_one(steps: Examination, plain: Examination) -> Examination:
    """The attentions of steps, each with all of its calls as one."""
    called = [([x for x in steps.attentions if x.where == p.where], p) for p in plain.attentions]
    return replace(steps, attentions=tuple(joined(calls, p) for calls, p in called if calls))


def joined(calls: Sequence[Judged], plain: Judged) -> Judged:
    """The calls of one attention in steps as one over all queries, keys from the first on."""
    w = [x.attention for x in calls]
    s = max(x.weights.shape[-1] for x in (plain.attention, *w))
    ends = [min(n, s) for n in accumulate(x.weights.shape[-2] for x in w)]

    def below(parts: Iterable[Tensor], fill: float) -> Tensor:
        """One below the other, each over the last keys so far: some caches drop the first."""
        rows = []
        for x, end in zip(parts, ends):
            first = max(0, end - x.shape[-1])
            rows.append(F.pad(x, (first, s - first - x.shape[-1]), value=fill))
        return torch.cat(rows, -2)

    filled, added = [x.filled for x in w], [x.added for x in w if x.added is not None]
    cells = [torch.zeros_like(x.weights) if x.filled is None else x.filled[0] for x in w]
    made = replace(
        max(w, key=lambda x: (x.slope is not None, x.weights.shape[-1])),
        rotation=plain.attention.rotation,
        weights=below((x.weights for x in w), 0.0),
        added=below(added, torch.nan) if len(added) == len(w) else None,
        soft=None,
        filled=(below((x.double() for x in cells), 0.0).bool(), 0.0) if any(filled) else None,
        scores=None,
        product=None,
    )
    return replace(plain, attention=made)
