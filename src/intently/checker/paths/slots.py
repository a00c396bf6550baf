"""Which row and step each slot of a cache holds, as the products inside read it.

Queries, keys and values of the whole pass are replaced by random ones, and those of the steps by
the same. Then each key in a step's product is a key of the whole pass: of a row, of a step, at a
position. Where it is another than it should be, the cache is at fault, whatever else is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from intently.checker.comparing.likeness import Whole
from intently.checker.computing.groups import Group, groups_of, scattered
from intently.checker.computing.inside import as_read
from intently.checker.computing.measuring import random_like
from intently.checker.computing.replaying import Call
from intently.checker.computing.tracing import Operation
from intently.checker.report.finding import Finding

LONGEST = 32
"""Steps up to which every position is tried for every key."""
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


def misread(steps: Whole, whole: Whole) -> Iterator[Finding]:
    """What the caches of attentions hold that they should not, one after the other."""
    intents = {x.where: x.intent for x in whole.cores}
    for where, read in _read(steps, whole):
        intent = intents.get(where)
        needed = None if intent is None else intent.allowed.any(1)
        for name, said in _named(read, needed):
            yield Finding(name, said, where=where)


# --- what is read ---------------------------------------------------------------------------------


def _read(steps: Whole, whole: Whole) -> Iterator[tuple[str, list[Step]]]:
    """For each attention that runs in steps, what each of them reads."""
    b = whole.subject.batch
    theirs = {g.where: g for g in groups_of(whole.found)}
    pairs = [(g, theirs[g.where]) for g in groups_of(steps.found) if g.where in theirs]
    pairs = [(a, w) for a, w in pairs if _in_turn(a) and len(w.cores) == 1]
    if not pairs:
        return
    draw = torch.Generator().manual_seed(7)
    numbers = dict.fromkeys(i for _, w in pairs for i in (w.q[0], w.k[0], w.v[0]))
    values = {i: random_like(whole.found.sources[i].value, draw) for i in numbers}
    rows = {i: x.reshape(b, -1, x.shape[-1]) for i, x in values.items()}
    t = next(iter(rows.values())).shape[1]
    if any(x.shape[1] != t for x in rows.values()):
        return
    given: dict[int, Tensor] = {}
    for a, w in pairs:
        for mine, other in ((a.q, w.q[0]), (a.k, w.k[0]), (a.v, w.v[0])):
            parts = [steps.found.sources[i].value for i in mine]
            if sum(x.numel() for x in parts) != rows[other].numel():
                return  # steps that run earlier ones again
            given |= dict(zip(mine, scattered(rows[other], parts, b)))
    calls = steps.subject.calls(steps.found, given, _operations(a for a, _ in pairs))
    moves = range(t) if whole.found.turned and t <= LONGEST else range(1)
    moved: list[Mapping[Operation, Call]] = []
    for by in moves:
        shifted = {i: rows[i].roll(by, 1).reshape(x.shape) for i, x in values.items()}
        wanted = _operations(w for _, w in pairs)
        moved.append(whole.subject.calls(whole.found, shifted, wanted))
    for a, w in pairs:
        sides = [_places(x, w, b) for x in moved]
        known = [torch.stack([x[n] for x in sides], 2) for n in range(3)]  # (b, t, by, n)
        read, start = [], 0
        for core, i in zip(a.cores, a.q):
            n = steps.found.sources[i].value.numel() // (b * rows[w.q[0]].shape[-1])
            parts = as_read(core, calls, b)
            found = [_found(x, y, b, start) for x, y in zip(parts, known)]
            read.append(Step(start, start + n, *found))
            start += n
        yield a.where, read


def _in_turn(group: Group) -> bool:
    """Whether each call has queries, keys and values of its own."""
    n = len(group.cores)
    return n > 1 and n == len(group.q) == len(group.k) == len(group.v)


def _operations(groups: Iterator[Group]) -> set[Operation]:
    return {x for g in groups for c in g.cores for x in (c.scored, c.mixed)}


def _places(calls: Mapping[Operation, Call], group: Group, b: int) -> list[Tensor]:
    return [_directions(x) for x in as_read(group.cores[0], calls, b)]


def _directions(x: Tensor) -> Tensor:
    """Vectors (b, h, n, d) as (b, n, h · d), without their lengths."""
    x = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    return x.transpose(1, 2).flatten(2)


def _found(x: Tensor, known: Tensor, b: int, start: int) -> list[list[Place | None]]:
    """The place of each vector, the likeliest if there are several."""
    mine = _directions(x)
    _, t, moves, _ = known.shape
    if mine.shape[-1] != known.shape[-1]:
        return [[None] * mine.shape[1] for _ in range(b)]
    off = torch.cdist(mine.flatten(0, 1), known.flatten(0, 2))
    near = (off < 1e-5).reshape(b, mine.shape[1], b, t, moves)
    out: list[list[Place | None]] = [[None] * mine.shape[1] for _ in range(b)]
    best: dict[tuple[int, int], tuple[bool, bool, int]] = {}
    for row, slot, other, at, by in near.nonzero().tolist():
        j = (at - by) % t  # ``known`` has at ``at`` what was made at j
        rank = at != j, other != row, abs(j - start - slot)
        if rank < best.get((row, slot), (True, True, 2 * t)):
            best[row, slot] = rank
            out[row][slot] = other, j, at
    return out


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
