"""Compare what a recording holds with what really ran, row by row.

A softmax is found if its weights equal those of one entry of the recording, all rows in order. If
none does, its rows may lie in entries that are laid out otherwise: steps of a generation joined,
heads on another axis, keys that no row sees left out or added, keys in another order, windows that
overlap as one matrix. A row of the recording that is zero or uniform stands for one that may attend
nothing, whose softmax is uniform, over other keys where a cache has empty places. A softmax that is
NaN is not compared. Where a model has a sink, which takes a part of every row, that part may be
applied to the softmax or to the output: rows are compared by their shares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.breadth.marks import Attended
from intently.errors import IntentlyError

CLOSE = 1e-4
PAIRS = 4_000_000_000
"""Comparisons of single weights beyond which rows are not looked up in other layouts."""

RIGHT, SAID, SILENT, WRONG, CHANGED = "right", "said", "silent miss", "wrong", "output changed"
STATES = (RIGHT, SAID, SILENT, CHANGED, WRONG)
"""What one watched run is found to be, from good to bad."""


class Held(NamedTuple):
    """One entry of a recording, its weights as rows (n, s) in float64, or why there are none.

    A matrix of it has ``length`` rows.
    """

    name: str
    verified: bool | None
    rows: Tensor | None
    why: str | None
    length: int = 1


class Finding(NamedTuple):
    """The state of one watched run, the reason if it is not right, and how its calls were checked.

    ``checked`` are the numbers of calls that are verified, not compared, and refused.
    """

    state: str
    why: str = ""
    checked: tuple[int, int, int] = (0, 0, 0)


def held(recording: Any) -> list[Held]:
    """Read every entry, verified or not."""
    found = []
    for entry in recording.calls:
        rows, why, length = None, entry.why, 1
        try:
            if entry.verified is not False:
                weights = entry.attention().dense().detach().double()
                rows, length = weights.reshape(-1, weights.shape[-1]), weights.shape[-2]
        except IntentlyError as error:
            why = str(error)
        found.append(Held(entry.name, entry.verified, rows, why, length))
    return found


def judge(
    truth: Sequence[Attended],
    others: Sequence[Attended],
    recording: Any,
    factors: Sequence[Tensor] = (),
) -> Finding:
    """Whether a recording holds all of ``truth`` and nothing else that it calls verified.

    ``others`` are softmaxes that are no attention, ``factors`` those of products: an entry may hold
    them, too.
    """
    entries = held(recording)
    used: set[int] = set()
    missed = [x for x in truth if not _found(x, entries, used)]
    if wrong := _wrong(entries, used, [*truth, *others], factors):
        return Finding(WRONG, f"verified, and nothing that ran gives it: {_names(wrong)}")
    if not missed:
        return Finding(RIGHT)
    coverage = recording.coverage()
    silent, reasons = [], Counter[str]()
    for module in dict.fromkeys(x.module for x in missed):
        why = _said(module, entries, coverage)
        if why is None:
            silent.append(module)
        else:
            reasons[why] += 1
    how = ", ".join(sorted({x.how for x in missed}))
    count = f"{len(missed)} of {len(truth)} ({how})"
    if silent:
        return Finding(SILENT, f"{count} missed in {_names(silent)}")
    return Finding(SAID, f"{count}: {'; '.join(why for why, _ in reasons.most_common(3))}")


def _found(truth: Attended, entries: Sequence[Held], used: set[int]) -> bool:
    """Whether an entry holds the weights; entries of near modules are asked first."""
    order = sorted(range(len(entries)), key=lambda i: _distance(truth.module, entries[i].name))
    close = CLOSE + truth.rounding
    for weights in truth.forms():
        for i in order:
            rows = entries[i].rows
            if i not in used and rows is not None and _same(weights, rows, close):
                used.add(i)
                return True
    for weights in truth.forms():
        left = ~weights.isnan().any(-1)
        for i in order:
            rows = entries[i].rows
            if rows is None or _distance(truth.module, entries[i].name) > 2:
                continue
            held_here = among(weights[left], rows, close)
            if held_here.any():
                left[left.clone()] = ~held_here
            if not left.any():
                return True
        if truth.beams and _one_of_each(left, truth.batch, truth.beams):
            return True
    near = [x.rows for x in entries if _distance(truth.module, x.name) <= 2]
    pieces = [[among(x, y, close) for y in near if y is not None] for x in truth.pieces()]
    return len(pieces) > 1 and all(any(x.all() for x in found) for found in pieces)


def _one_of_each(left: Tensor, batch: int, beams: int) -> bool:
    """Whether one beam at least of every text has all its rows: those given up are not kept."""
    if len(left) % (batch * beams):
        return False
    return bool((~left).view(batch, beams, -1).any(1).all())


def _wrong(
    entries: Sequence[Held], used: set[int], truth: Sequence[Attended], factors: Sequence[Tensor]
) -> list[str]:
    """The verified entries that are no factor with a row of no softmax, or that join two texts."""
    found = []
    rounded = CLOSE + max((x.rounding for x in truth), default=0.0)
    for i, entry in enumerate(entries):
        if i in used or not entry.verified or entry.rows is None:
            continue
        left, joined = ~_nothing(entry.rows), False
        for x in sorted(truth, key=lambda x: _distance(x.module, entry.name)):
            for weights in x.forms(entry.rows.shape[-1]):
                if _large(entry.rows, weights):
                    left[:] = False  # not looked up, so nothing is said against it
                elif left.any():
                    close = CLOSE + x.rounding
                    left[left.clone()] = ~among(entry.rows[left], weights, close)
                    joined |= not left.any() and _joins(entry, weights, close, x.batch)
        if joined or (left.any() and not _is_factor(entry.rows, factors, rounded)):
            found.append(entry.name)
    return found


def _joins(entry: Held, weights: Tensor, close: float, batch: int) -> bool:
    """Whether a matrix wider than the softmax holds rows of several texts: batch comes first."""
    rows = entry.rows
    if rows is None or rows.shape[-1] <= weights.shape[-1] or len(weights) % batch:
        return False
    texts = torch.stack([among(rows, x, close) for x in weights.chunk(batch)])
    alone = (texts & (texts.sum(0) == 1)).view(batch, -1, entry.length)
    return bool((alone.any(-1).sum(0) > 1).any())


def _is_factor(rows: Tensor, factors: Sequence[Tensor], close: float) -> bool:
    """Whether rows are a factor of a product, or shares of features of queries times keys'."""
    wide = [x.double() for x in factors if x.shape[-1] == rows.shape[-1]]
    left = [x.double() for x in factors if x.shape[:-1].numel() == len(rows)]
    pairs = [(x, y) for x in left for y in wide if (*x.shape[:-2], x.shape[-1]) == y.shape[:-1]]
    shares = (z / z.sum(-1, keepdim=True) for z in (x @ y for x, y in pairs))
    return any(_same(x.flatten(0, -2), rows, close) for made in (wide, shares) for x in made)


def _whole(rows: Tensor) -> Tensor:
    """Rows that sum to less than 1 made to sum to 1: a sink takes the rest."""
    sums = rows.sum(-1, keepdim=True)
    return torch.where((sums > 1e-7) & (sums < 1 - 1e-6), rows / sums, rows)


def _nothing(rows: Tensor) -> Tensor:
    """Which rows of a recording stand for a query that may attend nothing: zero, or all alike."""
    some = rows.abs() > 1e-12
    least = rows.masked_fill(~some, torch.inf).amin(-1)
    alike = (some.sum(-1) > 1) & ((rows.amax(-1) - least).abs() < 1e-6)
    return ~some.any(-1) | alike


def _blind(rows: Tensor) -> Tensor:
    """Which rows of a softmax may be those of a query that may attend nothing."""
    return rows.isnan().any(-1) | _nothing(rows)


def _same(weights: Tensor, rows: Tensor, close: float) -> bool:
    """Whether all rows are equal, in order; keys that nobody sees may be left out at either end."""
    if len(weights) != len(rows):
        return False
    weights, rows = _whole(weights), _whole(rows)
    wide, narrow = (weights, rows) if weights.shape[-1] >= rows.shape[-1] else (rows, weights)
    for start in {0, wide.shape[-1] - narrow.shape[-1]}:
        padded = torch.zeros_like(wide)
        padded[:, start : start + narrow.shape[-1]] = narrow
        near = ~((wide - padded).abs() > close).any(-1) & ~padded.isnan().any(-1)
        near &= ~wide.isnan().any(-1)
        free = weights.isnan().any(-1) | (_nothing(rows) & _blind(weights))
        if bool((near | free).all()):
            return True
    return False


def among(rows: Tensor, pool: Tensor, close: float) -> Tensor:
    """Which rows are ``close`` to one of ``pool``: shifted, without zeros, or in another order."""
    found = torch.zeros(len(rows), dtype=torch.bool)
    if not len(rows) or not len(pool):
        return found
    if bool(_blind(pool).any()):
        found |= _blind(rows)
    if _large(rows, pool):
        return found
    rows, pool = _whole(rows.nan_to_num(-1.0)), _whole(pool.nan_to_num(-2.0))
    n, m = rows.shape[-1], pool.shape[-1]
    for start in range(abs(n - m) + 1) if abs(n - m) < 64 else (0, abs(n - m)):
        found |= _nearest(_placed(rows, start, m), _placed(pool, start, n)) <= close
    if n != m and not found.all():
        width = min(n, m)
        ordered = [x.sort(-1, descending=True).values for x in (rows, pool)]
        empty = [(x[:, width:].abs() <= 1e-9).all(-1) for x in ordered]
        distance = torch.cdist(*(x[:, :width] for x in ordered), p=torch.inf)
        distance[:, ~empty[1]] = torch.inf
        found |= empty[0] & (distance.amin(-1) <= close)
    return found


def _large(rows: Tensor, pool: Tensor) -> bool:
    return len(rows) * len(pool) * max(rows.shape[-1], pool.shape[-1]) > PAIRS


def _placed(x: Tensor, start: int, width: int) -> Tensor:
    """Rows among zeros, from ``start``, if ``width`` is larger than theirs."""
    if x.shape[-1] >= width:
        return x
    out = x.new_zeros(len(x), width)
    out[:, start : start + x.shape[-1]] = x
    return out


def _nearest(rows: Tensor, pool: Tensor) -> Tensor:
    """The distance of each row from the nearest of a pool, by the largest difference."""
    return torch.cat([torch.cdist(x, pool, p=torch.inf).amin(-1) for x in rows.split(1024)])


def _distance(module: str, name: str) -> int:
    """How far apart two modules are in the tree; 0 for the same, -1 for inside the other."""
    a, b = (x.split(".") if x else [] for x in (module, name))
    common = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return len(a) + len(b) - 2 * common


def _said(module: str, entries: Sequence[Held], coverage: Any) -> str | None:
    """What the recording says on a module it has missed something of, None if nothing."""
    near = {n: why for n, why in coverage.unseen.items() if _near(module, n)}
    if near:
        return shortened(next(iter(near.values())))
    for entry in entries:
        if _near(module, entry.name) and entry.verified is not True:
            return shortened(f"{'refused' if entry.verified is False else 'open'}: {entry.why}")
    tail = module.rpartition(".")[0]
    known = [re.escape(x) for x in (module, tail) if x]
    own = [] if tail else [r"\w+"]  # the model has the name of its class
    told = re.compile(rf"(Not every call of )?({'|'.join(known + own)})(\.[\w.]+)?(:| was )")
    notes = (x for x in coverage.notes if told.match(x) and "are kept, because" not in x)
    return next(map(shortened, notes), None)


def _near(module: str, name: str) -> bool:
    """Whether a name tells where to look: the module, one inside it, or its nearest two parents."""
    a, b = f"{module}.", f"{name}."
    inside = b.startswith(a) or (a.startswith(b) and bool(name))
    return not module or (inside and _distance(module, name) <= 2)


def shortened(text: str, most: int = 110) -> str:
    """Return a text in one line, cut after ``most`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _names(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(x or "the model" for x in names))
    return ", ".join(found[:2]) + (f" and {len(found) - 2} more" if len(found) > 2 else "")
