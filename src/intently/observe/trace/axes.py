"""Where an axis comes from: which axis of which argument an operation carried on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from intently.observe.trace.graph import Line, Node, Piece, View

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
        *(
            "_softmax",
            "_log_softmax",
            "_safe_softmax",
            "_sparse_softmax",
            "cumsum",
            "logcumsumexp",
            "softmax",
        ),
        *("sort", "topk", "gather", "flip", "roll", "constant_pad_nd", "native_layer_norm"),
        *("index_select", "cumprod", "cummax", "index_fill"),
        *("_native_batch_norm_legit", "native_batch_norm", "native_group_norm", "unfold_copy"),
        *("_native_batch_norm_legit_no_training", "_fused_rms_norm"),
        *("repeat_interleave", "_cdist_forward", "masked_scatter"),
    )
)
"""Operations that keep the axes of their first argument, and work along some of them."""


WRITES = {
    "index_copy": 3,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add"), 3),
    "slice_scatter": 1,
}
"""Operations that write an argument into their first, and which."""

Aligned: TypeAlias = list[tuple[int, View, Sequence[int] | None]]
"""Arguments by their place, and which of their axes each axis of the result is."""


def back(node: Node, pieces: Sequence[Piece]) -> list[tuple[int, View, Line]]:
    """The arguments in which parts of a node's axes go on, and as which lines."""
    found: list[tuple[int, View, Line]] = []
    for i, x, axes in _aligned(node):
        line = node.moves(pieces, x, axes)
        if line:
            found.append((i, x, line))
    return found


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
        at = _joined_along(node)
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
    if first and has_packed(node):
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
        rows = [*range(n - 2), n - 2, -1]
        columns = [*range(n - 2), -1, n - 1]
    found: Aligned = []
    for i, x, axes in ((first, a, rows), (first + 1, b, columns)):
        if isinstance(x, View) and n:
            found.append((i, x, axes))
    if first and isinstance(node.args[0], View) and n == len(node.args[0].size):
        found.append((0, node.args[0], range(n)))
    return found


def _indexed(x: View, places: Any) -> Aligned:
    """A tensor indexed by one other, along one axis."""
    given = [(i, y) for i, y in enumerate(places) if isinstance(y, View)]
    if len(given) != 1:
        return []
    at, index = given[0]
    more = len(index.size)
    return [(0, x, [*range(at), *[at if more == 1 else -1] * more, *range(at + 1, len(x.size))])]


@cache
def _takes_packed(func: Any) -> bool:
    return func is not None and any("__torch__" in str(x.type) for x in func._schema.arguments)


def has_packed(node: Node) -> bool:
    """Whether an operation takes packed parameters, as quantised products do."""
    return _takes_packed(node.func)


def reduced(node: Node) -> frozenset[int]:
    """The axes of its argument of which a sum or a maximum makes one."""
    x = node.args[0]
    n = len(x.size)
    names = [a.name for a in node.func._schema.arguments]
    given = dict(zip(names, node.args)) | node.kwargs
    axes = given.get("dim", given.get("axis"))
    if axes is None or axes == []:
        return frozenset(range(n))
    return frozenset(_axis(i, n) for i in ([axes] if isinstance(axes, int) else axes))


def along(node: Node) -> int:
    """The axis along which a softmax works."""
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", -1)
    return _axis(axis, len(node.size))


def _axis(axis: int, n: int) -> int:
    return axis % n if n else 0


def origin(view: View, line: Line, most: int = 64) -> str:
    """What the entries of an axis are: "rows" of one tensor, or each of its own.

    "parameters" of its own, as classes and experts have, "parts" of a model that made each, or
    "copies" of one.
    """
    for _ in range(most):
        node = view.settled().node
        if node is not view.node:  # written in pieces
            return "rows"
        if not node.data:
            return "parameters"
        found = node.pieces(line)
        if not found:
            return "copies" if found == () else "rows"
        axes = {axis for axis, _, _ in found}
        if node.name == "given":  # beside the batch, or between rows and width, as streams are
            first = found[0][0] == 0 and found[0][2] < node.size[0]
            between = len(node.size) > 3 and min(axes) > 0 and max(axes) < len(node.size) - 1
            return "parts" if first or between else "rows"
        if node.name == "module":
            if node.kwargs["own"] % len(node.size) in axes:
                return "parameters"
        elif node.name in PRODUCTS and all(
            x.node.data for i, x in node.views if i >= PRODUCTS[node.name]
        ):
            return "rows"
        elif node.name in ("stack", "cat") and len(axes) == 1 and _joined_along(node) in axes:
            parts = [x for _, x, _ in _aligned(node)]
            makers = set(map(_maker, parts))
            single = node.name == "stack" or all(x.size[_joined_along(node)] == 1 for x in parts)
            return "parts" if single and len(makers) > 1 else "rows"
        steps = list(back(node, found))
        carried = [(x, there) for _, x, there in steps if x.node.data]
        if not carried:
            if steps or has_packed(node):
                return "parameters"
            return "copies" if node.entrywise else "rows"
        view, line = carried[0]
    return "rows"


def _joined_along(node: Node) -> int:
    return _axis(node.args[1] if len(node.args) > 1 else 0, len(node.size))


def _maker(view: View, most: int = 32) -> object:
    """The part of a model, or its parameter, that made a tensor last."""
    for _ in range(most):
        node = view.settled().node
        if node.name == "module":
            return node.kwargs["module"]
        if node.name in PRODUCTS or node.name == "convolution":
            fixed = [x.settled().node for _, x in node.views if not x.node.data]
            if fixed:
                return fixed[-1]
        view = next((x for _, x in node.sources), None)  # type: ignore[assignment]
        if view is None:
            return node
    return None


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
        if node.name == "module" and any(
            i == node.kwargs["own"] % len(node.size) for i, _, _ in found
        ):
            return True
        steps = list(back(node, found))
        carried = [(x, x_line) for _, x, x_line in steps if x.node.data]
        if not carried and (steps or has_packed(node)):
            return True
        met |= node.name == "module" or _has_parameters(node)
        left += carried
    return False if met else None


def _has_parameters(node: Node) -> bool:
    """Whether an operation is a product or a convolution with parameters, packed ones included."""
    first = PRODUCTS.get(node.name, 0 if node.name in CONVOLUTIONS else None)
    fixed = first is not None and any(not x.node.data for i, x in node.views if i >= first)
    return fixed or has_packed(node)
