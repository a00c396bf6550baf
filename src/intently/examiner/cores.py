"""Examine each attention inside a subject: measure its weights and explain them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from intently.biases import Bias
from intently.examiner.applying import Side, about, sides
from intently.examiner.by_design import by_design
from intently.examiner.changes import another
from intently.examiner.configured import stated
from intently.examiner.examples import with_examples
from intently.examiner.explaining import Explained, explain
from intently.examiner.intent import Intent, dense_bias, inferred, intended, with_window
from intently.examiner.layouts import layouts
from intently.examiner.measuring import Geometry, Weights, measured
from intently.examiner.reading import joined
from intently.examiner.rotations import usual
from intently.examiner.scores_found import Score, Scores, apart
from intently.examiner.subject import Subject
from intently.examiner.telling import told
from intently.examiner.tracing import Core, Found
from intently.masks import Mask


@dataclass(frozen=True)
class Operands:
    """What an attention reads and gives in the example: q, k, v and the output, heads apart.

    ``sources`` are the numbers of the operations that make q, k and v.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    made: Tensor
    sources: tuple[int, int, int]


@dataclass(frozen=True)
class Examined:
    """One attention inside a subject, as far as it could be measured."""

    where: str
    core: Core
    explained: Explained | None
    weights: Weights | None = None
    scores: Scores | None = None
    intent: Intent | None = None
    why: str = ""
    operands: Operands | None = None


@dataclass(frozen=True)
class Group:
    """An attention over a whole run: the calls of one core, one for each step of a cache.

    ``q``, ``k``, ``v`` are the numbers of the sources in order, ``ends`` those at whose entries the
    output stands; none of those if it is what comes out.
    """

    where: str
    core: Core
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    ends: tuple[int, ...]


def examined(
    subject: Subject,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    changed: Mapping[str, Any] | None = None,
) -> list[Examined]:
    """Each attention of a run of the subject, with some of its settings ``changed``."""
    changed = dict(changed or {})
    found = subject.traced(**changed)
    groups = _groups(found) or _given(subject)
    side = sides(subject, found, changed, another)
    own = [side(g.q, g.k) for g in groups]
    out = []
    for group, at in told("attention", list(zip(groups, own))):
        if not group.v:
            out.append(Examined(group.where, group.core, None, why="its weights met no values"))
        else:
            try:
                stated = mask if at == "self" or "self" not in own else None
                out.append(_one(subject, found, group, stated, bias, changed, at))
            except Exception as error:  # whatever the code does with other values
                why = f"it cannot be measured: {type(error).__name__}: {error}".split("\n")[0]
                out.append(Examined(group.where, group.core, None, why=why))
    return out


def _groups(found: Found) -> list[Group]:
    """The cores of a run, those with the same parameters together."""
    by_weights: dict[tuple[frozenset[str], ...], list[Core]] = {}
    for core in found.cores:
        names = tuple(
            frozenset(found.sources[i].weight for i in x)
            for x in (core.left, core.right, core.values)
        )
        by_weights.setdefault(names, []).append(core)
    groups = []
    for n, cores in enumerate(by_weights.values()):
        q, k, v = (
            tuple(sorted(frozenset().union(*(getattr(c, side) for c in cores))))
            for side in ("left", "right", "values")
        )
        ends = tuple(c.end for c in cores if c.end is not None)
        groups.append(Group(_where(found, cores[0], n), cores[0], q, k, v, ends))
    return groups


def _given(subject: Subject) -> list[Group]:
    """Queries, keys and values that are handed in, where nothing inside can be followed."""
    names = subject.of("q", "k", "v", "x", "context")
    at = {subject.roles[n]: i for i, n in enumerate(names)}
    if not {"q", "k", "v"} <= set(at):
        return []
    q, k, v = (frozenset((at[r],)) for r in ("q", "k", "v"))
    return [Group("attention 0", Core(q, k, v), (at["q"],), (at["k"],), (at["v"],), ())]


def _where(found: Found, core: Core, n: int) -> str:
    names = [found.sources[i].weight for i in sorted(core.left | core.right | core.values)]
    parts = [name.split(".") for name in dict.fromkeys(names)]
    common = [x[0] for x in itertools.takewhile(lambda x: len(set(x)) == 1, zip(*parts))]
    if len(parts) == 1:
        common = parts[0][:-2]
    return ".".join(common) if common and found.sources else f"attention {n}"


def _one(
    subject: Subject,
    found: Found,
    group: Group,
    mask: Mask | None,
    bias: Bias | Tensor | None,
    changed: Mapping[str, Any],
    side: Side,
) -> Examined:
    where, core = group.where, group.core
    b = subject.batch
    operands = {}
    for numbers in dict.fromkeys((group.q, group.k, group.v)):
        raw = _gathered([found.sources[i].value for i in numbers], b)
        if raw is None or len({found.sources[i].weight for i in numbers}) != 1:
            why = "its queries or keys are made of several projections"
            return Examined(where, core, None, why=why)
        operands[numbers] = raw
    sources = {numbers[0]: raw for numbers, raw in operands.items()}
    weights_of = {numbers[0]: found.sources[numbers[0]].weight for numbers in operands}

    def run(values: Mapping[int, Tensor]) -> Tensor:
        replaced: dict[int, Tensor] = {}
        for numbers in operands:
            parts = [found.sources[i].value for i in numbers]
            replaced |= dict(zip(numbers, _scattered(values[numbers[0]], parts, b)))
        made = _gathered(subject.replayed(found, replaced, group.ends, **changed), b)
        assert made is not None
        return made

    ids = (group.q[0], group.k[0], group.v[0])
    given = subject.roles.get(weights_of[ids[0]]) in ("q", "x")
    weights, size = None, None
    for size, candidates in layouts(subject, core, sources, ids, given):
        weights = measured(run, sources, candidates, size, subject.precision)
        if weights is not None:
            break
    if weights is None or size is None:
        return Examined(where, core, None, why="its outputs are not weights times values")
    scores = apart(weights, _kinds(weights), found.capped)
    if scores.residual > subject.precision.close and weights.q.shape == weights.k.shape:
        r = weights.values.reading
        values = replace(weights.values, reading=replace(r, views=(r.k, r.q, r.v)))
        turned = replace(weights, q=weights.k, k=weights.q, values=values)
        other = apart(turned, _kinds(turned), found.capped)
        if other.residual < scores.residual / 10:
            weights, scores = turned, other
    sizes = (size.b, weights.values.reading.heads, size.t, size.s)
    arguments = {
        n: (subject.inputs.get(n), m)
        for n, m in subject.meanings.items()
        if side in about(subject, n)
    }
    if mask is None:
        intent = inferred(scores.seen, intended(None, arguments, sizes))
    else:
        widths = sorted({int(n) for n in stated(subject.owner, "window").values() if n > 0})
        intent = with_window(scores.seen, mask, arguments, sizes, widths)
    r = weights.values.reading
    added = None if bias is None else dense_bias(bias, sizes)
    said = explain(weights, scores, intent, where, r.heads * r.width, added)
    shown = with_examples(said.findings, weights, scores, intent, added, scores.score)
    scale = float(scores.scale.mean())
    shown = tuple(by_design(x, subject.owner, scale) for x in shown)
    said = replace(said, findings=shown)
    seen = _operands(run, sources, weights, size, ids)
    return Examined(where, core, said, weights, scores, intent, operands=seen)


def _operands(
    run: Callable[[Mapping[int, Tensor]], Tensor],
    sources: Mapping[int, Tensor],
    weights: Weights,
    size: Geometry,
    ids: tuple[int, int, int],
) -> Operands | None:
    """What the attention reads and gives in the example, in the layout that was measured."""
    r, b = weights.values.reading, size.b
    made = joined(run(sources), weights.values.merged, b, r.heads, size.t, r.value_width)
    if made is None:
        return None
    q = r.q.read(sources[r.q.source], b, r.heads, size.t, r.width)
    k = r.k.read(sources[r.k.source], b, r.key_heads, size.s, r.width)
    v = r.v.read(sources[r.v.source], b, r.key_heads, size.s, r.value_width)
    return Operands(q, k, v, made, ids)


def _gathered(parts: list[Tensor], b: int) -> Tensor | None:
    """The tensors of several steps as one (b, t, n); a single one stays as it is."""
    if len(parts) == 1:
        return parts[0]
    if any(x.numel() % (b * x.shape[-1]) for x in parts):
        return None
    return torch.cat([x.reshape(b, -1, x.shape[-1]) for x in parts], 1)


def _scattered(x: Tensor, parts: list[Tensor], b: int) -> list[Tensor]:
    """The opposite: (b, t, n) as tensors like ``parts``."""
    if len(parts) == 1:
        return [x]
    steps = [p.numel() // (b * p.shape[-1]) for p in parts]
    return [y.reshape(p.shape) for y, p in zip(x.split(steps, 1), parts)]


# --- kinds of scores ----------------------------------------------------------------------------


def _kinds(weights: Weights) -> dict[str, Score]:
    """The scores to try: dot, cosine, and dot products of rotated queries and keys."""
    d = weights.q.shape[-1]
    found: dict[str, Score] = {"dot": lambda q, k: q @ k.mT, "cosine": _cosine}
    return found | {r.name(d): r.score for r in usual(d)}


def _cosine(q: Tensor, k: Tensor) -> Tensor:
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
