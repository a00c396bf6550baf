"""From weights back to their queries and keys, where one product and one softmax give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intently.core.matrix.labelling import HIDDEN
from intently.observe.trace.axes import PRODUCTS, along
from intently.observe.trace.graph import COPIES, Line, Node, View
from intently.observe.trace.sites import SOFTMAX, Axis, Site, is_dropout

STEPS = 24
"""Operations at most between the weights and the product."""


@dataclass
class Scores:
    """scale · q kᵀ + biases, hidden where a mask is False: q (*b, h, t, d) and k (*b, h, s, d).

    Biases and masks broadcast to (*b, h, t, s).
    """

    q: Tensor
    k: Tensor
    scale: float = 1.0
    biases: list[Tensor] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)


class _Back:
    """A walk from weights to their scores, with the parts of their axes as lines in each tensor."""

    def __init__(self, site: Site) -> None:
        self.groups = site.groups
        self.view = site.contraction.views[site.side]
        self.lines: list[list[Line]] = [
            [((a.steps[site.side], a.count),) for a in group] for group in self.groups
        ]
        self.scale, self.biases, self.masks = 1.0, list[tuple[Tensor, float]](), list[Tensor]()

    def into(self, node: Node, x: View) -> bool:
        """Go on in an argument that has all axes of the result; say whether that is possible."""
        found = self.lines_in(node, x)
        if found is None or any(not line for group in found for line in group):
            return False
        self.view, self.lines = x, found
        return True

    def lines_in(self, node: Node, x: View) -> list[list[Line]] | None:
        """The lines of all axes in an argument that is aligned at the last axis."""
        out: list[list[Line]] = []
        for group in self.lines:
            out.append([])
            for line in group:
                pieces = node.pieces(line)
                there = None if pieces is None else node.into(pieces, x)
                if there is None or len(there) > 1:
                    return None
                out[-1].append(there)
        return out

    def other(self, node: Node, i: int) -> Tensor | None:
        """An argument beside the scores, as (*b, h, t, s) with 1 where it is constant."""
        x, view = node.kept(i), node.args[i]
        lines = self.lines_in(node, view)
        return None if x is None or lines is None else placed(x, lines, self.groups)


def placed(x: Tensor, lines: Sequence[Sequence[Line]], groups: Sequence[Sequence[Axis]]) -> Tensor:
    """A tensor with its axes in the order of the lines; an axis that it has not is of size 1."""
    sizes, steps, joined = list[int](), list[int](), list[int]()
    for group, axes in zip(lines, groups):
        some = any(group)
        total = 1
        for line, axis in zip(group, axes):
            step = line[0][0] if line else 0
            count = axis.count if some else 1
            sizes.append(count)
            steps.append(step)
            total *= count
        joined.append(total)
    return x.as_strided(sizes, steps, x.storage_offset()).reshape(joined)


def scores(site: Site) -> Scores | None:
    """The queries and keys of weights, None where more than one product and one softmax made them."""
    normal = site.normal
    if normal is None or any(name != "native_dropout" for name in normal.changes if name != "mul"):
        return None
    walk = _Back(site)
    whole = False
    for _ in range(STEPS):
        node = walk.view.settled().node
        if node.before is not None and not node.entrywise:
            return None
        if node.name in PRODUCTS:
            return _product(walk, node) if whole else None
        step = _step(walk, node)
        if step is None:
            return None
        whole |= step
    return None


def _step(walk: _Back, node: Node) -> bool | None:
    """Go back over an operation; True if it is the softmax, None if it does not fit."""
    views = dict(node.views())
    first = views.get(0)
    if first is None or not walk.lines:
        return None
    name = node.name
    if name in SOFTMAX:
        return True if walk.into(node, first) else None
    if name in COPIES or (is_dropout(node) and first.node.data):
        return False if walk.into(node, first) else None
    if name in ("mul", "div") and len(views) == 1 and isinstance(node.args[1], (int, float)):
        walk.scale *= node.args[1] if name == "mul" else 1 / node.args[1]
        return False if walk.into(node, first) else None
    if name in ("mul", "div") and len(views) == 2 and not views[1].size:
        other = node.kept(1)
        if other is None:
            return None
        walk.scale *= float(other) if name == "mul" else 1 / float(other)
        return False if walk.into(node, first) else None
    if name in ("add", "sub") and len(views) == 2:
        main = 0 if _leads(walk, node, views[0]) else 1
        sign = node.kwargs.get("alpha", 1) * (-1 if name == "sub" else 1)
        if main == 1 and sign != 1:
            return None
        return _added(walk, node, main, sign)
    if name == "masked_fill" and 1 in views:
        value = node.args[2] if isinstance(node.args[2], (int, float)) else node.kept(2)
        return _hidden(walk, node, 0, 1, value, False)
    if name == "where" and len(views) >= 2:
        for main, fill, keep in ((1, 2, True), (2, 1, False)):
            if main in views and _leads(walk, node, views[main]):
                value = node.args[fill] if isinstance(node.args[fill], (int, float)) else node.kept(fill)
                return _hidden(walk, node, main, 0, value, keep)
    return None


def _leads(walk: _Back, node: Node, x: View) -> bool:
    """Whether an argument has all axes of the scores, and comes from a product."""
    lines = walk.lines_in(node, x)
    if lines is None or any(not line for group in lines for line in group):
        return False
    for _ in range(STEPS):
        at = x.settled().node
        if at.name in PRODUCTS:
            return all(v.node.data for i, v in at.views() if i >= PRODUCTS[at.name])
        nexts = [v for _, v in at.sources()]
        if not at.entrywise or not nexts:
            return False
        x = nexts[0]
    return False


def _added(walk: _Back, node: Node, main: int, sign: float) -> bool | None:
    other = walk.other(node, 1 - main)
    if other is None:
        return None
    if other.shape[-1] != 1 or walk.groups[-1] == []:  # else it is the same for all keys
        walk.biases.append((other, sign * walk.scale))
    return False if walk.into(node, node.args[main]) else None


def _hidden(
    walk: _Back, node: Node, main: int, mask: int, value: Any, keep: bool
) -> bool | None:
    if isinstance(value, Tensor):
        value = float(value) if value.numel() == 1 else None
    shown = walk.other(node, mask)
    if value is None or shown is None or value > HIDDEN:
        return None
    walk.masks.append(shown if keep else ~shown)
    return False if walk.into(node, node.args[main]) else None


def _product(walk: _Back, node: Node) -> Scores | None:
    """The queries and keys of a product that gives the scores."""
    first = PRODUCTS[node.name]
    if node.name not in ("mm", "bmm", "baddbmm", "addmm"):
        return None
    a, b = node.kept(first), node.kept(first + 1)
    if a is None or b is None:
        return None
    n = len(node.size)
    if first:
        alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
        if beta:
            other = walk.other(node, 0)
            if other is None:
                return None
            walk.biases.append((other, beta * walk.scale))
        walk.scale *= alpha
    for q, k, turned in ((a, b, False), (b, a, True)):
        rows = n - 1 if turned else n - 2
        q_steps = {**{i: q.stride(i) for i in range(n - 2)}, rows: q.stride(-1 if turned else -2)}
        k_steps = {**{i: k.stride(i) for i in range(n - 2)}, 2 * n - 3 - rows: k.stride(-2 if turned else -1)}
        made = [_factor(walk, node, x, steps, queries) for x, steps, queries in ((q, q_steps, True), (k, k_steps, False))]
        if all(x is not None for x in made):
            d = (q.stride(-2), k.stride(-1)) if turned else (q.stride(-1), k.stride(-2))
            width = q.shape[-2 if turned else -1]
            return Scores(*(_wide(x, y, step, width) for x, y, step in zip((q, k), made, d)),  # type: ignore[arg-type]
                          walk.scale, [x * s if s != 1 else x for x, s in walk.biases], walk.masks)
    return None


def _factor(walk: _Back, node: Node, x: Tensor, steps: dict[int, int], queries: bool) -> Any:
    """The sizes and steps of the axes (*b, h, t) or (*b, h, s) in a factor; None if it has others."""
    sizes, strides, joined = list[int](), list[int](), list[int]()
    own, foreign = (-2, -1) if queries else (-1, -2)
    for at, (group, axes) in enumerate(zip(walk.lines, walk.groups), -len(walk.groups)):
        total = 1
        for line, axis in zip(group, axes):
            pieces = node.pieces(line)
            if pieces is None or len(pieces) != 1:
                return None
            place, step, count = pieces[0]
            if at == foreign:
                if place in steps:
                    return None
                continue
            if place not in steps:
                return None
            sizes.append(count)
            strides.append(steps[place] * step)
            total *= count
        if at != foreign:
            joined.append(total)
    return sizes, strides, joined


def _wide(x: Tensor, made: Any, step: int, width: int) -> Tensor:
    sizes, strides, joined = made
    return x.as_strided([*sizes, width], [*strides, step], x.storage_offset()).reshape(*joined, width)
