"""Which row and step each slot of a cache holds, as gradients of the products inside read it.

Each query, key and value in a step's product is made of one row of what a projection made: of a
row of the batch, in a step. How it is turned, beside the queries and keys of the whole pass, tells
its position. Where one of these is another than it should be, the cache is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.checker.examined import Examination
from intently.checker.judging.judged import Judged
from intently.checker.measuring.flow import NONE, Operand, Source, whole
from intently.checker.report.finding import Finding

LONGEST = 32
"""Steps up to which every slot is read."""
Place = tuple[int, int, int]
"""The row of the batch, the step that it was made in, and the position that it is turned to."""


@dataclass(frozen=True)
class Step:
    """What one step reads: for each row of the batch, the places of its queries and slots.

    None stands for what is nowhere in the whole pass.
    """

    start: int
    stop: int
    q: list[list[Place | None]]
    k: list[list[Place | None]]
    v: list[list[Place | None]]


def misread(steps: Examination, plain: Examination) -> Iterator[Finding]:
    """What the caches of attentions hold that they should not, one after the other."""
    for one in plain.attentions:
        calls = [x for x in steps.attentions if x.where == one.where]
        read = _read(calls, one, plain.subject.batch)
        needed = None if one.intent is None else one.intent.allowed.any(1)
        for name, said in _named(read, needed) if read else ():
            yield Finding(name, said, where=one.where)


# --- what is read ---------------------------------------------------------------------------------


def _read(calls: Sequence[Judged], one: Judged, b: int) -> list[Step]:
    """What each step of an attention reads; [] if that cannot be told."""
    a, t = one.attention, one.attention.weights.shape[-2]
    if len(calls) < 2 or t > LONGEST or a.q is None or a.k is None:
        return []
    sides: dict[str, list[list[list[Place | None]]]] = {}
    for name in "qkv":
        own: Operand = getattr(a, name)
        parts = [getattr(x.attention, name) for x in calls]
        if any(x is None for x in parts):
            return []
        turned = _turned_rows(own)
        found = _places(parts, turned, b, t)
        if found is None:
            return []
        sides[name] = found
    read, start = [], 0
    for n, x in enumerate(calls):
        stop = start + x.attention.weights.shape[-2]
        read.append(Step(start, stop, sides["q"][n], sides["k"][n], sides["v"][n]))
        start = stop
    return read if start == t else []


def _turned_rows(x: Operand) -> list[Tensor] | None:
    """What a direction of each row of an operand is in its source: alike where nothing turns it."""
    if len(x.sources) != 1:
        return None
    y, source, out = whole(x.value), x.sources[0].value, []
    for i in range(y.shape[2]):
        found = _row(y, 0, i, [source])
        if found is None:
            return None
        out.append(found[2])
    return out


def _row(y: Tensor, b: int, i: int, sources: Sequence[Tensor]) -> tuple[int, int, Tensor] | None:
    """The source that a row is made of, the row in it, and what a direction is there."""
    way = torch.zeros_like(y)
    way[b, 0, i] = torch.linspace(1, 2, y.shape[-1], dtype=y.dtype)
    known = [x for x in sources if x.requires_grad]
    if not y.requires_grad or len(known) != len(sources):
        return None
    got = torch.autograd.grad(y, list(sources), way, retain_graph=True, allow_unused=True)
    best: tuple[int, int, Tensor] | None = None
    top = max((float(g.abs().max()) for g in got if g is not None), default=0.0)
    for n, g in enumerate(got):
        if g is None or top == 0.0:
            continue
        flat = g.reshape(-1, g.shape[-1])
        rows = (flat.abs().amax(-1) > max(NONE, 1e-9) * top).nonzero()[:, 0].tolist()
        if len(rows) > 1 or (rows and best is not None):
            return None
        if rows:
            row = flat[rows[0]]
            best = n, rows[0], row[row.abs() > 1e-12 * top]
    return best


def _places(
    parts: Sequence[Operand], turned: list[Tensor] | None, b: int, t: int
) -> list[list[list[Place | None]]] | None:
    """The places of all rows of an operand in each step; None if its sources are no steps."""
    sources: dict[int, Source] = {}
    for x in parts:
        for s in x.sources:
            sources[id(s.node)] = s
    every = list(sources.values())
    starts, total = [], 0
    for s in every:
        starts.append(total)
        total += s.value.numel() // s.value.shape[-1] // b
    if total != t:
        return None
    out: list[list[list[Place | None]]] = []
    for x in parts:
        y = whole(x.value)
        rows: list[list[Place | None]] = []
        for row in range(b):
            rows.append([])
            for i in range(y.shape[2]):
                found = _row(y, row, i, [s.value for s in every])
                if found is None:
                    rows[-1].append(None)
                    continue
                n, flat, direction = found
                size = every[n].value.numel() // every[n].value.shape[-1] // b
                other, step = flat // size, starts[n] + flat % size
                rows[-1].append((other, step, _position(direction, turned, step)))
        out.append(rows)
    return out


def _position(direction: Tensor, turned: list[Tensor] | None, step: int) -> int:
    """The position that a row is turned to; its own, if that explains it."""
    if turned is None:
        return step
    size = direction.norm()
    fits = [
        i
        for i, x in enumerate(turned)
        if x.shape == direction.shape and bool((x - direction).norm() <= 1e-5 * size)
    ]
    return step if step in fits or not fits else min(fits, key=lambda i: abs(i - step))


# --- what is wrong with it ------------------------------------------------------------------------


def _named(read: list[Step], needed: Tensor | None) -> Iterator[tuple[str, str]]:
    """The mistakes of a cache by name, each in a sentence."""
    later = read[1:]
    for what, side in (("keys", "k"), ("values", "v")):
        found = _of_other_rows(later, side)
        if found:
            row, other, at = found
            said = f"the cached {what} of batch row {row} are those of row {other}, at step {at}"
            yield "cache-rows-exchanged", said
            break
    lost = None if needed is None else _lost(later, needed)
    if lost:
        yield lost
    first = next((x for x in later if _new_first(x, "k") or _new_first(x, "v")), None)
    if first is not None:
        said = "new keys and values stand before the older ones, so the mask hides others"
        yield "cache-prepended", said
    elif not lost:
        yield from _apart(later)
    yield from _turned(read)


def _of_other_rows(steps: list[Step], side: str) -> tuple[int, int, int] | None:
    for step in steps:
        for row, places in enumerate(getattr(step, side)):
            for place in places:
                if place is not None and place[0] != row:
                    return row, place[0], step.start
    return None


def _lost(steps: list[Step], needed: Tensor) -> tuple[str, str] | None:
    """Keys or values of steps that some query needs, and that are no longer there."""
    rolled = True
    said = ""
    for step in steps:
        for side in ("k", "v"):
            for row, places in enumerate(getattr(step, side)):
                if None in places:
                    continue
                held = {p[1] for p in places if p is not None}
                some = needed[row, step.start : step.stop].any(0).nonzero().flatten().tolist()
                missing = [j for j in some if j < step.stop and j not in held]
                if not missing:
                    continue
                rolled = rolled and missing[0] == some[0] > 0 and len(missing) == 1
                what = "key" if side == "k" else "value"
                said = said or (
                    f"{what} {missing[0]} is no longer in the cache at step {step.start}, "
                    "which still needs it"
                )
    if not said:
        return None
    return ("cache-rolled-early" if rolled else "cache-overwritten"), said


def _new_first(step: Step, side: str) -> bool:
    """Whether what the step brings stands in its first slots, before what is older."""
    places = getattr(step, side)[0]
    n = step.stop - step.start
    own = [p is not None and p[1] >= step.start for p in places]
    return all(own[:n]) and n < len(own) and not any(own[n:])


def _apart(steps: list[Step]) -> Iterator[tuple[str, str]]:
    for step in steps:
        for slot, (k, v) in enumerate(zip(step.k[0], step.v[0])):
            if k is not None and v is not None and k[1] != v[1]:
                said = f"the key of step {k[1]} and the value of step {v[1]} share slot {slot}"
                yield "cache-pairs-apart", said
                return


def _turned(read: list[Step]) -> Iterator[tuple[str, str]]:
    """Queries and keys at other positions than their own."""
    first: dict[tuple[int, int], int] = {}
    again, moved = "", []
    for step in read:
        keys = [p for places in step.k for p in places if p is not None]
        queries = [p for places in step.q for p in places if p is not None]
        first |= {(row, j): at for row, j, at in keys if j >= step.start}
        if len({at - j for _, j, at in (*keys, *queries)}) < 2:
            continue  # all are turned by the same too much: only differences count
        for row, j, at in keys:
            if j >= step.start:
                moved.append(("keys", step.start, j, at))
            elif first.get((row, j), at) != at:
                again = again or (
                    f"the cached key of step {j} is turned again: to position {at} at step "
                    f"{step.start}"
                )
        moved += [("queries", step.start, i, at) for _, i, at in queries]
    if again:
        yield "cache-rotated-twice", again
    wrong = [x for x in moved if x[3] != x[2]]
    if wrong:
        what, _, i, at = wrong[0]
        said = f"{what} of step {i} are turned to position {at}"
        by = {x[3] - x[2] for x in wrong}
        restarts = all(x[3] == x[2] - x[1] for x in wrong)
        one = len(by) == 1 and abs(next(iter(by))) == 1
        yield ("rotation-off-by-one" if one and not restarts else "rotation-offset-lost"), said
