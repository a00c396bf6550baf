"""What operations did to tensors: nodes for what was written, views for what was read.

A view is the steps it takes through the memory of a node, so that PyTorch's views need no rule of
their own: an axis is a `Line` of steps, and following it back to the axes of the operation that
wrote the memory is arithmetic. Where an axis comes from is which axis of which argument an
operation carried on.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Line: TypeAlias = tuple[tuple[int, int], ...]
"""An axis as steps through a memory: (stride, count), the innermost first; empty if of size 1."""

Part: TypeAlias = tuple[int, int]
"""A part of an axis in memory: its step, and its size."""

Piece: TypeAlias = tuple[int, int, int]
"""A part of an axis of a node: (axis, step, count)."""

Aligned: TypeAlias = list[tuple[int, "View", Sequence[int] | None]]
"""Arguments by their place, and which of their axes each axis of the result is."""

COPIES = frozenset(
    ("clone", "_to_copy", "copy", "alias", "detach", "lift_fresh", "nan_to_num", "native_dropout")
)
"""Operations that keep each entry where it is and, but for dropout, what it is."""

ENTRYWISE = frozenset(
    ("masked_fill", "where", "lerp", "threshold", "softplus", "clamp_min", "leaky_relu", "fill")
)
"""Operations entry by entry that are not tagged so."""

CHOOSES = frozenset(("gather", "index", "index_put", "index_select", "take", "_unsafe_index"))
"""Those that take numbers by their places, or put them there."""

MOVES = frozenset(
    (
        *CHOOSES,
        *("cat", "stack", "clone", "constant_pad_nd", "repeat", "roll", "flip", "_to_copy"),
        *("slice_scatter", "select_scatter", "copy", "unfold", "unfold_copy", "im2col"),
        *("as_strided_scatter", "alias", "detach"),
    )
)
"""Operations that move numbers."""

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

    def line(self, *axes: int) -> Line:
        """Some axes as one, the innermost first."""
        return tuple((self.stride[i], self.size[i]) for i in axes if self.size[i] != 1)

    def span(self) -> tuple[int, int]:
        """The first and the last place in memory."""
        steps = ((n - 1) * step for n, step in zip(self.size, self.stride))
        return self.offset, self.offset + sum(steps)

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
        node = self.node
        while node.before is not None and not node.wrote(self):
            node = node.before
        return self if node is self.node else self._replace(node=node)


class Node:
    """An operation, what it read, and where it wrote.

    ``entrywise`` says that each entry of the result is made of the entries in the same place.
    ``before`` is what had been in a memory of which the operation wrote a part. ``data`` says that
    its numbers depend on what the model was given, as one of its arguments does unless it is known.
    ``tensors`` are arguments that are kept, by their place, with their versions. It is ``mixing``
    if it is a product of weights with separate parts of a model, and no attention.
    """

    __slots__ = (
        *("name", "func", "args", "kwargs", "size", "stride", "offset", "dtype", "before"),
        *("data", "tensors", "entrywise", "views", "sources", "aligned", "mixing"),
        *("origins", "_pieces", "_axes"),
    )

    def __init__(
        self,
        name: str,
        x: Tensor,
        data: bool | None,
        func: Any = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        before: Node | None = None,
    ) -> None:
        self.name, self.func, self.args, self.kwargs = name, func, args, kwargs or {}
        self.size, self.stride, self.offset = tuple(x.shape), x.stride(), int(x.storage_offset())
        self.dtype, self.before = x.dtype, before
        self.entrywise = (
            name in ENTRYWISE or name in COPIES or (func is not None and entrywise(func))
        )
        self.tensors: dict[int, tuple[Tensor, int]] = {}
        self.views = [
            (i, y)
            for i, given in enumerate(args)
            for y in (given if isinstance(given, list) else (given,))
            if isinstance(y, View)
        ]
        """The arguments that are tensors, and their places; those in lists have their list's."""
        self.sources = [(i, y) for i, y in self.views if y.node.data]
        """The arguments that depend on data."""
        self.mixing = False
        self.aligned: Aligned | None = None
        """The arguments with the axes of the result, once somebody asked for them."""
        self.origins: dict[Line, str] = {}
        self._pieces: dict[Line, tuple[Piece, ...] | None] = {}
        moving = ((step, i) for i, step in enumerate(self.stride) if step and self.size[i] > 1)
        self._axes = sorted(moving)
        self.data = bool(self.sources) if data is None else data

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
        return tuple([step for step in self.into(pieces, x, axes) or () if step[0]])


def laid(x: Tensor, axes: Sequence[Sequence[Part]]) -> Tensor:
    """A tensor with its axes in another order, each joined of parts."""
    sizes = [math.prod(count for _, count in parts) for parts in axes]
    if not x.numel():
        return x.new_empty(sizes)
    steps, counts = ([part[i] for parts in axes for part in parts] for i in (0, 1))
    y = x.as_strided(counts, steps, x.storage_offset())
    return y if counts == sizes else y.reshape(sizes)


@cache
def entrywise(func: Any) -> bool:
    """Whether PyTorch says that an operation goes entry by entry."""
    return torch.Tag.pointwise in func.tags


@cache
def writes(func: Any) -> tuple[tuple[int, str], ...]:
    """The arguments that an operation overwrites, by place and name."""
    given = enumerate(func._schema.arguments)
    return tuple(
        (i, x.name) for i, x in given if x.alias_info is not None and x.alias_info.is_write
    )


@cache
def kind(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation, whether it changes an argument, and whether it makes a view."""
    changes, name = func._schema.is_mutable, func._schema.name.rpartition("::")[2]
    views = not changes and any(x.alias_info is not None for x in func._schema.returns)
    return name.rstrip("_") if changes else name, changes, views


PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "_sparse_mm", "_int_mm"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm"), 1),
}
"""Products, and which of their arguments is the left factor."""

CONVOLUTIONS = ("convolution", "_convolution", "mkldnn_convolution")

SUMS = frozenset(
    (
        *("sum", "nansum", "mean", "amax", "amin", "max", "min", "logsumexp", "prod", "any", "all"),
        *("linalg_vector_norm", "norm", "var", "std", "argmax", "argmin", "median", "aminmax"),
    )
)
"""Operations that make one entry of all along some axes."""

ALONG = frozenset(
    (
        *SOFTMAX,
        *("_log_softmax", "cumsum", "logcumsumexp", "cumprod", "cummax", "sort", "topk", "gather"),
        *("flip", "roll", "constant_pad_nd", "native_layer_norm", "index_select", "index_fill"),
        *("_native_batch_norm_legit", "native_batch_norm", "native_group_norm", "unfold_copy"),
        *("_native_batch_norm_legit_no_training", "_fused_rms_norm", "_cdist_forward"),
        *("repeat_interleave", "masked_scatter"),
    )
)
"""Operations that keep the axes of their first argument, and work along some of them."""


WRITES = {
    "index_copy": 3,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add"), 3),
    "slice_scatter": 1,
}
"""Operations that write an argument into their first, and which."""


def back(node: Node, pieces: Sequence[Piece]) -> list[tuple[int, View, Line]]:
    """The arguments in which parts of a node's axes go on, and as which lines."""
    if node.aligned is None:
        node.aligned = _aligned(node)
    return [(i, x, line) for i, x, at in node.aligned if (line := node.moves(pieces, x, at))]


def _aligned(node: Node) -> Aligned:
    """The arguments whose axes are those of the result, and how; None: from the last."""
    n, name, given = len(node.size), node.name, node.args
    first = given[0] if given and isinstance(given[0], View) else None
    if node.entrywise:
        return [(i, x, None) for i, x in node.views]
    if name in PRODUCTS:
        return _factors(node, PRODUCTS[name])
    if name in SUMS and first:
        gone, m = reduced(node), len(first.size)
        kept = [i for i in range(m) if i not in gone]
        return [(0, first, [-1 if i in gone else i for i in range(n)] if n == m else kept[:n])]
    if name == "cat":  # an empty tensor of one axis may be among them
        return [(i, x, None) for i, x in node.views if len(x.size) == n]
    if name == "stack":
        at = along(node, 0)
        return [(i, x, [-1 if j == at else j - (j > at) for j in range(n)]) for i, x in node.views]
    if name in ("index", "_unsafe_index") and first:
        return _indexed(first, given[1])
    if name == "embedding":
        return [(0, given[0], [*[-1] * (n - 1), 1]), (1, given[1], [*range(n - 1), -1])]
    if name in CONVOLUTIONS:
        rest = range(2, n)
        return [(0, given[0], [0, -1, *rest]), (1, given[1], [-1, 0, *[-1 for _ in rest]])]
    if name == "module":
        own = node.kwargs["own"] % n
        return [(0, x, [-1 if i == own else i for i in range(n)]) for _, x in node.views]
    if name == "index_put":
        x, places, values = given[:3]
        found: Aligned = [(0, x, None)] if x.node.data else []
        if isinstance(values, View):
            more = len(values.size) - n
            found.append((2, values, [-1 if i < len(places) else i + more for i in range(n)]))
        return found
    if name in WRITES:
        written = (0, first), (WRITES[name], given[WRITES[name]])
        return [(i, x, None) for i, x in written if isinstance(x, View) and len(x.size) == n]
    if name == "repeat" and first:  # copies along axes of one entry
        axes = [i - n + len(first.size) for i in range(n)]
        copied = [j < 0 or first.size[j] == 1 for j in axes]
        kept = [c or node.size[i] == first.size[j] for i, (j, c) in enumerate(zip(axes, copied))]
        return [(0, first, [-1 if c else j for j, c in zip(axes, copied)])] if all(kept) else []
    if first and has_packed(node.func):
        return [(0, first, [*range(n - 1), -1])]
    return [(0, first, None)] if first and (name in ALONG or first.size == node.size) else []


def _factors(node: Node, first: int) -> Aligned:
    """The factors of a product, and its sum with another tensor."""
    n, name = len(node.size), node.name
    a, b = node.args[first : first + 2]
    if name == "addbmm":
        rows, columns = [1, -1], [-1, 2]
    elif name in ("mv", "addmv"):
        rows, columns = [0], [-1]
    else:
        rows, columns = [*range(n - 2), n - 2, -1], [*range(n - 2), -1, n - 1]
    found: Aligned = [(first, a, rows), (first + 1, b, columns)] if n else []
    added = node.args[0]
    if first and isinstance(added, View) and n == len(added.size):
        found.append((0, added, range(n)))
    return [one for one in found if isinstance(one[1], View)]


def _indexed(x: View, places: Any) -> Aligned:
    """A tensor indexed by one other, along one axis."""
    given = [(i, y) for i, y in enumerate(places) if isinstance(y, View)]
    if len(given) != 1:
        return []
    at, index = given[0]
    more = len(index.size)
    return [(0, x, [*range(at), *[at if more == 1 else -1] * more, *range(at + 1, len(x.size))])]


@cache
def has_packed(func: Any) -> bool:
    """Whether an operation takes packed parameters, as quantised products do."""
    return func is not None and any("__torch__" in str(x.type) for x in func._schema.arguments)


def reduced(node: Node) -> frozenset[int]:
    """The axes of its argument of which a sum or a maximum makes one."""
    x = node.args[0]
    n = len(x.size)
    given = dict(zip([a.name for a in node.func._schema.arguments], node.args)) | node.kwargs
    axes = given.get("dim", given.get("axis"))
    axes = range(n) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    return frozenset(i % max(1, n) for i in axes)


def along(node: Node, usual: int = -1) -> int:
    """The axis along which a softmax works, or others join tensors."""
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", usual)
    return axis % max(1, len(node.size))


def origin(view: View, line: Line, most: int = 64) -> str:
    """What the entries of an axis are: "rows" of one tensor, or each of its own.

    "parameters" of its own, as classes and experts have, "parts" of a model that made each, or
    "copies" of one.
    """
    path: list[tuple[Node, Line]] = []
    found: str | tuple[View, Line] = view, line
    for _ in range(most):
        view, line = found
        known = None
        if view.node is view.settled().node and view.node.name != "given":
            known = view.node.origins.get(line)
            path.append((view.node, line))
        found = known or _one_step(view, line)
        if isinstance(found, str):
            for node, line in path:
                node.origins[line] = found
            return found
    return "rows"


def _one_step(view: View, line: Line) -> str | tuple[View, Line]:
    """What the entries of an axis are, or the axis of an argument from which it was carried on."""
    node = view.settled().node
    if node is not view.node:  # written in pieces
        return "rows"
    if not node.data:
        return "parameters"
    found = node.pieces(line)
    if not found:
        return "copies" if found == () else "rows"
    axes = set(map(itemgetter(0), found))
    if node.name == "given":  # beside the batch, or between rows and width, as streams are
        whole = math.prod(view.size) == math.prod(node.size)
        first = found[0][0] == 0 and found[0][2] < node.size[0] and whole
        between = len(node.size) > 3 and min(axes) > 0 and max(axes) < len(node.size) - 1
        return "parts" if first or between else "rows"
    if node.name == "module":
        if node.kwargs["own"] % len(node.size) in axes:
            return "parameters"
    elif node.name in PRODUCTS and not node.mixing:
        if all(x.node.data for i, x in node.views if i >= PRODUCTS[node.name]):
            return "rows"
    elif node.name in ("stack", "cat") and axes == {along(node, 0)}:
        made = [_maker(x) for _, x, _ in _aligned(node) if x.node.data]
        makers, wholes = (set(map(itemgetter(i), made)) for i in (0, 1))
        # parts, if others made them, or the same in other ways
        return "parts" if len(makers) > 1 or len(wholes) == 1 < len(made) else "rows"
    steps = back(node, found)
    carried = [(x, there) for _, x, there in steps if x.node.data]
    if carried:  # masks last
        return min(carried, key=lambda one: not one[0].node.dtype.is_floating_point)
    if steps or has_packed(node.func):
        return "parameters"
    return "copies" if node.entrywise else "rows"


def _maker(view: View, most: int = 32) -> tuple[object, View | None]:
    """The part of a model, or its parameter, that made a tensor last, and which part of that."""
    part: View | None = None
    for _ in range(most):
        node = view.settled().node
        if node.name == "module":
            return node.kwargs["module"], part or view
        if node.name in PRODUCTS or node.name == "convolution":
            fixed = [x for _, x in node.views if not x.node.data]
            if fixed:
                return (fixed[-1].settled().node, fixed[-1].offset), part or view
        if node.name in MOVES and node.name not in COPIES:
            part = part or view
        if not node.sources:
            return node, part or view
        view = node.sources[0][1]
    return None, part or view


def made_by_parameters(view: View, line: Line, most: int = 64) -> bool | None:
    """Whether each entry of an axis has parameters of its own: heads, channels, experts.

    None if the tensor met no parameters at all.
    """
    left, met = [(view, line)], False
    for _ in range(most):
        if not left:
            break
        v, line = left.pop()
        node = v.settled().node
        if node is not v.node:  # written in pieces
            continue
        if not node.data:
            return True
        found = node.pieces(line)
        if not found:
            continue
        own = node.kwargs["own"] % len(node.size) if node.name == "module" else None
        steps, packed = back(node, found), has_packed(node.func)
        carried = [(x, x_line) for _, x, x_line in steps if x.node.data]
        if own in map(itemgetter(0), found) or (not carried and (steps or packed)):
            return True
        first = PRODUCTS.get(node.name, 0 if node.name in CONVOLUTIONS else math.inf)
        fixed = any(not x.node.data for i, x in node.views if i >= first)
        met |= (own is not None and bool(steps)) or fixed or packed
        left += carried
    return False if met else None
