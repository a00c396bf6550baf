"""Examine each attention inside a subject: measure its weights and explain them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from intently.checker.calling.applying import Side, about, sides
from intently.checker.calling.changes import another
from intently.checker.calling.configured import stated
from intently.checker.calling.subject import Subject
from intently.checker.computing.explaining import Explained, explain
from intently.checker.computing.filling import after_softmax, with_filled
from intently.checker.computing.groups import Group, entering, gathered, groups_of, scattered
from intently.checker.computing.inside import INSIDE, seen_inside, weights_now, weights_of_nan
from intently.checker.computing.intent import (
    Intent,
    Unfit,
    added_by,
    dense_bias,
    in_calls,
    inferred,
    intended,
    with_window,
)
from intently.checker.computing.layouts import given_heads, layouts
from intently.checker.computing.measuring import (
    Operands,
    Weights,
    measured,
    operands_of,
    with_keys_shared_otherwise,
)
from intently.checker.computing.score_kinds import kinds
from intently.checker.computing.scores_found import Scores, apart
from intently.checker.computing.tracing import Found
from intently.checker.properties.entering import scaled_before
from intently.checker.properties.padding_again import on_queries, repadded
from intently.checker.report.by_design import by_design
from intently.checker.report.examples import with_examples
from intently.checker.report.finding import Finding
from intently.checker.report.telling import told
from intently.core.biases import Bias
from intently.core.masks import Mask
from intently.core.masks.ragged import Padding


@dataclass(frozen=True)
class Examined:
    """One attention inside a subject, as far as it could be measured."""

    where: str
    explained: Explained | None
    weights: Weights | None = None
    scores: Scores | None = None
    intent: Intent | None = None
    why: str = ""
    operands: Operands | None = None
    end: int | None = None
    """The number of the source that the output of a single call enters."""

    @property
    def said(self) -> str:
        """What it computes, in words, or why that is not known."""
        return f"{self.where}: {'; '.join(self.explained.says) if self.explained else self.why}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found inside it."""
        return self.explained.findings if self.explained else ()

    def saying(self, *findings: Finding) -> Examined:
        """The same with other findings, where it could be explained."""
        if self.explained is None:
            return self
        return replace(self, explained=replace(self.explained, findings=findings))


def examined(
    subject: Subject, mask: Mask | None = None, bias: Bias | Tensor | None = None
) -> list[Examined]:
    """Each attention of a run of the subject."""
    out: list[Examined] = []
    unfit: Unfit | None = None
    try:
        found = subject.traced()
    except Exception as error:  # code that refuses to be followed
        why = f"it cannot be followed inside: {type(error).__name__}: {error}".split("\n")[0]
        found, out = Found(), [Examined("attention", None, why=why)]
    groups = groups_of(found)
    side = sides(subject, found, another) if groups else None
    own: list[Side] = [side(g.q, g.k) for g in groups] if side else []
    for group, at in told("attention", list(zip(groups, own))):
        if not group.v:
            out.append(Examined(group.where, None, why="its weights met no values"))
        elif len(group.cores) > 1 and at != "self":
            why = "it runs again in each step: what it gives the whole pass was measured"
            out.append(Examined(group.where, None, why=why))
        else:
            try:
                stated = mask if at == "self" or "self" not in own else None
                said = _one(subject, found, group, stated, bias, at)
                out.append(_padded_again(said, subject, found, group, stated, bias, at))
            except Exception as error:  # whatever the code does with other values
                unfit = error if isinstance(error, Unfit) else unfit
                why = f"it cannot be measured: {type(error).__name__}: {error}".split("\n")[0]
                out.append(Examined(group.where, None, why=why))
    if unfit is not None and not any(x.explained for x in out):
        raise unfit
    if not any(x.explained for x in out) and len(subject.of("q", "k", "v")) == 3:
        whole = _function(subject)
        if whole is not None:
            weights, scores, _ = _taken_apart(whole, Found(capped=True, turned=True))
            return [_explained(subject, "attention", "self", weights, scores, mask, bias)]
    return out


def _function(subject: Subject) -> Weights | None:
    """The weights of a function of q, k and v, whatever it does inside.

    Keys and values of the past that it takes apart from them are keys and values too.
    """
    q, k, v = (subject.of(role)[0] for role in ("q", "k", "v"))
    given = subject.inputs
    pasts = subject.of("past k") + subject.of("past v")
    past = dict(zip((k, v), pasts)) if len(pasts) == 2 else {}
    sources = {
        i: torch.cat([given[past[n]], given[n]], -2) if n in past else given[n]
        for i, n in enumerate((q, k, v))
    }

    def run(values: Mapping[int, Tensor]) -> Tensor:
        replaced = {}
        for i, n in enumerate((q, k, v)):
            s = given[n].shape[-2]
            replaced[n] = values[i][..., -s:, :]
            if n in past:
                replaced[past[n]] = values[i][..., :-s, :]
        with torch.no_grad():
            return subject.output(**replaced)

    for size, candidates in given_heads(sources, 0, 1, 2):
        with suppress(Exception):  # whatever the code does with other values
            weights = measured(run, sources, candidates, size, subject.precision)
            if weights is not None:
                return weights
    return None


def _one(
    subject: Subject,
    found: Found,
    group: Group,
    mask: Mask | None,
    bias: Bias | Tensor | None,
    side: Side,
) -> Examined:
    infinite = weights_of_nan(subject, found, group)
    late = None if infinite is None else after_softmax(infinite[None], group.where)
    if late is not None:
        return _late(late)
    best: tuple[Weights, Scores, Operands | None] | None = None
    for way in (_outside, _outside_linear, _inside):
        made = way(subject, found, group)
        if made is None:
            continue
        late = after_softmax(made[0].w, group.where)
        if late is not None:
            return _late(late)
        weights, scores, turned = _taken_apart(made[0], found)
        if best is None or scores.residual < best[1].residual / 10:
            seen = made[1]
            if turned and seen is not None:
                seen = replace(seen, q=seen.k, k=seen.q)
            best = weights, scores, seen
        if best[1].known:
            break
    if best is None:
        why = "its outputs are not weights times values"
        return Examined(group.where, None, why=why)
    weights, scores, operands = best
    widths = entering(found, group)

    def explained(scores: Scores) -> Examined:
        return _explained(subject, group.where, side, weights, scores, mask, bias, operands, widths)

    said = explained(scores)
    if not scores.known and said.intent is not None:
        filled = with_filled(weights, scores, said.intent, found, group.where)
        if filled is not None:
            said = explained(filled[0])
            said = said.saying(filled[1], *said.findings)
    said = _overpowered(said, subject, found, group) if mask is not None else said
    if found.joined:  # each product has a part of every row
        said = said.saying(*(f for f in said.findings if f.name != "not-normalised"))
    width = best[0].values.reading.width
    more = scaled_before(subject, found, group.q[0], group.k[0], width, group.where)
    if more is not None:
        others = [f for f in said.findings if f.name != "no-scale"]  # once is right
        said = said.saying(*([more] if len(others) == len(said.findings) else []), *others)
    return replace(said, end=group.cores[0].end)


def _padded_again(
    said: Examined,
    subject: Subject,
    found: Found,
    group: Group,
    mask: Mask | None,
    bias: Bias | Tensor | None,
    side: Side,
) -> Examined:
    """What was found; where padding is attended, what other padding says of it."""
    attended = [f for f in said.findings if f.name == "padding-attended"]
    if said.explained is None or len(attended) != 1:
        return said
    better: Finding | None = None
    for name in (n for n in subject.meanings if side in about(subject, n)):
        with suppress(Exception):  # whatever the code does with another mask
            better = better or on_queries(subject, name, group.where)
            other = None if better else repadded(subject, name)
            if other is not None:
                stated = None if isinstance(mask, Padding) else mask
                again = _one(other, found, group, stated, bias, side).findings
                better = next((f for f in again if f.name == "mask-of-other-rows"), None)
    if better is None:
        return said
    findings = tuple(better if f is attended[0] else f for f in said.explained.findings)
    says = tuple(x.replace(attended[0].name, better.name) for x in said.explained.says)
    return replace(said, explained=replace(said.explained, findings=findings, says=says))


def _late(found: Finding) -> Examined:
    """An attention that is masked after the softmax by a number: nothing else can be told of it."""
    says = (f"its weights are a number where a mask hides, but {found.name}",)
    return Examined(found.where, Explained(says, (found,), math.inf))


def _overpowered(said: Examined, subject: Subject, found: Found, group: Group) -> Examined:
    """What was found, with hidden keys that large scores give weight to in the example."""
    if said.explained is None or said.intent is None or said.scores is None:
        return said
    with suppress(Exception):  # whatever the code does when it is followed
        now = weights_now(subject, found, group)
        hidden = ~said.scores.seen & ~said.intent.allowed
        if now is None or now.shape != hidden.shape:
            return said
        cells = ((now > subject.precision.same) & hidden).nonzero()
        if len(cells):
            b, h, i, j = cells[0].tolist()
            text = f"query {i} gives hidden key {j} the weight {float(now[b, h, i, j]):.2g}"
            text += " in the example: large scores outdo what the mask adds"
            more = Finding("mask-too-weak", text, where=said.where, cell=(b, h, i, j))
            return said.saying(*said.findings, more)
    return said


def _taken_apart(weights: Weights, found: Found) -> tuple[Weights, Scores, bool]:
    """The scores of measured weights, with queries and keys exchanged if that explains more."""
    if weights.values.reading.name == INSIDE:  # queries and keys are rotated already
        found = replace(found, turned=False)
    scores = apart(weights, kinds(weights, found.rates), found)
    if scores.residual > weights.precision.close and weights.q.shape == weights.k.shape:
        r = weights.values.reading
        values = replace(weights.values, reading=replace(r, views=(r.k, r.q, r.v)))
        large = weights.large and (weights.large[0], weights.large[2], weights.large[1])
        turned = replace(weights, q=weights.k, k=weights.q, values=values, large=large)
        other = apart(turned, kinds(turned, found.rates), found)
        if other.residual < scores.residual / 10:
            return turned, other, True
    other = with_keys_shared_otherwise(weights)
    if scores.residual > weights.precision.close and other is not None:
        made = apart(other, kinds(other, found.rates), found)
        if made.residual < scores.residual / 10:
            return other, made, False
    return weights, scores, False


def _outside(
    subject: Subject, found: Found, group: Group
) -> tuple[Weights, Operands | None] | None:
    """The weights as outputs for random values tell them."""
    b = subject.batch
    operands = {}
    for numbers in dict.fromkeys((group.q, group.k, group.v)):
        raw = gathered([found.sources[i].value for i in numbers], b)
        if raw is None or len({found.sources[i].weight for i in numbers}) != 1:
            return None
        operands[numbers] = raw
    sources = {numbers[0]: raw for numbers, raw in operands.items()}
    weights_of = {numbers[0]: found.sources[numbers[0]].weight for numbers in operands}

    def run(values: Mapping[int, Tensor]) -> Tensor:
        replaced: dict[int, Tensor] = {}
        for numbers in operands:
            parts = [found.sources[i].value for i in numbers]
            replaced |= dict(zip(numbers, scattered(values[numbers[0]], parts, b)))
        made = gathered(subject.replayed(found, replaced, group.ends), b)
        assert made is not None
        return made

    ids = (group.q[0], group.k[0], group.v[0])
    given = subject.roles.get(weights_of[ids[0]]) in ("q", "x")
    first: tuple[Weights, Operands | None] | None = None
    for size, candidates in layouts(subject, group.cores[0], sources, ids, given):
        for _, some in groupby(candidates, key=lambda r: r.heads):
            weights = measured(run, sources, some, size, subject.precision, found.turned)
            if weights is None:
                continue
            steps = [found.sources[i].value.numel() for i in group.q]
            calls = tuple(n * size.t // sum(steps) for n in steps)
            seen = operands_of(run, sources, weights, size, ids)
            made = replace(weights, calls=calls), seen
            if apart(weights, kinds(weights, found.rates), replace(found, turned=False)).known:
                return made
            first = first or made
    return first


def _outside_linear(
    subject: Subject, found: Found, group: Group
) -> tuple[Weights, Operands | None] | None:
    """The same where keys meet values first, and queries meet their sum: linear attention."""
    if len({group.q, group.k, group.v}) < 3:
        return None
    for k, v in ((group.q, group.k), (group.k, group.q)):
        made = _outside(subject, found, replace(group, q=group.v, k=k, v=v))
        if made is not None:
            return made
    return None


def _inside(subject: Subject, found: Found, group: Group) -> tuple[Weights, Operands | None] | None:
    """The weights as they stand inside."""
    weights = seen_inside(subject, found, group)
    return None if weights is None else (weights, None)


def _explained(
    subject: Subject,
    where: str,
    side: Side,
    weights: Weights,
    scores: Scores,
    mask: Mask | None,
    bias: Bias | Tensor | None,
    operands: Operands | None = None,
    entered: tuple[int, ...] = (),
) -> Examined:
    b, h, t, s = weights.w.shape[1:]
    sizes = (b, h, t, s)
    arguments = {
        n: (subject.inputs.get(n), m)
        for n, m in subject.meanings.items()
        if side in about(subject, n)
    }
    if mask is None:
        intent = inferred(scores.seen, intended(None, arguments, sizes), side == "cross")
    else:
        windows = sorted({int(n) for n in stated(subject.owner, "window").values() if n > 0})
        intent = with_window(scores.seen, mask, arguments, sizes, windows)
    intent, r = in_calls(intent, weights.calls), weights.values.reading
    added = None if bias is None else dense_bias(bias, sizes)
    given = added_by(arguments, sizes)
    widths = (r.heads * r.width, *entered)
    said = explain(weights, scores, intent, where, widths, added, given)
    shown = said.findings
    if scores.known:
        shown = with_examples(shown, weights, scores, intent, added, scores.score)
    scale = float(scores.scale.mean())
    shown = tuple(by_design(x, subject.owner, scale) for x in shown)
    said = replace(said, findings=shown)
    return Examined(where, said, weights, scores, intent, operands=operands)
