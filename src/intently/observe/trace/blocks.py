"""Attention in blocks: which queries and keys of the text its rows and columns are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from intently.core.matrix.blocks import InBlocks
from intently.observe.trace.graph import MOVES, PRODUCTS, Node, Part, View
from intently.observe.trace.places import NOWHERE, places
from intently.observe.trace.sites import DEEP, Site, finest, is_heads

STEPS = 64
SLACK = 0.02
"""How far the blocks in their places may be from the output, of its largest entry."""


class Located(NamedTuple):
    """The positions (*b, h, n) of rows among ``size``; -1 for padding."""

    at: Tensor
    size: int


class Placed(NamedTuple):
    """A site as one matrix over the text: weights in blocks, values (*b, h, s, e) and output.

    ``ordered`` is a tensor (*b, h, …) of the site with its blocks apart, (*b, h, n, …).
    """

    weights: InBlocks
    values: Tensor
    output: Tensor
    ordered: Callable[[Tensor], Tensor]


def in_place(site: Site, asked: View | None, groups: Sequence[Sequence[Part]]) -> Placed | None:
    """The site with its blocks in their places; None if all queries share their keys.

    ``asked`` are its queries, if they are known, with the axes batch, heads and rows in ``groups``.
    """
    if len(site.groups) < 4:
        return None
    keys = _keys(site)
    if keys is None:
        return None
    found, lead = None if asked is None else _sources(asked, groups), range(len(site.groups) - 2)
    queries = None if found is None else _positions(*found)
    both = [keys.at] if queries is None else [keys.at, queries.at]
    apart = [i for i in lead if any(_differs(at, i) for at in both)]
    known = (is_heads(site.contraction, site.side, x) is not None for x in site.groups[-3])
    if not apart or site.contraction.rows is not None or (lead[-1] in apart and any(known)):
        return None
    assert site.normal is not None
    by, same = site.normal.node, [i for i in lead if i not in apart]
    if queries is None or not any(_differs(queries.at, i) for i in apart):
        n = math.prod(site.weights.shape[i] for i in (*apart, site.weights.ndim - 2))
        queries = Located(torch.arange(n).view(-1, site.weights.shape[-2]), n)
        rows: Tensor | None = queries.at
    else:
        rows = _shared(queries.at, apart, same)
    columns = _shared(keys.at, apart, same)
    if rows is None or columns is None:
        return None

    def ordered(x: Tensor) -> Tensor:
        """(*b, h, n, …) of a tensor (*b, h, …) whose blocks are among its leading axes."""
        wide = x.expand(*site.weights.shape[: len(lead)], *x.shape[len(lead) :])
        wide = wide.permute(*same, *apart, len(lead), len(lead) + 1)
        made = wide.flatten(len(same), len(lead) - 1)
        return made if len(same) > 1 or len(by.size) <= 3 else made[None]  # a batch of one

    weights = InBlocks(ordered(site.weights), rows, columns, queries.size, keys.size)
    values = _laid(ordered(site.values), columns, keys.size)
    output = _laid(ordered(site.output), rows, queries.size)
    for x, at, blocks in ((values, columns, site.values), (output, rows, site.output)):
        real = (at >= 0)[..., None]  # rows that come several times are the same
        if not torch.equal(x[..., at.clamp_min(0), :] * real, ordered(blocks) * real):
            return None
    off = (weights.matmul(values) - output).abs().max()
    if bool(off > SLACK * output.abs().max()):  # what is attended beside the text counts, too
        return None
    return Placed(weights, values, output, ordered)


def of_sources(site: Site) -> Site:
    """The site of a sum over edges, its columns the rows from which their values were copied."""
    found = _keys(site)
    at = None if found is None else found.at.flatten(0, -2)
    if found is None or at is None or bool((at < 0).any() | (at != at[:1]).any()):
        return site
    values = _laid(site.values[..., None, :, :], at[:1], found.size)
    if not torch.equal(values[..., at[0], :], site.values):  # each edge has values of its own
        return site
    weights = site.weights.new_zeros(*site.weights.shape[:-1], found.size)
    return replace(site, weights=weights.index_add(-1, at[0], site.weights), values=values)


def _keys(site: Site) -> Located | None:
    """The positions of the keys, by where their values come from."""
    found: list[Tensor] = []
    roots = set[Node]()
    for part in site.parts or [site]:
        side = 1 - part.side
        steps = [[(x.steps[side], x.count) for x in group] for group in part.groups]
        made = _sources(part.contraction.views[side], [*(steps[:-2] or [[]]), steps[-1]])
        if made is None:
            return None
        at, root = made
        found.append(at if part.lead is None else at.flatten(0, -2)[part.lead])
        roots.add(root)
    return _positions(torch.cat(found, -1), roots.pop()) if len(roots) == 1 else None


def _sources(view: View, groups: Sequence[Sequence[Part]]) -> tuple[Tensor, Node] | None:
    """The tensor that some rows come from, and the places (*b, h, n) of their entries in it.

    ``groups`` are the axes batch, heads and rows of a view, as steps and sizes.
    """
    some, node = [part for group in groups for part in group], _root(view)
    part = View(view.node, tuple(n for _, n in some), tuple(s for s, _ in some), view.offset)
    try:
        found = places(part, node).reshape([math.prod(n for _, n in x) for x in groups])
        for _ in range(STEPS):
            step = _before(node)
            if step is None:
                break
            before, own = step
            root, size = _root(before), _without(own, before.size)
            there = places(before._replace(size=size, stride=_without(own, before.stride)), root)
            found = torch.where(found < 0, NOWHERE, there.flatten()[_number(found, node, own)])
            node = root
    except Exception:  # an operation that takes no whole numbers
        return None
    return found, node


def _positions(found: Tensor, node: Node) -> Located | None:
    """Places (*b, h, n) as positions along the axes in which they differ along the last."""
    real, at, size = found != NOWHERE, torch.zeros_like(found), 1
    if not bool(real.any()):
        return None
    for step, count in _axes(node):
        here = found // step % count
        low, high = torch.where(real, here, count), torch.where(real, here, -1)
        if bool((high.amax(-1) > low.amin(-1)).any()):
            at, size = at + here * size, size * count
    return Located(torch.where(real, at, NOWHERE), size)


def _axes(node: Node) -> Iterator[tuple[int, int]]:
    """The axes of a result as steps and sizes, the last first; the first may join the batch."""
    for axis in reversed(range(len(node.size))):
        step, count = node.stride[axis], node.size[axis]
        if count > 1 and step:
            for part in [count] if axis else finest(node.view, ((step, count),), DEEP):
                yield step, part
                step *= part


def _before(node: Node) -> tuple[View, int] | None:
    """What a projection was given, and the axis that it makes of another; None for other nodes."""
    n = len(node.size)
    if node.name == "module" and node.args:
        x, own = node.args[0], node.kwargs["own"] % n
    elif node.name in PRODUCTS and n > 1:
        a, b = node.args[PRODUCTS[node.name] :][:2]
        if a.node.data == b.node.data:
            return None
        x, own = (a, n - 1) if a.node.data else (b, n - 2)
    else:
        return None
    return (x, own) if _without(own, node.size) == _without(own, x.size) else None


def _without(axis: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes or steps of the other axes."""
    return (*sizes[:axis], *sizes[axis + 1 :])


def _number(found: Tensor, node: Node, own: int) -> Tensor:
    """Places in a node's memory as numbers of its entries without the axis ``own``."""
    number, size = torch.zeros_like(found), 1
    for step, n in reversed([*zip(_without(own, node.stride), _without(own, node.size))]):
        number = number + found.clamp_min(0) // step % n * size if n > 1 else number
        size *= n
    return number


def _root(view: View) -> Node:
    """The operation that computed the rows of a tensor, which were only moved since."""
    node = view.settled().node
    for _ in range(STEPS):
        moved = node.name in MOVES or node.entrywise
        nexts = [x for _, x in node.sources if moved and x.node.dtype.is_floating_point]
        if not nexts:
            break
        node = nexts[0].settled().node
    return node


def _differs(at: Tensor, axis: int) -> bool:
    """Whether positions differ along an axis."""
    return bool((at.amax(axis) != at.amin(axis)).any())


def _shared(at: Tensor, apart: Sequence[int], same: Sequence[int]) -> Tensor | None:
    """The positions (n, rows) that all rows of the batch share; None if they differ."""
    at = at.permute(*same, *apart, at.ndim - 1)
    first = at[(0,) * len(same)]
    return first.reshape(-1, at.shape[-1]) if bool((at == first).all()) else None


def _laid(x: Tensor, at: Tensor, size: int) -> Tensor:
    """Rows (…, n, u, e) in their places among ``size``; those that come twice are the same."""
    which = at.new_full((size + 1,), -1)
    which[at.flatten()] = torch.arange(at.numel(), device=at.device)
    which = which[:size]
    return torch.where((which < 0)[:, None], 0, x.flatten(-3, -2)[..., which.clamp_min(0), :])
