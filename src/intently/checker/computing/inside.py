"""Weights as they stand inside: the operands of the two products of an attention.

Where outputs cannot be told apart into weights and values, such as where one tensor is both key and
value, the tensor that the values are multiplied with is read, and the queries and keys as they
enter their product, for several random draws of the projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.computing.groups import Group
from intently.checker.computing.measuring import DRAWS, Values, Weights, random_like
from intently.checker.computing.reading import Reading, View
from intently.checker.computing.replaying import Call
from intently.checker.computing.tracing import Core, Found

INSIDE = "as seen inside"
"""The name of a reading that was not measured from outside."""


def seen_inside(subject: Subject, found: Found, group: Group) -> Weights | None:
    """The weights of the calls of one attention, their rows joined; None if they do not fit."""
    cores = group.cores
    draw = torch.Generator().manual_seed(5)
    operations = {x for c in cores for x in (c.scored, c.mixed)}
    every: list[tuple[Tensor, Tensor, Tensor]] = []
    steps: tuple[int, ...] = ()
    for _ in range(DRAWS):
        numbers = sorted(frozenset().union(*(c.left | c.right for c in cores)))
        values = {i: 0.6 * random_like(found.sources[i].value, draw) for i in numbers}
        calls = subject.calls(found, values, operations)
        if not operations <= calls.keys():
            return None
        made = [_parts(c, calls, values, subject.batch) for c in cores]
        if any(x is None for x in made):
            return None
        parts = [x for x in made if x is not None]
        steps = tuple(w.shape[-2] for w, _, _ in parts)
        every.append(_rows(parts))
    if len({w.shape for w, _, _ in every}) != 1:
        return None
    w, q, k = (torch.stack(x).double() for x in zip(*every))
    empty = w.isnan().all(-1, keepdim=True)
    w = w.masked_fill(empty & ~empty.all(), 0.0)
    if not bool(w.isfinite().all()) or w.shape[-2:] != (q.shape[-2], k.shape[-2]):
        return None
    h, d = w.shape[2], q.shape[-1]
    views = tuple(View(n, "bhtd") for n in range(3))
    reading = Reading(views, h, h, d, d, INSIDE)
    values = Values(reading, "bthd", False, 0.0, shared=group.k == group.v)
    return Weights(w, q, k, values, subject.precision, steps)


def weights_now(subject: Subject, found: Found, group: Group) -> Tensor | None:
    """The weights (b, h, t, s) in the example itself, None if they do not stand inside."""
    operations = {x for c in group.cores for x in (c.scored, c.mixed)}
    calls = subject.calls(found, {}, operations)
    if not operations <= calls.keys():
        return None
    values = {source.number: source.value for source in found.sources}
    made = [_parts(c, calls, values, subject.batch) for c in group.cores]
    parts = [x for x in made if x is not None]
    return _rows(parts)[0] if len(parts) == len(made) else None


def weights_of_nan(subject: Subject, found: Found, group: Group) -> Tensor | None:
    """The weights as they stand inside, where the example gives NaN."""
    with suppress(Exception), torch.no_grad():  # whatever the code does when it is followed
        if bool(subject.output().isnan().any()):
            return weights_now(subject, found, group)
    return None


def _parts(
    core: Core, calls: Mapping[Any, Call], values: Mapping[int, Tensor], b: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Weights (b, h, t, s), queries and keys of one call, sized as their sources are."""
    scored, mixed = calls[core.scored], calls[core.mixed]
    if core.scored == core.mixed:
        q, k = scored.args[:2]
        w = _of_fused(mixed)
    else:
        q, k = _operands(core.scored[0], scored)
        k = k.mT
        left, right = _operands(core.mixed[0], mixed)
        w = right.mT if core.turned else left
    q, k, w = (_heads_apart(x, b) for x in (q, k, w))
    if q.shape[1] != w.shape[1] or w.shape[1] % k.shape[1]:
        return None
    k = k.repeat_interleave(w.shape[1] // k.shape[1], 1)
    q, k = _sized(q, core.left, values), _sized(k, core.right, values)
    t, s = w.shape[-2:]
    if (q.shape[-2], k.shape[-2]) == (s, t) != (t, s):
        q, k = k, q
    return (w, q, k) if (q.shape[-2], k.shape[-2]) == (t, s) else None


def as_read(core: Core, calls: Mapping[Any, Call], b: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one call (b, h, n, d), as they enter its products."""
    scored, mixed = calls[core.scored], calls[core.mixed]
    if core.scored == core.mixed:
        q, k, v = (_heads_apart(x, b) for x in scored.args[:3])
        return q, k, v
    q, k = _operands(core.scored[0], scored)
    left, right = _operands(core.mixed[0], mixed)
    q, k, v = (_heads_apart(x, b) for x in (q, k.mT, left.mT if core.turned else right))
    if q.shape[-2] == v.shape[-2] != k.shape[-2]:  # the scores are k qᵀ
        q, k = k, q
    return q, k, v


def _of_fused(call: Call) -> Tensor:
    """The weights of a fused operation: its outputs for the columns of the identity as values."""
    v = call.args[2]
    s, e = v.shape[-2:]
    columns = []
    for start in range(0, s, e):
        units = torch.zeros_like(v)
        n = min(e, s - start)
        units[..., start : start + n, :n] = torch.eye(n, dtype=v.dtype)
        out = call.function(*call.args[:2], units, *call.args[3:], **call.kwargs)
        columns.append((out if isinstance(out, Tensor) else out[0])[..., :n])
    return torch.cat(columns, -1)


def _operands(name: str, call: Call) -> tuple[Tensor, Tensor]:
    first = 1 if name in ("aten::addmm", "aten::baddbmm") else 0
    return call.args[first], call.args[first + 1]


def _heads_apart(x: Tensor, b: int) -> Tensor:
    """A batch of matrices as (b, h, t, d)."""
    if x.ndim == 4:
        return x
    if x.ndim == 2:
        return x[None, None]
    return x.unflatten(0, (b, -1)) if x.shape[0] % b == 0 else x[None]


def _sized(x: Tensor, sources: frozenset[int], values: Mapping[int, Tensor]) -> Tensor:
    """An operand without the scale that was multiplied into it before its product."""
    before = torch.cat([values[i].reshape(-1) for i in sources]).square().mean().sqrt()
    some = x[(x != 0).any(-1)]
    now = some.square().mean().sqrt() if len(some) else before
    return x * (before / now)


def _rows(calls: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """The calls of one attention as one: rows joined, keys those of the longest."""
    if len(calls) == 1:
        return calls[0]
    s = max(w.shape[-1] for w, _, _ in calls)
    w = torch.cat([torch.nn.functional.pad(w, (0, s - w.shape[-1])) for w, _, _ in calls], -2)
    return w, torch.cat([q for _, q, _ in calls], -2), calls[-1][2]
