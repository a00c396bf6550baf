"""Attention by running sums inside a module: its weights are how its output moves with values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from intently.checker.measuring.flow import LAYERS
from intently.checker.measuring.run import Run
from intently.checker.measuring.scores import gradient, is_product, value_of
from intently.observe.trace.graph import Node
from intently.observe.trace.normaliser import behind
from intently.observe.trace.sites import Contraction, Site

MOST = 1024
"""Numbers of all heads in a row at most, of each of which it is asked what it is made of."""


def sums_values(node: Node) -> bool:
    """Whether what is divided is made of products of keys and values."""
    made = behind([x for _, x in node.sources[:1]], lambda node: True, 100)
    return any(is_product(x) or (x.name == "mul" and len(x.sources) > 1) for x in made)


def by_running_sums(run: Run, node: Node) -> Site | None:
    """The site of a division of running sums; None if what it divides is no sum of values."""
    (_, top), (_, below) = node.sources
    beneath = set(behind([below], lambda node: True, 400))
    y = run.tensor(node.view)
    for made in behind([top], lambda node: True, 400):
        layer = made.name in (*LAYERS, "given") and not is_product(made) and made not in beneath
        if layer and value_of(run.value(made)).numel() == y.numel() and y.ndim > 2:
            found = (_along(run, node, made, axis) for axis in range(y.ndim - 1))
            site = next((x for x in found if x is not None), None)
            if site is not None:
                return site
    return None


def _along(run: Run, node: Node, made: Node, axis: int) -> Site | None:
    """The site, if the rows of an output along an axis are sums of the same values."""
    y, held = run.tensor(node.view), run.value(made)
    rows = y.movedim(axis, -2)
    *lead, t, e = rows.shape

    def flows(places: Iterable[tuple[Any, ...]], ways: Tensor) -> Iterator[Tensor]:
        for at in places:
            way = torch.zeros_like(y)
            way.movedim(axis, -2)[at] = ways
            g = gradient(y, held, way)
            yield torch.zeros(y.numel(), dtype=y.dtype) if g is None else g.reshape(-1)

    if t < 2 or rows[..., 0, :].numel() > MOST:
        return None
    every = product(*map(range, lead), [slice(None)], range(e))
    some = flows(every, torch.linspace(1, 2, t, dtype=y.dtype))
    at = [(x.abs() > 1e-12 * x.abs().max()).nonzero()[:, 0] for x in some]
    whole = next((x for x in at if len(x) == t), None)
    if whole is None or not _completed(at, whole, y.numel()):
        return None
    places = torch.stack(at).unflatten(0, (*lead, e)).mT  # (*lead, s, e)
    if len(places.unique()) != places.numel():
        return None
    values = (held if isinstance(held, Tensor) else held.data).reshape(-1)[places]
    moved = flows(((..., i, 0) for i in range(t)), torch.ones((), dtype=y.dtype))
    weights = torch.stack([x[places[..., 0]] for x in moved], -2)
    off = (weights @ values.detach() - rows.detach()).abs().max()
    if float(off) > 1e-6 * float(rows.detach().abs().max()):
        return None
    contraction = Contraction(node, (y, y), (node.sources[0][1], made.view), y, [])
    numbers = contraction.places().movedim(axis, -2)
    return Site(node, weights, values, rows, None, 0, contraction, at=numbers)


def _completed(at: list[Tensor], whole: Tensor, n: int) -> bool:
    """Put keys without any weight where they lie: all heads and rows lie as a whole one does."""
    free = torch.ones(n, dtype=torch.bool)
    free[torch.cat([x for x in at if len(x) == len(whole)])] = False
    for i, x in [(i, x) for i, x in enumerate(at) if len(x) != len(whole)]:
        moves = [whole + (int(x[0]) - first) for first in whole.tolist()] if len(x) else []
        moves = [y for y in moves if bool((y >= 0).all() & (y < n).all()) and bool(free[y].all())]
        moved = next((y for y in moves if bool(torch.isin(x, y).all())), None)
        if moved is None:
            return False
        at[i], free[moved] = moved, False
    return True
