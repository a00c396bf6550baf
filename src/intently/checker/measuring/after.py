"""What becomes of the rows that come out of a product with values: to which places they go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from intently.checker.measuring.flow import LAYERS, NONE, NORMS, some, whole
from intently.checker.measuring.run import Older, Run
from intently.checker.measuring.scores import gradient, value_of
from intently.observe.trace.graph import CONVOLUTIONS, PRODUCTS, Node, View

Place = tuple[int, ...]
"""The row of the batch, head, query and number of an entry of the output; -1 for several."""


@dataclass
class Outcome:
    """Where the rows (*b, h, t, e) of a product go: to what the next layer reads, or comes out.

    ``merged`` says that what one head has for one query lands on other positions, ``mixed`` that
    several queries go into one entry, ``batch`` that several rows of the batch do. ``order`` maps
    positions to queries, where each has one. ``follows`` is the layer that reads it, None for the
    output of the call.
    """

    value: Tensor
    follows: Node | None
    merged: bool = False
    mixed: bool = False
    batch: bool = False
    order: list[int] = field(default_factory=list)
    row_axes: tuple[int, ...] = ()
    plain: bool | None = None
    """Whether the entries are those of the product, in any order; None if that is not known."""
    interleaved: bool | None = None
    """Whether the heads take turns along an axis; None if that is not known."""
    places: dict[tuple[int, ...], Place] = field(default_factory=dict)
    """The rows that some entries come from."""
    numbers: bool = True
    """Whether the numbers of a head lie in their order."""
    made_of: dict[Place, Tensor] = field(default_factory=dict)
    """How an entry is made of several numbers of one row of the product."""


def outcome(run: Run, node: Node, value: Tensor, places: Tensor, made: Tensor) -> Outcome | None:
    """What becomes of the output (*b, h, t, e) of a site, whose entries lie at ``places``.

    ``made`` is what comes out of the call. None if gradients do not reach so far.
    """
    following = _reader(run, node)
    y = made if following is None else run.tensor(following[1])
    result = run.value(node)
    if not y.requires_grad or not y.numel():
        return None
    found = Outcome(y, None if following is None else following[0])
    _along(found, result, _numbered(result, places), whole(value).shape)
    if found.follows is None:
        same = y.numel() == value.numel() and y.is_floating_point()
        found.plain = same and bool(
            (y.flatten().sort().values - value.flatten().sort().values).abs().max()
            <= 1e-9 * value.abs().max().clamp(min=1e-30)
        )
    return found


def _reader(run: Run, node: Node) -> tuple[Node, View] | None:
    """The first layer that reads the output of a site, and what it reads."""
    reached, later = {node}, False
    for other in run.results:
        later = later or other is node
        if not later or other is node:
            continue
        reads = [x for _, x in other.sources if _from(x, reached)]
        if not reads:
            continue
        layer = other.name in LAYERS or other.name in NORMS
        if layer and any(run.name_of(x) for _, x in other.views if not x.node.data):
            return other, reads[0]
        reached.add(other)
    return None


def divides(run: Run, node: Node) -> bool:
    """Whether what a site gives is divided by something that is made of data, before a layer."""
    reached, later = {node}, False
    for other in run.results:
        later = later or other is node
        if not later or other is node or not any(_from(x, reached) for _, x in other.sources):
            continue
        if other.name in ("div", "reciprocal") and len(other.sources) > 1:
            return True
        if other.name not in LAYERS:
            reached.add(other)
    return False


def _from(view: View, reached: set[Node]) -> bool:
    node: Node | None = view.node
    while node is not None:
        if node in reached:
            return True
        node = node.before
    return False


def _along(
    found: Outcome, result: Tensor | Older, number: Tensor, sizes: torch.Size
) -> tuple[list[set[str]], dict[int, list[int]]]:
    """Walk along each axis of what is read, and see which query and head stand there."""
    y = found.value
    draw = torch.Generator().manual_seed(7)
    changes = [set[str]() for _ in range(y.ndim)]
    channels = set[int]()
    orders: dict[int, list[int]] = {}
    last: list[int] = []
    for _ in range(3):
        base = [int(torch.randint(n, (), generator=draw)) for n in y.shape]
        for axis, n in enumerate(y.shape):
            known: list[Place] = []
            for i in some(n, 12):
                at = (*base[:axis], i, *base[axis + 1 :])
                place = _place(y, at, result, number, sizes, found.made_of)
                if place is None:
                    continue
                known.append(place)
                found.places[at] = place
                found.mixed |= place[2] < 0
                found.batch |= place[0] < 0
            pair = [
                _place(y, (*base[:axis], i, *base[axis + 1 :]), result, number, sizes)
                for i in ((0, 1) if n > 1 else ())
            ]
            if len(pair) == 2 and pair[0] and pair[1] and pair[0][3] != pair[1][3]:
                channels.add(axis)
            if len(pair) == 2 and pair[0] and pair[1] and {p[1] for p in known} > {known[0][1]}:
                several = {p[3] for p in known} > {known[0][3]}
                if several and -1 not in (*pair[0], *pair[1]) and found.interleaved is None:
                    found.interleaved = pair[0][1] != pair[1][1]
            for side, name in ((0, "b"), (1, "h"), (2, "t"), (3, "e")):
                if len({p[side] for p in known}) > 1:
                    changes[axis].add(name)
            if len(known) == n and "t" in changes[axis]:
                orders.setdefault(axis, [p[2] for p in known])
            if len(known) == n and axis == y.ndim - 1:
                last = last or [p[3] for p in known if p[1] == known[0][1]]
    if found.mixed:
        return changes, orders
    if found.follows is not None:  # the axis that the layer sums over
        name, n = found.follows.name, y.ndim
        second = name in (*CONVOLUTIONS, "native_batch_norm", "native_group_norm") and n > 2
        right = name in PRODUCTS and PRODUCTS[name] not in dict(found.follows.sources) and n > 1
        channels.add(1 if second else n - 2 if right else n - 1)
    along = set[str]().union(*(x for i, x in enumerate(changes) if i not in channels))
    found.merged = any("t" in changes[i] for i in channels) and not along.isdisjoint("ht")
    found.row_axes = tuple(i for i, x in enumerate(changes) if "t" in x)
    alone = len(found.row_axes) == 1 and changes[found.row_axes[0]].isdisjoint("bh")
    if len(orders) == 1 and alone:
        found.order = next(iter(orders.values()))
    found.numbers = last == sorted(last) or -1 in last
    return changes, orders


def _place(
    y: Tensor,
    at: tuple[int, ...],
    result: Tensor | Older,
    number: Tensor,
    sizes: torch.Size,
    made_of: dict[Place, Tensor] | None = None,
) -> Place | None:
    """The entry of the product that an entry is made of; None if it is made of none."""
    way = torch.zeros_like(y)
    way[at] = 1.0
    g = gradient(y, result, way)
    if g is None:
        return None
    flat = g.reshape(-1).abs()
    top = float(flat.max()) if flat.numel() else 0.0
    if top == 0.0 or top != top:
        return None
    entries = (flat > max(NONE, 1e-9) * top).nonzero()[:, 0]
    entries = entries[number[entries] >= 0]
    here = number[entries]
    if not len(here):
        return None
    places = torch.stack(torch.unravel_index(here, sizes))
    same = (places == places[:, :1]).all(1)
    place = tuple(torch.where(same, places[:, 0], -1).tolist())
    if made_of is not None and place[3] < 0 <= min(place[:3]):
        made_of[place] = torch.zeros(sizes[3], dtype=g.dtype)
        made_of[place][places[3]] = g.reshape(-1)[entries]
    return place


def _numbered(result: Tensor | Older, places: Tensor) -> Tensor:
    """The number of the entry of a site that each place in memory holds, -1 for none."""
    number = torch.full((value_of(result).numel() + 1,), -1)
    number[places.flatten().clamp_min(-1)] = torch.arange(places.numel())
    return number[:-1]


def reaches(
    run: Run, node: Node, value: Tensor, places: Tensor, made: Tensor
) -> tuple[int | None, tuple[int, ...], bool] | None:
    """The axis of an output that is the batch's, those of queries, and whether these are in order.

    None if the output is not made of the rows (b, h, t, e) of a site one by one.
    """
    result = run.value(node)
    if not made.requires_grad or not made.numel():
        return None
    found, sizes = Outcome(made, None), whole(value).shape
    changes, orders = _along(found, result, _numbered(result, places), sizes)
    b, _, t, _ = sizes
    if found.mixed or found.batch or not any(changes):
        return None
    batch = [i for i, x in enumerate(changes) if "b" in x]
    time = tuple(i for i, x in enumerate(changes) if "t" in x)
    if len(batch) > 1 or (b > 1 and not batch) or (t > 1 and not time):
        return None
    if batch and batch[0] in time and made.shape[batch[0]] != b * t:
        return None
    if math.prod(made.shape[i] for i in time) not in (t, b * t):
        return None
    return (batch[0] if batch else None), time, all(x == sorted(x) for x in orders.values())


@dataclass(frozen=True)
class Rows:
    """How an output lies: the axis of the batch, and those of positions, None where one is both."""

    batch: int | None
    time: tuple[int, ...]
    sizes: tuple[int, int] = field(default=(1, 1))

    def of(self, y: Tensor) -> Tensor:
        """An output as (b, t, n)."""
        b, t = self.sizes
        if self.batch is not None and self.batch in self.time:
            return y.movedim(self.batch, 0).flatten(1).unflatten(0, (b, t))
        if self.batch is None:
            return y.movedim(self.time, tuple(range(len(self.time)))).reshape(1, t, -1)
        y = y.movedim((self.batch, *self.time), tuple(range(1 + len(self.time))))
        return y.reshape(b, t, -1)
