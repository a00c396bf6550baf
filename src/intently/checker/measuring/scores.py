"""From weights back to the scores, and to the product of queries and keys that made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, prod
from typing import TypeAlias

import torch
from torch import Tensor

from intently.checker.measuring.run import Older, Run
from intently.observe.trace.graph import (
    COPIES,
    PRODUCTS,
    RANDOM,
    SOFTMAX,
    Line,
    Node,
    View,
    along,
    back,
    laid,
    reduced,
)
from intently.observe.trace.normaliser import Normal, is_dropout
from intently.observe.trace.sites import Site

Groups: TypeAlias = list[list[Line]]
"""The axes batch, heads, queries and keys, each of one line or several."""

FAR = 64
"""Operations at most between weights and product."""


@dataclass
class Product:
    """A product of queries and keys: (*b, h, t, s), (*b, h, t, d), (*b, h, s, d)."""

    node: Node
    scores: Tensor
    q: Tensor
    k: Tensor
    views: tuple[View, View]
    groups: Groups


@dataclass
class Walked:
    """What lies between weights and their scores.

    ``scores`` (*b, h, t, s) are those of the softmax, None where they could not be followed;
    ``products`` made them, with ``more`` data products that were not laid out; ``learned`` are
    the parameters met on the way.
    """

    scores: Tensor | None = None
    products: list[Product] | None = None
    more: int = 0
    network: bool = False
    learned: tuple[str, ...] = ()
    given: tuple[Node, ...] = ()
    """The inputs that enter the scores beside products."""
    dropped: int = 0
    """How many multiplications with random numbers stand between the softmax and the values."""
    dropped_before: bool = False
    """Whether scores are dropped."""
    soft: Tensor | None = None
    """The weights as they were when they were made a whole."""


def is_product(node: Node) -> bool:
    """Whether an operation is a product of two tensors of the data."""
    if node.name in PRODUCTS:
        first = PRODUCTS[node.name]
        return sum(x.node.data for i, x in node.views if i >= first) == 2
    return _of_sum(node) is not None


def _of_sum(node: Node) -> Node | None:
    """The multiplication entry by entry whose result a sum adds up, if both factors are data."""
    if node.name != "sum" or not node.args or not isinstance(node.args[0], View):
        return None
    mul = node.args[0].settled().node
    if mul.name != "mul" or tuple(node.args[0].size) != mul.size:
        return None
    both = [x for _, x in mul.views if x.node.data]
    same = len(both) == 2 and both[0].settled().node is both[1].settled().node
    return mul if len(both) == 2 and not same else None


def walked(run: Run, site: Site) -> Walked:
    """Follow the weights of a site back; what cannot be followed is left out."""
    if site.normal is None or site.contraction.rows is not None:
        return Walked()
    groups: Groups = [
        [((axis.steps[site.side], axis.count),) for axis in group] for group in site.groups
    ]
    found = _to_scores(site.contraction.views[site.side], groups, site.normal)
    if found is None:  # heads are mixed on the way
        node = site.normal.node
        n = len(node.size)
        if node.name not in SOFTMAX or n < 3:
            return Walked()
        keys = along(node)
        rows = n - 1 if keys != n - 1 else n - 2
        order = [*(i for i in range(n) if i not in (rows, keys)), rows, keys]
        groups = [[node.view.line(i)] for i in order]
        found = _to_scores(node.view, groups, site.normal)
        if found is None:
            return Walked()
    view, groups, soft = found
    whole = None if soft is None else _laid(run.tensor(soft[0]), soft[1])
    of_two = any(x.name == "exp2" and x.args[0] is view for x in run.results)
    view, groups = _unshifted(view, groups)
    scores = _laid(run.tensor(view), groups)
    scores = scores * log(2) if of_two else scores
    products, network, names, given = _made_of(run, view, asks=scores.shape[-2] > 1)
    made: list[Product] = []
    for node in list(products):
        there = _carried(view, groups, node)
        product = None if there is None else _product(run, node, there)
        if product is not None:
            made.append(product)
        elif not is_product(node):  # a layer, and no product of learned queries
            products.remove(node)
            network = True
    late = _drops(site.contraction.views[site.side], {site.normal.node})
    early = _drops(view, {x.node for x in made}) if made else 0
    more = len(products) - len(made)
    return Walked(scores, made, more, network, names, given, late, early > 0, whole)


def _drops(view: View, until: set[Node]) -> int:
    """How many times dropout changes what lies between a tensor and some nodes."""
    left, seen, drawn = [view], set[Node](), set[Node]()
    while left and len(seen) < FAR:
        node = left.pop().settled().node
        if node in seen or node in until or not node.data:
            continue
        seen.add(node)
        if node.name == "native_dropout":
            drawn.add(node)
        elif is_dropout(node):
            drawn |= {_drawn(x) for _, x in node.views} - {node}
            drawn.discard(None)  # type: ignore[arg-type]
        if node.name not in PRODUCTS and not node.name.startswith(RANDOM):
            floats = (x for _, x in node.sources if x.node.dtype.is_floating_point)
            whole = 0 if node.name in ("cat", "stack") else prod(node.size)  # of as many entries
            left += [x for x in floats if prod(x.settled().node.size) >= whole]
    return len(drawn)


def _drawn(view: View, most: int = 8) -> Node | None:
    """The random numbers that a tensor is made of alone."""
    node = view.settled().node
    if node.name.startswith(RANDOM):
        return node
    nexts = [x for _, x in node.views] if node.entrywise and most else []
    found = [_drawn(x, most - 1) for x in nexts]
    return found[0] if found and None not in found else None


def _to_scores(
    view: View, groups: Groups, normal: Normal
) -> tuple[View, Groups, tuple[View, Groups] | None] | None:
    """The tensor that is made a whole, with the axes of the weights in it."""
    node = view.settled().node
    in_sum = not _leads(view, normal.node)  # exponentials whose products are divided later
    for _ in range(0 if in_sum else FAR):
        node = view.settled().node
        if node is normal.node:
            break
        step = _over(view, groups, normal.node)
        if step is None:
            return None
        view, groups = step
    soft = None if in_sum or node.name in ("sub", "_log_softmax") else (view, groups)
    less_sum = node is normal.node and node.name == "sub"  # z less the logarithm of its sum
    if node.name in SOFTMAX or node.name == "_log_softmax" or less_sum:
        if not isinstance(node.args[0], View):
            return None
        lines = _lines(node, node.args[0], groups, None)
        return None if lines is None else (node.args[0], lines, soft)
    for _ in range(FAR):  # exp of the scores, over their sum
        node = view.settled().node
        if node.name in ("exp", "exp2", "sigmoid", "softplus") or node.name in SOFTMAX:
            lines = _lines(node, node.args[0], groups, None)
            return None if lines is None else (node.args[0], lines, soft)
        if not node.entrywise and node.name not in COPIES:
            return None
        step = _over(view, groups, None)
        if step is None:
            return None
        view, groups = step
    return None


def _unshifted(view: View, groups: Groups) -> tuple[View, Groups]:
    """Scores before the maximum of each row was taken away."""
    node = view.settled().node
    if node.name != "sub" or len(node.views) != 2 or view.written_in_parts():
        return view, groups
    x, y = node.views[0][1], node.views[1][1]
    lines = _lines(node, x, groups, None)
    for line in groups[-1]:
        pieces = node.pieces(line)
        there = None if pieces is None else node.into(pieces, y)
        if there is None or any(step for step, _ in there):
            return view, groups
    return (view, groups) if lines is None else (x, lines)


def _over(view: View, groups: Groups, to: Node | None) -> tuple[View, Groups] | None:
    """One operation back, into an argument with all axes, towards a node."""
    node = view.settled().node
    options: list[tuple[View, Groups]] = []
    for _, x, axes in _aligned(node):
        lines = _lines(node, x, groups, axes)
        if lines is not None and x.node.data:
            options.append((x, lines))
    if to is not None and len(options) > 1:
        options = [o for o in options if _leads(o[0], to)] or options
    return options[0] if options else None


def _aligned(node: Node) -> list[tuple[int, View, Sequence[int] | None]]:
    if node.aligned is None:
        back(node, [])
    return node.aligned or []


def _lines(node: Node, x: View, groups: Groups, axes: Sequence[int] | None) -> Groups | None:
    """The axes in an argument; None if it lacks a part of them."""
    found: Groups = []
    for group in groups:
        found.append([])
        for line in group:
            pieces = node.pieces(line)
            there = None if pieces is None else node.into(pieces, x, axes)
            still = there is not None and any(step == 0 and n > 1 for step, n in there)
            copied = node.name == "repeat" or _same_along(node, line)
            if there is None or (still and not copied):
                return None
            found[-1].append(there)
    return found


def _same_along(node: Node, line: Line) -> bool:
    """Whether a line does not move in its memory: one row stands for all."""
    return all(step == 0 for step, _ in line)


def _leads(view: View, to: Node) -> bool:
    left, seen = [view], set[Node]()
    while left and len(seen) < 4 * FAR:
        node = left.pop().settled().node
        if node is to:
            return True
        if node not in seen:
            seen.add(node)
            left += [x for _, x in node.sources]
    return False


def _made_of(
    run: Run, view: View, *, asks: bool
) -> tuple[list[Node], bool, tuple[str, ...], tuple[Node, ...]]:
    """The products that scores are made of, whether a layer makes them, parameters and inputs."""
    left, seen = [view], set[Node]()
    products, given = list[Node](), list[Node]()
    network, names = False, dict[str, None]()
    while left and len(seen) < 4 * FAR:
        node = left.pop().settled().node
        if node in seen or not node.data:
            continue
        seen.add(node)
        if is_product(node):
            products.append(node)
            if node.name in ("baddbmm", "addmm") and isinstance(node.args[0], View):
                left.append(node.args[0])
            continue
        fixed = [x for _, x in node.views if not x.node.data]
        if asks and node.name in PRODUCTS and any(run.name_of(x) for x in fixed):
            products.append(node)  # perhaps of learned queries
            asks = False
            continue
        if node.name in PRODUCTS or node.name.endswith("convolution"):
            network |= any(run.name_of(x) for x in fixed)
        if node.name == "given":
            given.append(node)
            continue
        for x in fixed if node.name not in ("add", "sub") else ():
            name = run.name_of(x)
            if name:
                names[name] = None
        if network and node.name in PRODUCTS:
            continue
        left += [x for _, x in node.sources]
    return products, network and not products, tuple(names), tuple(given)


def _carried(view: View, groups: Groups, to: Node) -> Groups | None:
    """The axes of scores in a product that they are made of."""
    for _ in range(FAR):
        node = view.settled().node
        if node is to:
            return groups
        step = _over(view, groups, to)
        if step is None or not _leads(step[0], to):
            return None
        view, groups = step
    return None


def _laid(x: Tensor, groups: Groups) -> Tensor:
    return laid(x, [[part for line in group for part in reversed(line)] for group in groups])


def _product(run: Run, node: Node, groups: Groups) -> Product | None:
    """The queries and keys of a product, with its result in the axes of the site."""
    found = _factors(run, node)
    if found is None:
        return None
    (a, b), (x, y), steps, inner = found
    lead = len(groups) - 2
    for q, k, own, of in ((a, b, (0, 1), (x, y)), (b, a, (1, 0), (y, x))):
        queries = _factor(node, q, [s[own[0]] for s in steps], groups, lead, inner, own[0])
        keys = _factor(node, k, [s[own[1]] for s in steps], groups, lead + 1, inner, own[1])
        if queries is not None and keys is not None:
            result = value_of(run.value(node))
            if node.name in ("baddbmm", "addmm"):
                alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
                added = node.args[0]
                base = run.tensor(added) if isinstance(added, View) else added
                plain = (result - beta * base) / alpha if beta else result / alpha
                result = torch.empty_strided(
                    result.shape, result.stride(), dtype=result.dtype
                ).copy_(plain)
            return Product(node, _laid(result, groups), queries, keys, of, groups)
    return None


def _factors(run: Run, node: Node):
    """The factors, their views, the steps of each axis of the result, and what is summed."""
    if node.name in PRODUCTS:
        first = PRODUCTS[node.name]
        x, y = node.args[first : first + 2]
        a, b = node.kept(first), node.kept(first + 1)
        if a is None or b is None or node.name not in ("mm", "bmm", "addmm", "baddbmm"):
            return None
        steps = [(a.stride(i), b.stride(i)) for i in range(a.ndim - 2)]
        steps += [(a.stride(-2), 0), (0, b.stride(-1))]
        inner = [((a.stride(-1), a.shape[-1]), (b.stride(-2), b.shape[-2]))]
        return (a, b), (x, y), steps, inner
    mul = _of_sum(node)
    if mul is None:
        return None
    x, y = mul.args[:2]
    a, b = (run.tensor(v).expand(mul.size) for v in (x, y))
    gone = reduced(node)
    keep = len(node.size) == len(mul.size)
    steps = [
        (0, 0) if i in gone else (a.stride(i), b.stride(i))
        for i in range(len(mul.size))
        if keep or i not in gone
    ]
    inner = [((a.stride(i), mul.size[i]), (b.stride(i), mul.size[i])) for i in sorted(gone)]
    return (a, b), (x, y), steps, inner


def value_of(x: Tensor | Older) -> Tensor:
    """What a tensor held."""
    return x.data if isinstance(x, Older) else x


def _factor(
    node: Node,
    x: Tensor,
    steps: Sequence[int],
    groups: Groups,
    own: int,
    inner: Sequence[tuple[tuple[int, int], tuple[int, int]]],
    side: int,
) -> Tensor | None:
    """The queries or keys (*b, h, n, d) in a factor; None if its axes are others."""
    parts: list[list[tuple[int, int]]] = []
    for at, group in enumerate(groups):
        some: list[tuple[int, int]] = []
        for line in group:
            pieces = node.pieces(line)
            if pieces is None:
                return None
            some += [(steps[axis] * step, n) for axis, step, n in reversed(pieces)]
        moving = [step != 0 for step, n in some if n > 1]
        if at >= len(groups) - 2 and (at != own) in moving:
            return None
        if at < len(groups) - 2 or at == own:
            parts.append(some)
    return laid(x, [*parts, [each[side] for each in inner]])


def scale_of(run: Run, scores: Tensor, product: Product) -> Tensor | None:
    """The derivative (*b, h, t, s) of each score by its product.

    None where no gradient reaches it, or where a score is made of several of the product.
    """
    result = run.value(product.node)
    draw = torch.Generator().manual_seed(3)
    hold = scores.isfinite().to(scores.dtype)
    u = torch.randn(scores.shape, generator=draw, dtype=scores.dtype) * hold
    one, two = (gradient(scores, result, x) for x in (hold, u))
    if one is None or two is None:
        return None
    alpha = product.node.kwargs.get("alpha", 1)  # the product is without it
    one, two = (_laid(x, product.groups) * alpha for x in (one, two))
    size = one.abs().max().clamp(min=1e-30)
    if bool((two - u * one).abs().max() <= 1e-6 * size):
        return one
    ways = []
    for _ in range(2):  # what each row has in common, such as its maximum, does not count
        way = torch.randn(scores.shape, generator=draw, dtype=scores.dtype) * hold
        way = way - hold * way.sum(-1, keepdim=True) / hold.sum(-1, keepdim=True).clamp(min=1)
        g = gradient(scores, result, way)
        if g is None:
            return None
        ways.append((way, _laid(g, product.groups) * alpha))
    (a, x), (b, y) = ways
    slope = torch.where(a.abs() > 1e-3, x / a, y / b).nan_to_num(0.0) * hold
    fits = (slope * b - y).abs().max() <= 1e-6 * slope.abs().max().clamp(min=1e-30)
    alone = (hold.sum(-1, keepdim=True) < 2).expand(slope.shape)  # nothing can be told there
    return slope.masked_fill(alone, torch.nan) if bool(fits) else None


def gradient(y: Tensor, x: Tensor | Older, way: Tensor) -> Tensor | None:
    """The gradient of y along a way by x, in the strides of x; None if there is none."""
    at = x.edge if isinstance(x, Older) else x
    data = x.data if isinstance(x, Older) else x
    if at is None or not y.requires_grad or (isinstance(at, Tensor) and not at.requires_grad):
        return None
    if way.dtype is not y.dtype:  # what runs in float64 makes no shorter floats, even of these
        way = torch.zeros_like(y).copy_(way)
    (g,) = torch.autograd.grad(y, at, way, retain_graph=True, allow_unused=True)
    if g is None:
        return None
    made = torch.empty_strided(data.shape, data.stride(), dtype=g.dtype)
    return made.copy_(g) if g.stride() != data.stride() else g
