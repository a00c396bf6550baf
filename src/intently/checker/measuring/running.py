"""Attention by running sums inside a module: its weights are how its output moves with values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from intently.checker.measuring.flow import LAYERS, Source
from intently.checker.measuring.run import Run
from intently.checker.measuring.scores import gradient, is_product
from intently.observe.trace.graph import Node
from intently.observe.trace.normaliser import behind
from intently.observe.trace.sites import Contraction, Site

MOST = 1024
"""Numbers of all heads in a row at most, of each of which it is asked what it is made of."""


def by_running_sums(run: Run, node: Node) -> Site | None:
    """The site of a division of running sums; None if what it divides is no sum of values."""
    if len(node.sources) != 2:
        return None
    (_, top), (_, below) = node.sources
    beneath = set(behind([below], lambda node: True, 400))
    y = run.tensor(node.view)
    for made in behind([top], lambda node: True, 400):
        if made in beneath or is_product(made) or made.name not in (*LAYERS, "given"):
            continue
        x = Source(made, run.value(made))
        if x.value.numel() != y.numel() or y.ndim < 3:
            continue
        for axis in range(y.ndim - 1):
            site = _along(node, y, x, axis)
            if site is not None:
                return site
    return None


def _along(node: Node, y: Tensor, x: Source, axis: int) -> Site | None:
    """The site, if the rows of an output along an axis are sums of the same values."""
    rows = y.movedim(axis, -2)
    *lead, t, e = rows.shape
    if t < 2 or torch.Size(lead).numel() * e > MOST:
        return None
    ways = torch.linspace(1, 2, t, dtype=y.dtype)
    at: list[Tensor] = []
    for flow in _flows(y, x, [(*i, slice(None), j) for i in _places(lead) for j in range(e)], axis, ways):
        found = (flow.abs() > 1e-12 * flow.abs().max()).nonzero()[:, 0]
        at.append(found)
    whole = next((x for x in at if len(x) == t), None)
    if whole is None or not _completed(at, whole, x.value.numel()):
        return None
    places = torch.stack(at).unflatten(0, (*lead, e)).mT  # (*lead, s, e)
    if len(places.unique()) != places.numel():
        return None
    values = x.held.reshape(-1)[places] if isinstance(x.held, Tensor) else x.value.reshape(-1)[places]
    ones = torch.ones((), dtype=y.dtype)
    some = [(..., i, 0) for i in range(t)]
    made = [flow[places[..., 0]] for flow in _flows(y, x, some, axis, ones)]
    weights = torch.stack(made, -2)
    off = (weights @ values.detach() - rows.detach()).abs().max()
    if float(off) > 1e-6 * float(rows.detach().abs().max()):
        return None
    product = Contraction(node, (y, y), (node.sources[0][1], x.node.view), y, [])
    numbers = product.places().movedim(axis, -2)
    return Site(node, weights, values, rows, None, 0, product, at=numbers)


def _completed(at: list[Tensor], whole: Tensor, n: int) -> bool:
    """Put keys without any weight where they lie: all heads and rows lie as a whole one does."""
    free = torch.ones(n, dtype=torch.bool)
    free[torch.cat([x for x in at if len(x) == len(whole)])] = False
    for i, x in enumerate(at):
        if len(x) == len(whole):
            continue
        for first in whole.tolist() if len(x) else ():
            moved = whole + (int(x[0]) - first)
            inside = bool((moved >= 0).all() & (moved < n).all())
            if inside and bool(free[moved].all() & torch.isin(x, moved).all()):
                at[i], free[moved] = moved, False
                break
        else:
            return False
    return True


def _places(lead: list[int]) -> Iterator[tuple[int, ...]]:
    for flat in range(torch.Size(lead).numel()):
        yield tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), tuple(lead)))


def _flows(
    y: Tensor, x: Source, places: list[tuple[object, ...]], axis: int, ways: Tensor
) -> Iterator[Tensor]:
    """The gradients by a source of some entries of an output, an axis of which comes before last."""
    for at in places:
        way = torch.zeros_like(y)
        way.movedim(axis, -2)[at] = ways  # pyright: ignore[reportArgumentType]
        g = gradient(y, x.held, way)
        yield torch.zeros(x.value.numel(), dtype=y.dtype) if g is None else g.reshape(-1)
