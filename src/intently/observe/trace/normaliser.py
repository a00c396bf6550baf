"""What made weights a whole along their keys, and what became of them until they met values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from intently.observe.trace.graph import (
    CONSTANT,
    RANDOM,
    SOFTMAX,
    SUMS,
    Line,
    Node,
    View,
    along,
    back,
    reduced,
)

TOTALS = frozenset(("index_add", "scatter_add", "scatter_reduce"))
"""Operations that may add up what a quotient then divides by their result."""

SUMMED = ("sum", "nansum", "linalg_vector_norm")

COPIED = ("gather", "index_select", "index", "repeat_interleave")
"""Operations that bring a total to the entries that it is the sum of."""

STEPS = 96
"""Operations at most that are followed back from a product."""

LAYERS = frozenset(("module", "mm", "addmm", "convolution", "native_layer_norm"))
MOST = 2
"""Layers at most that may change weights, such as a convolution over heads and a norm."""

SLACK = 0.02
"""How far from 1 a sum of weights may be, by rounding or an epsilon."""


AXIS = itemgetter(0)


@dataclass
class Normal:
    """What made weights a whole along their keys, and what became of them until they met values.

    ``sure`` says that it does so whatever the numbers are; else they have to be looked at.
    """

    node: Node
    sure: bool
    changes: tuple[str, ...] = ()
    dropped: tuple[Node, int] | None = None


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
        axes, since = set(map(AXIS, found)), since_softmax(node, so_far.changes)
        if since is not None and axes <= {along(node)} and (axes or node.size[along(node)] == 1):
            return Normal(node, True, since, so_far.dropped)
        kind = _whole(node, found) if node.entrywise else False
        if kind and (node.name != "sub" or so_far.changes[:1] == ("exp",)):  # of logarithms
            return Normal(node, True, so_far.changes[node.name == "sub" :], so_far.dropped)
        if kind is None or (node.name == "_log_softmax" and axes <= {along(node)}):
            maybe = maybe or Normal(node, False, so_far.changes, so_far.dropped)
        if sum(map(LAYERS.__contains__, (node.name, *so_far.changes))) <= MOST:
            ones = [(i, x, ()) for i, x in node.sources if node.entrywise]  # of size 1: in all
            nexts = [x for x in (back(node, found) if found else ones) if x[1].node.data]
            left += [(x, x_line, _after(so_far, node, i)) for i, x, x_line in nexts]
    return maybe


def since_softmax(node: Node, changes: tuple[str, ...]) -> tuple[str, ...] | None:
    """What changed the result of a softmax, or of `exp` of its logarithm; None for another node."""
    if node.name == "_log_softmax" and changes[:1] == ("exp",):
        return changes[1:]
    return changes if node.name in SOFTMAX else None


def behind(
    views: Iterable[View], through: Callable[[Node], bool], most: int = STEPS
) -> Iterator[Node]:
    """The operations that made tensors, and what went into those that lead ``through``."""
    left, seen = list(views), set[Node]()
    while left and len(seen) < most:
        node = left.pop().settled().node
        if node not in seen:
            seen.add(node)
            yield node
            left += [x for _, x in node.sources] if through(node) else []


def upstream(view: View, most: int = STEPS) -> set[Node]:
    """What weights are made of: the operations up to their scores."""
    return set(behind([view], lambda node: node.name not in SOFTMAX, most))


def _after(so_far: Normal, node: Node, i: int) -> Normal:
    """With an operation between the normaliser and the values."""
    if is_dropout(node):
        return replace(so_far, sure=False, dropped=so_far.dropped or (node, i))
    same = node.name in ("clone", "_to_copy", "copy", "alias", "detach", "lift_fresh")
    same = same or node.name.startswith(CONSTANT)  # a buffer that is like them, and takes them
    return replace(so_far, changes=so_far.changes if same else (node.name, *so_far.changes))


def is_dropout(node: Node) -> bool:
    """Whether an operation drops entries at random and scales the others."""
    scales = node.name in ("mul", "div")
    return node.name == "native_dropout" or (scales and any(_random(x) for _, x in node.views))


def _random(view: View, most: int = 6) -> bool:
    """Whether a tensor is made of random numbers alone."""
    node = view.settled().node
    if node.name.startswith((*RANDOM, "native_dropout")):
        return True
    nexts = [x for _, x in node.views] if node.entrywise and most else []
    return bool(nexts) and all(_random(x, most - 1) for x in nexts)


def _whole(node: Node, found: Sequence[Any]) -> bool | None:
    """True if an operation divides by the sum along an axis; None if it may make it a whole.

    It may, if an argument that is constant along the axis is made of many entries.
    """
    args = node.sources
    mains = [x for _, x in args if not found or node.moves(found, x)]
    if not mains:
        return False
    line = node.into(found, mains[0])
    sums = {"div": SUMMED, "mul": SUMMED, "sub": ("logsumexp",)}.get(node.name)
    if sums is not None and len(args) > 1 and adds_up(args, mains[0], line or (), sums):
        return True
    others = [x for _, x in args if not any(x is y for y in mains)]
    return None if any(mixes(x) for x in others) else False


def adds_up(
    args: Sequence[tuple[int, View]], top: View, line: Line = (), sums: Sequence[str] = SUMMED
) -> bool:
    """Whether another argument is one of the sums of the first along a line, or has it in it."""
    one = top.settled().node
    axes = set(map(AXIS, (line and one.pieces(line)) or ()))

    def summed(node: Node) -> bool:
        x = next((x for _, x in node.views if x.settled().node is one), None)
        if x is None or (node.name == "linalg_vector_norm" and node.args[1] != 1):
            return False
        if node.name not in SUMS:
            return node.name in TOTALS and sums is SUMMED
        gone = (one.pieces(x.line(i)) or () for i in reduced(node))
        return node.name in sums and axes <= {axis for found in gone for axis, _, _ in found}

    into = lambda x: x is not one and (x.entrywise or x.name in COPIED)  # noqa: E731
    return any(map(summed, behind([x for _, x in args], into)))


def mixes(view: View) -> bool:
    """Whether a tensor is made by an operation that mixes entries."""
    return any(x.func is not None and not x.entrywise for x in behind([view], lambda node: True))


def whole(weights: Tensor) -> bool:
    """Whether weights (…, s) are shares: none below 0, and each row 1 in sum, or empty.

    A row must have several: a single weight may be 1 by chance.
    """
    if not weights.numel():
        return False
    w = weights.detach() if weights.dtype is torch.float64 else weights.detach().float()
    sums = w.sum(-1)
    one, several = (sums - 1).abs() <= SLACK, ((w != 0).sum(-1) > 1).any()
    return bool((w >= -1e-6).all() & (one | (sums == 0)).all() & one.any() & several)
