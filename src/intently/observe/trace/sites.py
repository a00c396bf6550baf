"""Sites: contractions of values with numbers that are computed from the data.

A contraction is a sum of products of two tensors, whatever operation takes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from operator import itemgetter, mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intently.observe.trace.graph import (
    COPIES,
    MOVES,
    PRODUCTS,
    SOFTMAX,
    Line,
    Node,
    View,
    along,
    back,
    laid,
    made_by_parameters,
    origin,
    reduced,
)
from intently.observe.trace.normaliser import (
    STEPS,
    Normal,
    normaliser,
    since_softmax,
    upstream,
    whole,
)
from intently.observe.trace.places import places


class Axis(NamedTuple):
    """An axis of a contraction: its size, and its steps in factors and result, 0 for none."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    steps: tuple[int, int, int]


@dataclass
class Contraction:
    """A sum of products: the two factors, the result, and the axes that they share."""

    node: Node
    factors: tuple[Tensor, Tensor]
    views: tuple[View, View]
    result: Tensor
    axes: list[Axis]
    summed: Axis | None = None
    """The heads, where the result is their sum."""
    rows: tuple[Axis, Tensor] | None = None
    """The rows of the result to which entries are added, and to which of them each."""
    added: tuple[Tensor, float] | None = None
    """What the operation wrote, where it adds the result times a factor to another tensor."""

    @cached_property
    def keys(self) -> list[Axis]:
        """The axes that are summed."""
        return [x for x in self.axes if x.count > 1 and x.steps[2] == 0 and all(x.steps[:2])]

    def line(self, side: int) -> Line:
        """The axes that are summed, as one in a factor."""
        return tuple([(x.steps[side], x.count) for x in reversed(self.keys)])

    @staticmethod
    def of_product(node: Node, args: Sequence[Any], result: Tensor) -> Contraction | None:
        """That of a matrix product."""
        first = PRODUCTS[node.name]
        (a, b), (x, y) = args[first : first + 2], node.args[first : first + 2]
        if not (isinstance(x, View) and isinstance(y, View)):
            return None
        name, sa, sb, so = node.name, a.stride(), b.stride(), result.stride()
        if name in ("mv", "addmv"):
            axes = [Axis(a.shape[0], (sa[0], 0, so[0])), Axis(a.shape[1], (sa[1], sb[0], 0))]
        elif name == "dot":
            axes = [Axis(a.shape[0], (sa[0], sb[0], 0))]
        else:
            rows = Axis(a.shape[-2], (sa[-2], 0, so[-2]))
            inner = Axis(a.shape[-1], (sa[-1], sb[-2], 0))
            axes = [rows, inner, Axis(b.shape[-1], (0, sb[-1], so[-1]))]
            if a.ndim == 3:
                axes.insert(0, Axis(a.shape[0], (sa[0], sb[0], 0 if name == "addbmm" else so[0])))
        return Contraction(node, (a, b), (x, y), result, axes)

    def alone(self) -> Contraction:
        """The same without what its operation adds to the product, and its factor."""
        first, alpha = PRODUCTS.get(self.node.name, 0), self.node.kwargs.get("alpha", 1)
        beta, added = self.node.kwargs.get("beta", 1), self.node.kept(0)
        if not first or added is None or (beta == 0 and alpha == 1):
            return self
        rest = (self.result - beta * added) / alpha
        result = torch.empty_strided(rest.shape, self.result.stride(), dtype=rest.dtype)
        return replace(self, result=result.copy_(rest), added=(self.result, alpha))

    def places(self) -> Tensor:
        """The number of each entry of the result, with its steps."""
        at = torch.empty_strided(self.result.shape, self.result.stride(), dtype=torch.int64)
        return at.copy_(torch.arange(at.numel()).view(at.shape))

    @staticmethod
    def of_sum(node: Node, result: Tensor) -> Contraction | None:
        """That of products entry by entry and a sum along some axes."""
        mul = _multiplied(node.args[0] if node.args else None)
        if mul is None:
            return None
        gone, steps = reduced(node), result.stride()
        if result.ndim == len(mul.size):
            steps = [s for i, s in enumerate(steps) if i not in gone]
        kept = iter(steps)
        steps = [0 if i in gone else next(kept) for i in range(len(mul.size))]
        return Contraction._of_entries(node, mul, result, steps)

    @staticmethod
    def of_segments(node: Node, args: Sequence[Any], result: Tensor) -> Contraction | None:
        """That of products entry by entry, each added to a row of the result."""
        axis, index, mul = args[1], args[2], _multiplied(node.args[3])
        if mul is None or not isinstance(axis, int) or result.ndim != len(mul.size):
            return None
        axis %= result.ndim
        if index.ndim > 1:
            index = index[tuple(slice(None) if i == axis else 0 for i in range(index.ndim))]
        steps = [0 if i == axis else s for i, s in enumerate(result.stride())]
        rows = Axis(result.shape[axis], (0, 0, result.stride(axis))), index
        made = Contraction._of_entries(node, mul, result, steps)
        return made and replace(made, rows=rows)

    @staticmethod
    def of_one_key(node: Node, result: Tensor) -> Contraction | None:
        """That of weights of a single key, of which there is no sum to take."""
        single = any(_of_one(x) for _, x in node.views)
        made = Contraction._of_entries(node, node, result, result.stride()) if single else None
        return made and replace(made, axes=[*made.axes, Axis(1, (0, 0, 0))])

    @staticmethod
    def _of_entries(
        node: Node, mul: Node, result: Tensor, steps: Sequence[int]
    ) -> Contraction | None:
        """That of products entry by entry, which ``mul`` made, with these steps in the result."""
        (x, y), (a, b) = mul.args[:2], (mul.kept(0), mul.kept(1))
        if a is None or b is None or not (isinstance(x, View) and isinstance(y, View)):
            return None
        wide = (t.expand(mul.size).stride() for t in (a, b))
        axes = [Axis(n, (p, q, r)) for n, p, q, r in zip(mul.size, *wide, steps)]
        return Contraction(node, (a, b), (x, y), result, axes)


def _multiplied(summed: Any) -> Node | None:
    """The product entry by entry of which all entries are added up; None if there is none."""
    mul = summed.settled().node if isinstance(summed, View) else None
    while mul is not None and mul.name == "_to_copy" and mul.views:
        mul = mul.views[0][1].settled().node
    return mul if mul and mul.name == "mul" and tuple(summed.size) == mul.size else None


def _of_one(view: View) -> bool:
    """Whether a tensor is a softmax over an axis of size 1."""
    node = view.settled().node
    while node.name in COPIES and (nexts := [x for _, x in node.views]):
        node = nexts[0].settled().node
    return node.name in SOFTMAX and node.size[along(node)] == 1


SIZE, SIZES = itemgetter(1), itemgetter(2)

DEEP = 12
"""Operations through which an axis is followed to see what it was joined of."""


@dataclass
class Site:
    """Where weights met values.

    ``weights`` (*b, h, t, s), ``values`` (*b, g, s, e) and ``output`` (*b, h, t, e) are those of
    the contraction, as views of its tensors, without h where a code has but t and s; ``normal`` is
    None if nothing normalises the weights along the keys. It was found ``again`` if a checkpoint
    computed it in the backward pass. ``at`` are the places of the output in what was written, for
    a sum of products; ``into`` is the tensor that stands for what was written since. ``parts`` are
    the sites of some keys each, and ``lead`` says which batch and head of a part each of it is.
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
    again: bool | None = None
    at: Tensor | None = None
    into: Tensor | None = None
    parts: Sequence[Site] = ()
    lead: Tensor | None = None

    def places(self) -> Tensor:
        """The number of each entry of the output (*b, h, t, e) in what its operation wrote."""
        if self.at is not None:
            return self.at
        numbered = replace(self.contraction, result=self.contraction.places())
        return laid_out(numbered, self.side, self.normal).output


def found(contraction: Contraction) -> Site | None:
    """The site of a contraction, if one factor is weights that are normalised along the keys."""
    best: Site | None = None
    for side in (0, 1):
        view, values = contraction.views[side], contraction.views[1 - side]
        if not (view.node.data or values.node.data):
            continue
        one, normal = _normal(contraction, side)
        if normal is None or normal.node in upstream(values):  # a power of weights, an inverse
            continue
        site = laid_out(one.alone(), side, normal)
        if not normal.sure and not whole(site.weights):
            continue
        if not view.node.data:
            site.mixing = "fixed"
        elif not values.node.data and not PRODUCTS.keys().isdisjoint(normal.changes):
            site.mixing = "parameters"  # a layer after attention
        else:
            site.mixing = _mixing(contraction, side, normal.node)
        if best is None or best.normal is None or len(normal.changes) < len(best.normal.changes):
            best = site
    contraction.node.mixing = best is not None and best.mixing is not None
    return best


def unnormalised(contraction: Contraction) -> bool:
    """Whether values meet scores, or what is computed of them entry by entry."""
    for view in contraction.views:
        node = view.settled().node
        while node.entrywise and node.name not in SOFTMAX and (more := node.sources):
            node = more[0][1].settled().node
        first = PRODUCTS.get(node.name)
        if first is not None and all(x.node.data for i, x in node.views if i >= first):
            made = map(made_by_parameters, contraction.views, map(contraction.line, (0, 1)))
            return bool(contraction.keys) and all(x is False for x in made)
    return False


def _normal(contraction: Contraction, side: int) -> tuple[Contraction, Normal | None]:
    """What makes weights a whole along the axes that are summed, or one: heads may be, too."""
    view, keys = contraction.views[side], contraction.keys
    normal = normaliser(view, contraction.line(side)) or _moved(contraction, side)
    if normal is None and len(keys) == 2:
        for axis, other in (keys, keys[::-1]):
            normal = normaliser(view, ((axis.steps[side], axis.count),))
            if normal is not None:
                return replace(contraction, summed=other), normal
    return contraction, normal


def together(sites: Sequence[Site]) -> Sequence[Site]:
    """The site of weights that met values in several products: of some of their keys, or of all.

    Its rows are laid out as those of the product in most blocks. Several, if they cannot be. What
    was learned for relative positions, beside values of the data, is no attention of its own.
    """
    sites = [x for x in sites if x.contraction.views[1 - x.side].node.data] or sites
    at = [_rows(x.contraction, x.side, x.normal) for x in sites] if len(sites) > 1 else []
    found: dict[int, tuple[Site, Tensor]] = {}
    others: dict[int, Site] = {}
    for site, known in zip(sites, at):
        if known is None or site.contraction.rows is not None:
            return sites[:1]
        rows, keys = known
        first, row = (int(x[x >= 0].min()) if bool((x >= 0).any()) else -1 for x in (keys, rows))
        found.setdefault(first, (site, rows.amax(-1)))
        if row not in others or site.weights.numel() > others[row].weights.numel():
            others[row] = site
    if len(found) < 2:
        return list(others.values()) or sites[:1]  # each of some rows or heads
    base, rows = max(found.values(), key=lambda x: x[1][..., 0].numel())
    parts = [_beside(rows, *found[first]) for first in sorted(found)]
    some = [x for x in parts if x is not None and x.output.shape == base.output.shape]
    if len(some) < len(parts):
        return [site for site, _ in found.values()]
    weights, values = (
        torch.cat([getattr(x, name) for x in some], axis)
        for name, axis in (("weights", -1), ("values", -2))
    )
    output = sum(x.output for x in some)
    assert isinstance(output, Tensor)
    return [replace(base, weights=weights, values=values, output=output, parts=some)]


def _beside(rows: Tensor, site: Site, own: Tensor) -> Site | None:
    """A site whose rows (…, t), numbers of those of a softmax, are laid out as others are."""
    place = rows.new_full((int(torch.maximum(rows.max(), own.max())) + 2,), -1)
    place[own.flatten()] = torch.arange(own.numel())
    at = place[rows]
    lead = at // own.shape[-1]
    if bool((at < 0).any() | (lead != lead[..., :1]).any()):
        return None
    weights, output = (x.reshape(-1, x.shape[-1])[at] for x in (site.weights, site.output))
    lead = lead[..., 0]
    values = site.values.reshape(-1, *site.values.shape[-2:])[lead]
    return replace(site, weights=weights, values=values, output=output, lead=lead)


def _rows(
    contraction: Contraction, side: int, normal: Normal | None
) -> tuple[Tensor, Tensor] | None:
    """For weights (…, t, s) the rows and keys of their softmax, by their places; -1 for none."""
    if normal is None or normal.node.name not in (*SOFTMAX, "_log_softmax"):
        return None
    node, x, swapped = normal.node, contraction.factors[side], list(contraction.factors)
    try:
        found = places(contraction.views[side], node)
        swapped[side] = torch.empty_strided(x.shape, x.stride(), dtype=found.dtype).copy_(found)
    except Exception:  # an operation that takes no whole numbers
        return None
    laid = replace(contraction, factors=(swapped[0], swapped[1]))
    at, axis = laid_out(laid, side, normal).weights, along(node)
    step = max(1, node.stride[axis])
    keys = at // step % node.size[axis]
    return torch.where(at < 0, -1, at - step * keys), torch.where(at < 0, -1, keys)


def _moved(contraction: Contraction, side: int) -> Normal | None:
    """The softmax whose rows are the rows of weights that were laid out anew, by their places."""
    left, seen = [(contraction.views[side], ())], set[Node]()
    while left and len(seen) < STEPS:
        at, names = left.pop(0)
        node = at.settled().node
        if node in seen:
            continue
        seen.add(node)
        since = since_softmax(node, names)
        if since is not None:
            normal = Normal(node, True, since)
            rows, _ = _rows(contraction, side, normal) or (None, None)
            if rows is None or not bool((rows >= 0).any()):
                return None
            one = (rows == rows.amax(-1, keepdim=True)) | (rows < 0)
            return normal if bool(one.all()) else None
        more = node.name in (*MOVES, "copy") or node.entrywise
        before = [] if node.before is None else [at._replace(node=node.before)]
        if more or before:
            nexts = [v for _, v in node.sources] if more else []
            left += [(v, (node.name, *names)) for v in (*nexts, *before)]
    return None


def _mixing(contraction: Contraction, side: int, made: Node) -> str | None:
    """What the keys are, if each is a part of the model and no row of a tensor.

    ``made`` made the weights a whole: along its axis, if each was added to a row of its own.
    """
    if contraction.rows is not None and made.name in SOFTMAX:
        found = origin(made.view, made.view.line(along(made)))
        return None if found == "rows" else found
    line = contraction.line(side)
    if not line or origin(contraction.views[side], line) == "rows":
        return None
    found = origin(contraction.views[1 - side], contraction.line(1 - side))
    return None if found == "rows" else found


def laid_out(contraction: Contraction, side: int, normal: Normal | None) -> Site:
    """A contraction with its axes in the order batch, heads, queries, keys, width."""
    batch, heads, rows, keys, width = (list[Axis]() for _ in range(5))
    told = False
    for joined, axis in _parts(contraction, side):
        w, v, o = axis.steps[side], axis.steps[1 - side], axis.steps[2]
        if joined is contraction.summed:
            group = heads
        elif 0 in (o, w, v):
            group = keys if not o else rows if w else width
        else:
            own = is_heads(contraction, side, axis)
            told |= own is not None
            group = heads if own else batch
        group.append(axis)
    more = [axis for axis in rows if len(rows) > 1 and is_heads(contraction, side, axis)]
    if len(more) < len(rows):  # queries of several heads that share their values
        heads, rows = [*heads, *more], [axis for axis in rows if axis not in more]
    if batch and not heads and not told:  # nothing but tensors that were given
        made = normal.node.view if normal is not None and len(normal.node.size) > 2 else None
        total, *_ = (made is not None and finest(made, made.line(-3), DEEP)) or [1]
        heads = [batch.pop()]
        while batch and math.prod(x.count for x in (batch[-1], *heads)) <= total:
            heads.insert(0, batch.pop())
    if not batch and normal is not None and len(normal.node.size) > 3:
        batch = [Axis(1, (0, 0, 0))]
    flat = not batch and not heads and normal is not None and len(normal.node.size) < 3
    lead = [*([a] for a in batch), *([] if flat else [heads])]
    tensors = contraction.factors[side], contraction.factors[1 - side], contraction.result
    which = side, 1 - side, 2
    weights, values, output = (
        laid(x, [[(a.steps[i], a.count) for a in group] for group in (*lead, *last)])
        for x, i, last in zip(tensors, which, ((rows, keys), (keys, width), (rows, width)))
    )
    if contraction.rows is not None:
        row, index = contraction.rows
        at = torch.arange(row.count, device=index.device)
        weights = weights * (index == at[:, None])
        output = laid(
            tensors[2], [[(a.steps[2], a.count) for a in x] for x in (*lead, [row], width)]
        )
    groups = [*lead, rows, keys]
    return Site(contraction.node, weights, values, output, normal, side, contraction, groups)


def _parts(contraction: Contraction, side: int) -> Iterator[tuple[Axis, Axis]]:
    """The axes of a contraction, split where a factor was made of several axes."""
    for axis in contraction.axes:
        if axis.count == 1:
            continue
        best = [axis.count]
        for i in (0, 1):
            if axis.steps[i]:
                line = ((axis.steps[i], axis.count),)
                own = finest(contraction.views[i], line, DEEP if axis.steps[2] else 1)
                best = own if len(own) > len(best) else best
        a, b, c = axis.steps
        for count, n in [*zip(best, [1, *accumulate(best, mul)])][::-1]:
            yield axis, Axis(count, (a * n, b * n, c * n))


def finest(view: View, line: Line, steps: int) -> list[int]:
    """The sizes of the axes that were joined into one, the innermost first."""
    node, sizes = view.settled().node, list(map(SIZE, line))
    pieces = node.pieces(line) if steps else None
    if not pieces or math.prod(map(SIZES, pieces)) != math.prod(sizes):
        return sizes
    found: list[int] = []
    for piece in pieces:
        ways = ((x, at) for _, x, at in back(node, [piece]) if x.node.data and len(at) == 1)
        way = next(ways, None)
        found += [piece[2]] if way is None else finest(*way, steps - 1)
    return found


def is_heads(contraction: Contraction, side: int, axis: Axis) -> bool | None:
    """Whether an axis of the weights and the output is made by parameters; None if unknown."""
    found = [
        made_by_parameters(contraction.views[i], ((axis.steps[i], axis.count),))
        for i in (1 - side, side)
        if axis.steps[i]
    ]
    return True if True in found else False if False in found else None
