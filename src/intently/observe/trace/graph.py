"""What operations did to tensors: nodes for what was written, views for what was read.

A view is the steps it takes through the memory of a node, so that PyTorch's views need no rule of
their own: an axis is a `Line` of steps, and following it back to the axes of the operation that
wrote the memory is arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Line: TypeAlias = tuple[tuple[int, int], ...]
"""An axis as steps through a memory: (stride, count), the innermost first; empty if of size 1."""

Piece: TypeAlias = tuple[int, int, int]
"""A part of an axis of a node: (axis, step, count)."""

COPIES = frozenset(
    ("clone", "_to_copy", "copy", "alias", "detach", "lift_fresh", "nan_to_num", "native_dropout")
)
"""Operations that keep each entry where it is and, but for dropout, what it is."""

ENTRYWISE = frozenset(
    ("masked_fill", "where", "lerp", "threshold", "softplus", "clamp_min", "leaky_relu", "fill")
)
"""Operations entry by entry that are not tagged so."""

SOFTMAX = frozenset(("_softmax", "_safe_softmax", "_sparse_softmax", "softmax"))

CONSTANT = ("zeros", "ones", "full", "empty", "new_", "scalar_tensor", "arange", "tril_indices")
RANDOM = ("rand", "normal", "bernoulli", "uniform", "exponential")
"""How the names of operations begin whose result does not depend on their arguments."""


class View(NamedTuple):
    """A tensor as steps through the memory that a node wrote."""

    node: Node
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(node: Node, x: Tensor) -> View:
        """The view that a tensor is of the memory of its node."""
        return View(node, tuple(x.shape), x.stride(), int(x.storage_offset()))

    def line(self, *axes: int) -> Line:
        """Some axes as one, the innermost first."""
        return tuple((self.stride[i], self.size[i]) for i in axes if self.size[i] != 1)

    def span(self) -> tuple[int, int]:
        """The first and the last place in memory."""
        last = self.offset
        for n, step in zip(self.size, self.stride):
            last += (n - 1) * step
        return self.offset, last

    def written_in_parts(self) -> bool:
        """Whether an operation overwrote a part of it."""
        node, (low, high) = self.node, self.span()
        while node.before is not None and not node.wrote(self):
            first, last = node.view.span()
            if first <= high and low <= last:
                return True
            node = node.before
        return False

    def settled(self) -> View:
        """The same view, of the node that wrote this part of the memory last."""
        view = self
        while view.node.before is not None and not view.node.wrote(view):
            view = view._replace(node=view.node.before)
        return view


class Node:
    """An operation, what it read, and where it wrote.

    ``entrywise`` says that each entry of the result is made of the entries in the same place.
    ``before`` is what had been in a memory of which the operation wrote a part. ``data`` says that
    its numbers depend on what the model was given; ``tensors`` are arguments that are kept, by
    their place, with their versions.
    """

    __slots__ = (
        *("name", "func", "args", "kwargs", "size", "stride", "offset", "dtype", "before"),
        *("data", "tensors", "entrywise", "views", "sources", "_pieces", "_axes"),
    )

    def __init__(
        self,
        name: str,
        x: Tensor,
        data: bool,
        func: Any = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        before: Node | None = None,
    ) -> None:
        self.name, self.func, self.args, self.kwargs = name, func, args, kwargs or {}
        self.size, self.stride, self.offset = tuple(x.shape), x.stride(), int(x.storage_offset())
        self.dtype, self.data, self.before = x.dtype, data, before
        self.entrywise = (
            name in ENTRYWISE or name in COPIES or (func is not None and entrywise(func))
        )
        self.tensors: dict[int, tuple[Tensor, int]] = {}
        self.views: list[tuple[int, View]] = []
        """The arguments that are tensors, and their places; those in lists have their list's."""
        for i, given in enumerate(args):
            for y in given if isinstance(given, list) else (given,):
                if isinstance(y, View):
                    self.views.append((i, y))
        self.sources = self.views
        """The arguments that depend on data."""
        if False in [y.node.data for _, y in self.views]:
            self.sources = [(i, y) for i, y in self.views if y.node.data]
        self._pieces: dict[Line, tuple[Piece, ...] | None] = {}
        self._axes = [(step, i) for i, step in enumerate(self.stride) if step and self.size[i] > 1]
        self._axes.sort()

    def __repr__(self) -> str:
        return f"<{self.name} {self.size}>"

    @property
    def view(self) -> View:
        """The whole result."""
        return View(self, self.size, self.stride, self.offset)

    def wrote(self, view: View) -> bool:
        """Whether a view lies within what the operation wrote."""
        (low, high), (first, last) = view.span(), self.view.span()
        if low < first or last < high:
            return False
        dense = last - first < math.prod(self.size)
        return dense or None not in map(self.pieces, map(view.line, range(len(view.size))))

    def keep(self, i: int, x: Tensor) -> None:
        """Keep an argument."""
        self.tensors[i] = x, -1 if x.is_inference() else x._version

    def chosen(self, i: int, x: Any) -> Any:
        """An argument whose places were kept; raises `KeyError` if they were not."""
        if isinstance(x, View):
            return self.tensors[i][0]
        if isinstance(x, list):
            return [
                self.tensors[10 * i + j][0] if isinstance(y, View) else y for j, y in enumerate(x)
            ]
        return x

    def kept(self, i: int) -> Tensor | None:
        """An argument that was kept, unless it was overwritten since."""
        x, version = self.tensors.get(i, (None, -1))
        return None if x is None or (version >= 0 and x._version != version) else x

    def pieces(self, line: Line) -> tuple[Piece, ...] | None:
        """The parts of axes along which a line moves, the innermost first; None for a diagonal."""
        if line not in self._pieces:
            self._pieces[line] = self._parts(line)
        return self._pieces[line]

    def _parts(self, line: Line) -> tuple[Piece, ...] | None:
        found: list[Piece] = []
        for stride, count in line:
            while count > 1 and stride:
                at = bisect(self._axes, (stride, len(self.size))) - 1
                inside, axis = self._axes[at] if at >= 0 else (0, 0)
                if not inside or stride % inside:
                    return None
                step = stride // inside
                room = -(-self.size[axis] // step)
                if count <= room:
                    found.append((axis, step, count))
                    break
                if room < 2 or self.size[axis] % step or count % room:
                    return None
                found.append((axis, step, room))
                stride, count = inside * self.size[axis], count // room
        return tuple(found)

    def into(
        self, pieces: Sequence[Piece], x: View, axes: Sequence[int] | None = None
    ) -> Line | None:
        """Pieces of the result's axes as steps in an argument, 0 where it is the same along them.

        ``axes`` gives the argument's axis for each of the result, -1 for none; without it they are
        aligned at the last. None if the argument has a part of a piece only.
        """
        line: list[tuple[int, int]] = []
        for axis, step, count in pieces:
            at = axis - len(self.size) + len(x.size) if axes is None else axes[axis]
            inside = at >= 0 and x.size[at] > 1
            if inside and step * (count - 1) >= x.size[at]:
                return None
            line.append((x.stride[at] * step if inside else 0, count))
        return tuple(line)

    def moves(self, pieces: Sequence[Piece], x: View, axes: Sequence[int] | None = None) -> Line:
        """The steps of pieces in an argument that are not 0; none if it has a part of them only."""
        line = self.into(pieces, x, axes) or ()
        for step in line:
            if not step[0]:
                return tuple([step for step in line if step[0]])
        return line


@cache
def entrywise(func: Any) -> bool:
    """Whether PyTorch says that an operation goes entry by entry."""
    return torch.Tag.pointwise in func.tags


@cache
def kind(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation, whether it changes an argument, and whether it makes a view."""
    changes = func._schema.is_mutable
    name = func._schema.name.rpartition("::")[2]
    views = not changes and any(x.alias_info is not None for x in func._schema.returns)
    return name.rstrip("_") if changes else name, changes, views
