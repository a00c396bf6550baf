"""Which row and step each slot of a cache holds, as gradients of the products inside read it.

Each query, key and value in a step's product is made of one row of what a projection made: of a
row of the batch, in a step. How it is turned, beside the queries and keys of the whole pass, tells
its position. Where one of these is another than it should be, the cache is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, product

import torch
from torch import Tensor

from intently.checker.examined import Examination
from intently.checker.judging.judged import Judged
from intently.checker.measuring.flow import Operand, whole
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
    t, sides = one.attention.weights.shape[-2], []
    if len(calls) < 2 or t > LONGEST:
        return []
    for name in "qkv":
        own, *parts = (getattr(x.attention, name) for x in (one, *calls))
        if own is None or None in parts:
            return []
        sides.append(_places(parts, _turned_rows(own), b, t))
    ends = list(accumulate((x.attention.weights.shape[-2] for x in calls), initial=0))
    if ends[-1] != t or None in sides:
        return []
    return [Step(*x) for x in zip(ends, ends[1:], *sides)]


def _turned_rows(x: Operand) -> list[Tensor]:
    """What a direction of each row of an operand is in its source; [] if that cannot be told."""
    y, sources = whole(x.value), [s.value for s in x.sources]
    rows = [_row(y, 0, i, sources) for i in range(y.shape[2])] if len(sources) == 1 else []
    return [row[2] for row in rows if row] if all(rows) else []


def _row(y: Tensor, b: int, i: int, sources: Sequence[Tensor]) -> tuple[int, int, Tensor] | None:
    """The source that a row is made of, the row in it, and what a direction is there."""
    if not y.requires_grad or not all(x.requires_grad for x in sources):
        return None
    way = torch.zeros_like(y)
    way[b, 0, i] = torch.linspace(1, 2, y.shape[-1], dtype=y.dtype)
    got = torch.autograd.grad(y, list(sources), way, retain_graph=True, allow_unused=True)
    flat = {n: g.reshape(-1, g.shape[-1]) for n, g in enumerate(got) if g is not None}
    top = max((float(g.abs().max()) for g in flat.values()), default=0.0)
    reached = {n: (g.abs().amax(-1) > 1e-9 * top).nonzero() for n, g in flat.items()}
    found = [(n, int(at), flat[n][at]) for n, places in reached.items() for (at,) in places]
    if len(found) != 1:
        return None
    n, at, row = found[0]
    return n, at, row[row.abs() > 1e-12 * top]


def _places(
    parts: Sequence[Operand], turned: list[Tensor], b: int, t: int
) -> list[list[list[Place | None]]] | None:
    """The places of all rows of an operand in each step; None if its sources are no steps."""
    sources = list({id(s.node): s.value for x in parts for s in x.sources}.values())
    sizes = [x.numel() // x.shape[-1] // b for x in sources]
    starts = [0, *accumulate(sizes)]

    def place(y: Tensor, row: int, i: int) -> Place | None:
        found = _row(y, row, i, sources)
        if found is None:
            return None
        n, flat, direction = found
        other, step = divmod(flat, sizes[n])
        return other, starts[n] + step, _position(direction, turned, starts[n] + step)

    if starts[-1] != t:
        return None
    made = [whole(x.value) for x in parts]
    return [[[place(y, row, i) for i in range(y.shape[2])] for row in range(b)] for y in made]


def _position(direction: Tensor, turned: list[Tensor], step: int) -> int:
    """The position that a row is turned to; its own, if that explains it."""
    size = direction.norm()
    alike = [(i, x) for i, x in enumerate(turned) if x.shape == direction.shape]
    fits = [i for i, x in alike if bool((x - direction).norm() <= 1e-5 * size)]
    return step if step in fits else min(fits, key=lambda i: abs(i - step), default=step)


# --- what is wrong with it ------------------------------------------------------------------------


def _named(read: list[Step], needed: Tensor | None) -> Iterator[tuple[str, str]]:
    """The mistakes of a cache by name, each in a sentence."""
    later = read[1:]
    exchanged = (
        f"the cached {what} of batch row {row} are those of row {place[0]}, at step {step.start}"
        for what, side in (("keys", "k"), ("values", "v"))
        for step in later
        for row, places in enumerate(getattr(step, side))
        for place in places
        if place is not None and place[0] != row
    )
    for said in islice(exchanged, 1):
        yield "cache-rows-exchanged", said
    lost = [] if needed is None else _lost(later, needed)
    yield from lost
    if any(_new_first(x, side) for x in later for side in "kv"):
        said = "new keys and values stand before the older ones, so the mask hides others"
        yield "cache-prepended", said
    elif not lost:
        pairs = (pair for x in later for pair in enumerate(zip(x.k[0], x.v[0])))
        apart = ((slot, k[1], v[1]) for slot, (k, v) in pairs if k and v and k[1] != v[1])
        for slot, k, v in islice(apart, 1):
            said = f"the key of step {k} and the value of step {v} share slot {slot}"
            yield "cache-pairs-apart", said
    yield from _turned(read)


def _lost(steps: list[Step], needed: Tensor) -> list[tuple[str, str]]:
    """Keys or values of steps that some query needs, and that are no longer there."""
    lost: list[tuple[bool, str]] = []
    for step, (what, side) in product(steps, (("key", "k"), ("value", "v"))):
        for row, places in enumerate(getattr(step, side)):
            some = needed[row, step.start : step.stop].any(0).nonzero().flatten().tolist()
            held = {p[1] for p in places if p is not None}
            missing = [j for j in some if j < step.stop and j not in held]
            if missing and None not in places:
                said = f"{what} {missing[0]} is no longer in the cache at step {step.start}"
                lost.append((missing == some[:1] != [0], f"{said}, which still needs it"))
    slug = "cache-rolled-early" if all(first for first, _ in lost) else "cache-overwritten"
    return [(slug, said) for _, said in lost[:1]]


def _new_first(step: Step, side: str) -> bool:
    """Whether what the step brings stands in its first slots, before what is older."""
    n = step.stop - step.start
    own = [p is not None and p[1] >= step.start for p in getattr(step, side)[0]]
    return all(own[:n]) and n < len(own) and not any(own[n:])


def _turned(read: list[Step]) -> Iterator[tuple[str, str]]:
    """Queries and keys at other positions than their own."""
    first: dict[tuple[int, int], int] = {}
    again: list[str] = []
    wrong: list[tuple[str, int, int, int]] = []
    for step in read:
        keys, queries = ([p for y in x for p in y if p is not None] for x in (step.k, step.q))
        new = [p for p in keys if p[1] >= step.start]
        first |= {(row, j): at for row, j, at in new}
        if len({at - j for _, j, at in (*keys, *queries)}) < 2:
            continue  # all are turned by the same too much: only differences count
        again += [
            f"the cached key of step {j} is turned again: to position {at} at step {step.start}"
            for row, j, at in keys
            if j < step.start and first.get((row, j), at) != at
        ]
        for what, turned in (("keys", new), ("queries", queries)):
            wrong += [(what, step.start, j, at) for _, j, at in turned if at != j]
    if again:
        yield "cache-rotated-twice", again[0]
    if wrong:
        what, _, i, at = wrong[0]
        one = {at - j for _, _, j, at in wrong} in ({1}, {-1})
        restarts = all(at == j - start for _, start, j, at in wrong)
        name = "rotation-off-by-one" if one and not restarts else "rotation-offset-lost"
        yield name, f"{what} of step {i} are turned to position {at}"
