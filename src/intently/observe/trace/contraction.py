"""Contractions: sums of products of two tensors, whatever operation takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intently.observe.trace.axes import PRODUCTS, along, reduced
from intently.observe.trace.graph import COPIES, SOFTMAX, Node, View


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
        return Contraction(node, (a, b), (x, y), result, axes, rows=rows)

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
    while node.name in COPIES and (nexts := [x for _, x in node.views]):
        node = nexts[0].settled().node
    return node.name in SOFTMAX and node.size[along(node)] == 1
