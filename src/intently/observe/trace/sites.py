"""Sites: contractions of values with numbers that are computed from the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intently.observe.trace.axes import PRODUCTS, along, back, made_by_parameters, origin, reduced
from intently.observe.trace.graph import COPIES, Line, Node, View, moves
from intently.observe.trace.places import MOVES, places

SOFTMAX = frozenset(("_softmax", "_safe_softmax", "_sparse_softmax"))
TOTALS = frozenset(("sum", "nansum", "index_add", "scatter_add", "scatter_reduce"))
"""Operations that may add up what a quotient then divides by their result."""

DEEP = 12
"""Operations through which an axis is followed to see what it was joined of."""

STEPS = 96
"""Operations at most that are followed back from a product."""

SLACK = 0.02
"""How far from 1 a sum of weights may be, by rounding or an epsilon."""


class Axis(NamedTuple):
    """An axis of a contraction: its size, and its step in both factors and the result; 0 for none."""

    count: int
    steps: tuple[int, int, int]


@dataclass
class Contraction:
    """A sum of products: the two factors, the result, and the axes that they share."""

    node: Node
    factors: tuple[Tensor, Tensor]
    views: tuple[View, View]
    result: Tensor
    axes: list[Axis]
    rows: tuple[Axis, Tensor] | None = None
    """The rows of the result to which entries are added, and to which of them each."""

    @staticmethod
    def of_product(node: Node, args: Sequence[Any], result: Tensor) -> Contraction | None:
        """That of a matrix product."""
        first = PRODUCTS[node.name]
        (a, b), (x, y) = args[first : first + 2], node.args[first : first + 2]
        if not (isinstance(x, View) and isinstance(y, View)):
            return None
        sa, sb, so = a.stride(), b.stride(), result.stride()
        name = node.name
        if name in ("mv", "addmv"):
            axes = [Axis(a.shape[0], (sa[0], 0, so[0])), Axis(a.shape[1], (sa[1], sb[0], 0))]
        elif name == "dot":
            axes = [Axis(a.shape[0], (sa[0], sb[0], 0))]
        else:
            rows = Axis(a.shape[-2], (sa[-2], 0, so[-2]))
            inner = Axis(a.shape[-1], (sa[-1], sb[-2], 0))
            columns = Axis(b.shape[-1], (0, sb[-1], so[-1]))
            axes = [rows, inner, columns]
            if a.ndim == 3:
                axes.insert(0, Axis(a.shape[0], (sa[0], sb[0], 0 if name == "addbmm" else so[0])))
        return Contraction(node, (a, b), (x, y), result, axes)

    @staticmethod
    def of_sum(node: Node, result: Tensor) -> Contraction | None:
        """That of products entry by entry and a sum along some axes."""
        summed = node.args[0] if node.args else None
        if not isinstance(summed, View):
            return None
        mul = summed.settled().node
        if mul.name != "mul" or tuple(summed.size) != mul.size:
            return None
        x, y = mul.args[:2]
        a, b = mul.kept(0), mul.kept(1)
        if a is None or b is None or not (isinstance(x, View) and isinstance(y, View)):
            return None
        gone, n = reduced(node), len(summed.size)
        kept = iter(
            result.stride()
            if result.ndim < n
            else [s for i, s in enumerate(result.stride()) if i not in gone]
        )
        wide = [t.expand(mul.size) for t in (a, b)]
        axes = [
            Axis(
                mul.size[i], (wide[0].stride(i), wide[1].stride(i), 0 if i in gone else next(kept))
            )
            for i in range(n)
        ]
        return Contraction(node, (a, b), (x, y), result, axes)

    @staticmethod
    def of_segments(node: Node, args: Sequence[Any], result: Tensor) -> Contraction | None:
        """That of products entry by entry, each added to a row of the result."""
        axis, index, added = args[1], args[2], node.args[3]
        if not isinstance(added, View) or not isinstance(axis, int):
            return None
        mul = added.settled().node
        if mul.name != "mul" or tuple(added.size) != mul.size or result.ndim != len(mul.size):
            return None
        (x, y), (a, b) = mul.args[:2], (mul.kept(0), mul.kept(1))
        if a is None or b is None or not (isinstance(x, View) and isinstance(y, View)):
            return None
        axis %= result.ndim
        for i in range(index.ndim - 1, -1, -1):
            if index.ndim > 1 and i != axis:
                index = index.select(i, 0)
        wide = [t.expand(mul.size) for t in (a, b)]
        steps = [0 if i == axis else s for i, s in enumerate(result.stride())]
        axes = [
            Axis(n, (wide[0].stride(i), wide[1].stride(i), steps[i]))
            for i, n in enumerate(mul.size)
        ]
        rows = Axis(result.shape[axis], (0, 0, result.stride(axis))), index
        return Contraction(node, (a, b), (x, y), result, axes, rows)

    @staticmethod
    def of_one_key(node: Node, result: Tensor) -> Contraction | None:
        """That of weights of a single key, of which there is no sum to take."""
        x, y = node.args[:2]
        a, b = node.kept(0), node.kept(1)
        if a is None or b is None or not (isinstance(x, View) and isinstance(y, View)):
            return None
        if not any(map(_of_one, (x, y))):
            return None
        wide = [t.expand(node.size) for t in (a, b)]
        axes = [
            Axis(n, (wide[0].stride(i), wide[1].stride(i), result.stride(i)))
            for i, n in enumerate(node.size)
        ]
        return Contraction(node, (a, b), (x, y), result, [*axes, Axis(1, (0, 0, 0))])


def _of_one(view: View) -> bool:
    """Whether a tensor is a softmax over an axis of size 1."""
    node = view.settled().node
    while node.name in COPIES and (nexts := [x for _, x in node.views()]):
        node = nexts[0].settled().node
    return node.name in SOFTMAX and node.size[along(node)] == 1


@dataclass
class Normal:
    """What made weights a whole along their keys, and what became of them until they met values.

    ``sure`` says that it does so whatever the numbers are; else they have to be looked at.
    """

    node: Node
    sure: bool
    changes: tuple[str, ...] = ()
    dropped: tuple[Node, int] | None = None


@dataclass
class Site:
    """Where weights met values.

    ``weights`` (*b, h, t, s), ``values`` (*b, g, s, e) and ``output`` (*b, h, t, e) are those of
    the contraction, as views of its tensors; ``normal`` is None if nothing normalises the weights
    along the keys. ``heads`` says that the axis before the last two are heads.
    """

    node: Node
    weights: Tensor
    values: Tensor
    output: Tensor
    normal: Normal | None
    side: int
    contraction: Contraction
    groups: list[list[Axis]] = field(default_factory=list)
    mixing: str | None = None


# --- the normaliser -------------------------------------------------------------------------------


def normaliser(view: View, line: Line) -> Normal | None:
    """The last operation that made weights a whole along an axis."""
    left: list[tuple[View, Line, Normal]] = [(view, line, Normal(view.node, False))]
    seen: set[tuple[Node, Line]] = set()
    maybe: Normal | None = None
    for _ in range(STEPS):
        if not left:
            break
        view, line, so_far = left.pop(0)
        node = view.settled().node
        if (node, line) in seen or not node.dtype.is_floating_point:
            continue
        seen.add((node, line))
        found = node.pieces(line)
        if found is None:
            continue
        axes = {axis for axis, _, _ in found}
        if node.name in SOFTMAX and axes <= {along(node)} and (axes or node.size[along(node)] == 1):
            return Normal(node, True, so_far.changes, so_far.dropped)
        if node.entrywise:
            kind = _whole(node, found)
            if kind:
                return Normal(node, True, so_far.changes, so_far.dropped)
            if kind is None and maybe is None:
                maybe = Normal(node, False, so_far.changes, so_far.dropped)
        elif node.name == "_log_softmax" and axes <= {along(node)} and maybe is None:
            maybe = Normal(node, False, so_far.changes, so_far.dropped)
        for i, x, x_line in _onward(node, found):
            left.append((x, x_line, _after(so_far, node, i)))
    return maybe


def _onward(node: Node, found: Sequence[Any]) -> Iterator[tuple[int, View, Line]]:
    if found:
        yield from ((i, x, line) for i, x, line in back(node, found) if x.node.data)
    elif node.entrywise:  # an axis of size 1 is in all of them
        yield from ((i, x, ()) for i, x in node.sources())


def _after(so_far: Normal, node: Node, i: int) -> Normal:
    """With an operation between the normaliser and the values."""
    if is_dropout(node):
        return Normal(so_far.node, False, so_far.changes, so_far.dropped or (node, i))
    same = node.name in ("clone", "_to_copy", "copy", "alias", "detach", "lift_fresh")
    changes = so_far.changes if same else (node.name, *so_far.changes)
    return Normal(so_far.node, False, changes, so_far.dropped)


def is_dropout(node: Node) -> bool:
    """Whether an operation drops entries at random and scales the others."""
    if node.name == "native_dropout":
        return True
    if node.name not in ("mul", "div"):
        return False
    return any(not x.node.data and _random(x) for _, x in node.views())


def _random(view: View) -> bool:
    node = view.settled().node
    for _ in range(6):
        if node.name.startswith(("bernoulli", "rand", "uniform", "native_dropout")):
            return True
        nexts = [x for _, x in node.views()] if node.entrywise else []
        if not nexts:
            return False
        node = nexts[0].settled().node
    return False


def _whole(node: Node, found: Sequence[Any]) -> bool | None:
    """True if an operation divides by the sum along an axis; None if it may make it a whole.

    It may, if an argument that is constant along the axis is made of many entries.
    """
    args = list(node.sources())
    mains = [x for _, x in args if not found or moves(node.into(found, x))]
    if not mains:
        return False
    if node.name in ("div", "mul") and len(args) > 1 and _adds_up(args, mains[0]):
        return True
    others = [x for _, x in args if not any(x is y for y in mains)]
    return None if any(mixes(x) for x in others) else False


def _adds_up(args: Sequence[tuple[int, View]], top: View) -> bool:
    """Whether another argument is the sum of the first: exactly, or with something added."""
    one = top.settled().node
    left, seen = [x for _, x in args], set[Node]()
    while left and len(seen) < STEPS:
        node = left.pop().settled().node
        if node in seen:
            continue
        seen.add(node)
        if node.name in TOTALS or node.name == "linalg_vector_norm":
            if any(x.settled().node is one for _, x in node.views()):
                return node.name != "linalg_vector_norm" or node.args[1] == 1
        elif node.entrywise or node.name in (
            "gather",
            "index_select",
            "index",
            "repeat_interleave",
        ):
            left += [x for _, x in node.sources() if node is not one]
    return False


def mixes(view: View) -> bool:
    """Whether a tensor is made by an operation that mixes entries."""
    left, seen = [view], set[Node]()
    while left and len(seen) < STEPS:
        node = left.pop().settled().node
        if node in seen:
            continue
        seen.add(node)
        if node.func is not None and not node.entrywise:
            return True
        left += [x for _, x in node.sources()]
    return False


def whole(weights: Tensor) -> bool:
    """Whether weights (…, s) are shares: none below 0, and each row 1 in sum, or empty."""
    if not weights.numel():
        return False
    w = weights.detach()
    w = w if w.dtype is torch.float64 else w.float()
    sums = w.sum(-1)
    one = (sums - 1).abs() <= SLACK
    return bool((w >= -1e-6).all() & (one | (sums == 0)).all() & one.any())


# --- sites ----------------------------------------------------------------------------------------


def found(contraction: Contraction) -> Site | None:
    """The site of a contraction, if one factor is weights that are normalised along the keys."""
    best: tuple[int, Site] | None = None
    for side in (0, 1):
        view, values = contraction.views[side], contraction.views[1 - side]
        if not view.node.data or not values.node.data:
            continue
        w, v, o = (lambda x: x.steps[side]), (lambda x: x.steps[1 - side]), (lambda x: x.steps[2])
        keys = [x for x in contraction.axes if w(x) and not o(x) and (v(x) or x.count == 1)]
        line = tuple((w(x), x.count) for x in reversed(keys) if x.count != 1)
        normal = normaliser(view, line) or _moved(contraction, side)
        if normal is None:
            continue
        site = laid_out(contraction, side, normal)
        if not normal.sure and not whole(site.weights):
            continue
        site.mixing = _mixing(contraction, side, keys)
        far = len(normal.changes)
        if best is None or far < best[0]:
            best = far, site
    return best[1] if best else None


def together(sites: Sequence[Site]) -> Site:
    """The site of weights that met values in several products: of some of their keys, or of all."""
    first, parts = sites[0], dict[int, Site]()
    for site in sites:
        parts.setdefault(_start(site), site)
    some = [parts[at] for at in sorted(parts)]
    alike = {(x.weights.shape[:-1], x.values.shape[-1]) for x in some}
    if len(some) == 1 or len(alike) > 1:
        return first
    widths = [x.values.shape[:-2] for x in some]
    if len(set(widths)) > 1:
        return first
    weights, values = (
        torch.cat([getattr(x, name) for x in some], axis)
        for name, axis in (("weights", -1), ("values", -2))
    )
    output = sum(x.output for x in some)
    assert isinstance(output, Tensor) and first.normal is not None
    changes = (*first.normal.changes, "slice")
    return replace(
        first,
        weights=weights,
        values=values,
        output=output,
        normal=replace(first.normal, changes=changes),
    )


def _start(site: Site) -> int:
    """The first key of a site among those of the operation that makes its weights a whole."""
    assert site.normal is not None
    view, by = site.contraction.views[site.side], site.normal.node
    for _ in range(STEPS):
        node = view.settled().node
        if node is by and by.name in SOFTMAX:
            axis = along(by)
            step = by.stride[axis]
            return (view.offset - by.offset) % max(1, step * by.size[axis]) // max(1, step)
        if node.name not in COPIES or view.offset != node.offset:
            return 0
        view = node.args[0]
    return 0


def _moved(contraction: Contraction, side: int) -> Normal | None:
    """The softmax whose rows are the rows of weights that were laid out anew, by their places."""
    view, x = contraction.views[side], contraction.factors[side]
    left, seen = [(view, ())], set[Node]()
    while left and len(seen) < STEPS:
        at, names = left.pop(0)
        node = at.settled().node
        if node in seen:
            continue
        seen.add(node)
        if node.name in SOFTMAX:
            try:
                found = places(view, node)
            except Exception:  # an operation that takes no whole numbers
                return None
            laid = torch.empty_strided(x.shape, x.stride(), dtype=torch.int64).copy_(found)
            swapped = list(contraction.factors)
            swapped[side] = laid
            own = replace(contraction, factors=(swapped[0], swapped[1]))
            rows = laid_out(own, side, None).weights
            axis = along(node)
            step, size = node.stride[axis], node.size[axis]
            number = rows - step * (rows // step % size)
            low = torch.where(rows < 0, torch.iinfo(torch.int64).max, number).amin(-1, keepdim=True)
            if bool(((number == low) | (rows < 0)).all()) and bool((rows >= 0).any()):
                return Normal(node, True, names)
            return None
        more = node.name in (*MOVES, "copy") or node.entrywise
        before = [] if node.before is None else [at._replace(node=node.before)]
        if more or before:
            nexts = [v for _, v in node.sources()] if more else []
            left += [(v, (node.name, *names)) for v in (*nexts, *before)]
    return None


def _mixing(contraction: Contraction, side: int, keys: Sequence[Axis]) -> str | None:
    """What the keys are, if each is a part of the model and no row of a tensor."""
    made = [
        origin(contraction.views[i], tuple((x.steps[i], x.count) for x in reversed(keys)))
        for i in (side, 1 - side)
    ]
    return (
        made[1]
        if made[0] != "rows" and made[1] != "rows" and any(x.count > 1 for x in keys)
        else None
    )


def laid_out(contraction: Contraction, side: int, normal: Normal | None) -> Site:
    """A contraction with its axes in the order batch, heads, queries, keys, width."""
    batch: list[Axis] = []
    heads: list[Axis] = []
    rows: list[Axis] = []
    keys: list[Axis] = []
    width: list[Axis] = []
    for axis in _parts(contraction, side):
        w, v, o = axis.steps[side], axis.steps[1 - side], axis.steps[2]
        if not o:
            keys.append(axis)
        elif not w:
            width.append(axis)
        elif not v:
            rows.append(axis)
        elif _is_heads(contraction, side, axis):
            heads.append(axis)
        else:
            batch.append(axis)
    more = [axis for axis in rows if len(rows) > 1 and _is_heads(contraction, side, axis)]
    if len(more) < len(rows):  # queries of several heads that share their values
        heads += more
        rows = [axis for axis in rows if axis not in more]
    if not batch and normal is not None and len(normal.node.size) > 3:
        batch = [Axis(1, (0, 0, 0))]
    tensors = contraction.factors[side], contraction.factors[1 - side], contraction.result
    which = side, 1 - side, 2
    weights, values, output = (
        _taken(x, i, [*((a,) for a in batch), heads, *last])
        for x, i, last in zip(tensors, which, ((rows, keys), (keys, width), (rows, width)))
    )
    if contraction.rows is not None:
        row, index = contraction.rows
        at = torch.arange(row.count, device=index.device)
        weights = weights * (index == at[:, None])
        output = _taken(tensors[2], 2, [*((a,) for a in batch), heads, [row], width])
    groups = [*([a] for a in batch), heads, rows, keys]
    return Site(contraction.node, weights, values, output, normal, side, contraction, groups)


def _parts(contraction: Contraction, side: int) -> Iterator[Axis]:
    """The axes of a contraction, split where a factor was made of several axes."""
    for axis in contraction.axes:
        if axis.count == 1:
            continue
        best: Sequence[int] = (axis.count,)
        for i in (0, 1):
            if axis.steps[i]:
                line = ((axis.steps[i], axis.count),)
                own = finest(
                    contraction.views[i], line, 1 if i == side or not axis.steps[2] else DEEP
                )
                best = own if len(own) > len(best) else best
        inner, split = 1, []
        for count in best:
            split.append(Axis(count, tuple(s * inner for s in axis.steps)))  # type: ignore[arg-type]
            inner *= count
        yield from reversed(split)


def finest(view: View, line: Line, steps: int) -> list[int]:
    """The sizes of the axes that were joined into one, the innermost first."""
    node = view.settled().node
    pieces = node.pieces(line)
    if (
        not steps
        or not pieces
        or math.prod(n for _, _, n in pieces) != math.prod(n for _, n in line)
    ):
        return [n for _, n in line]
    found: list[int] = []
    for piece in pieces:
        carried = ((x, there) for _, x, there in back(node, [piece]) if x.node.data)
        x, there = next(((x, y) for x, y in carried if len(y) == 1), (None, ()))
        found += [piece[2]] if x is None else finest(x, there, steps - 1)
    return found


def _is_heads(contraction: Contraction, side: int, axis: Axis) -> bool:
    """Whether an axis of the weights and the output is made by parameters."""
    return any(
        axis.steps[i] and made_by_parameters(contraction.views[i], ((axis.steps[i], axis.count),))
        for i in (1 - side, side)
    )


def _taken(x: Tensor, which: int, axes: Sequence[Sequence[Axis]]) -> Tensor:
    """A tensor with its axes in another order, some of them joined."""
    flat = [a for group in axes for a in group]
    y = x.as_strided([a.count for a in flat], [a.steps[which] for a in flat], x.storage_offset())
    sizes = [math.prod(a.count for a in group) for group in axes]
    return y if [a.count for a in flat] == sizes else y.reshape(sizes)
