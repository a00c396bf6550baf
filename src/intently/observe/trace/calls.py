"""A site as the call that watches keep and edits change.

Where one product and one softmax give the weights, these lead back to their queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add, and_, itemgetter
from typing import Any

import torch
from torch import Tensor

from intently.core.biases import as_bias
from intently.core.masks import allowed
from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import HIDDEN
from intently.observe.trace.blocks import Placed, in_place, of_sources
from intently.observe.trace.graph import (
    COPIES,
    PRODUCTS,
    SOFTMAX,
    Line,
    Node,
    Part,
    View,
    along,
    laid,
)
from intently.observe.trace.normaliser import Normal, is_dropout
from intently.observe.trace.sites import Site
from intently.observe.watching.call import After, AttentionSpec, Call, Put

STEPS = 32
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
    asked: View | None = None
    groups: list[list[Part]] = field(default_factory=list)


def scores(site: Site) -> Scores | None:
    """The queries and keys of weights; None if it takes more than one product and one softmax."""
    if site.normal is None or site.contraction.rows is not None or site.parts:
        return None
    walk = _Walk(site)
    for _ in range(STEPS):
        node = walk.view.settled().node
        if walk.view.written_in_parts():
            return None
        if node.name in PRODUCTS:
            return walk.product(node) if walk.whole else None
        if not walk.over(node):
            return None
    return None


def before_dropout(site: Site) -> tuple[Tensor, Tensor] | None:
    """The weights (*b, h, t, s) before some were dropped, and their factors; None if none were."""
    if site.normal is None or site.normal.dropped is None:
        return None
    walk, (node, i) = _Walk(site), site.normal.dropped
    for _ in range(STEPS):
        here = walk.view.settled().node
        if here is node:
            whole, factor = walk._other(node, i), None
            if whole is not None and node.name in ("mul", "div"):
                factor = walk._other(node, 1 - i)
            elif whole is not None:
                factor = torch.where(whole == 0, 0, site.weights / whole)
            if whole is None or factor is None:
                return None
            return whole, 1 / factor if node.name == "div" else factor
        if here.name not in COPIES or not walk._into(here, 0):
            return None
    return None


class _Walk:
    """A walk from weights to the product, with each axis as lines in every tensor on the way.

    ``groups`` are the axes batch, heads, queries and keys, each made of one line or several.
    ``whole`` says that it came by what makes the weights a whole.
    """

    def __init__(self, site: Site) -> None:
        assert site.normal is not None
        self.normal = site.normal.node
        self.view = site.contraction.views[site.side]
        self.groups: list[list[Line]] = [
            [((axis.steps[site.side], axis.count),) for axis in group] for group in site.groups
        ]
        self.whole, self.exponential = False, False
        self.scale = 1.0
        self.biases = list[tuple[Tensor, float]]()
        self.masks = list[Tensor]()

    def over(self, node: Node) -> bool:
        """Go back over an operation; say whether that was possible."""
        name, views = node.name, dict(node.views)
        if 0 not in views and name != "where":
            return False
        if name in COPIES or is_dropout(node):
            return self._into(node, 0)
        if not self.whole:
            if node is self.normal and name in SOFTMAX:
                self.whole = True
            elif name == "exp":
                self.whole = self.exponential = True
            elif node is not self.normal or name not in ("div", "mul"):
                return False
            return self._into(node, 0)
        if name == "_log_softmax" and node is self.normal:
            return self._into(node, 0)
        if name == "neg":
            self.scale = -self.scale
            return self._into(node, 0)
        if name in ("mul", "div"):
            factor = node.args[1]
            if 1 in views:
                other = node.kept(1)
                factor = float(other) if other is not None and other.numel() == 1 else None
            if factor is None or factor == 0:
                return False
            self.scale *= factor if name == "mul" else 1 / factor
            return self._into(node, 0)
        if name in ("add", "sub") and len(views) == 2:
            main = int(not self._leads(node, 0))
            alpha = node.kwargs.get("alpha", 1)
            sign, own = (-alpha, 1) if name == "sub" else (alpha, 1)
            if main == 1 and (name == "sub" or own != alpha):
                return False
            return self._added(node, main, sign) and self._into(node, main)
        if name == "masked_fill" and 1 in views:
            return self._hidden(node, 1, node.args[2], 2, False) and self._into(node, 0)
        if name == "where":
            for main, fill in ((1, 2), (2, 1)):
                if main in views and self._leads(node, main):
                    value = node.args[fill]
                    return self._hidden(node, 0, value, fill, main == 1) and self._into(node, main)
        return False

    def product(self, node: Node) -> Scores | None:
        """The queries and keys of the product that gives the scores."""
        first, n = PRODUCTS[node.name], len(node.size)
        a, b = node.kept(first), node.kept(first + 1)
        if a is None or b is None or node.name not in ("mm", "bmm", "addmm", "baddbmm"):
            return None
        if first:
            beta = node.kwargs.get("beta", 1)
            if beta and not self._added(node, 1, beta):
                return None
            self.scale *= node.kwargs.get("alpha", 1)
        lead, rows, columns = range(n - 2), n - 2, n - 1
        left = {i: a.stride(i) for i in lead} | {rows: a.stride(-2)}
        right = {i: b.stride(i) for i in lead} | {columns: b.stride(-1)}
        inner = a.stride(-1), b.stride(-2)
        for q, k, of_q, of_k, steps in (
            (a, b, left, right, inner),
            (b, a, right, left, inner[::-1]),
        ):
            queries = self._factor(node, q, of_q, -2, steps[0], a.shape[-1])
            keys = self._factor(node, k, of_k, -1, steps[1], a.shape[-1])
            if queries is not None and keys is not None:
                biases = [x if s == 1 else x * s for x, s in self.biases]
                asked = node.args[first if q is a else first + 1]
                parts = [self._steps(node, x, of_q) or [] for x in self.groups[:-1]]
                return Scores(queries, keys, self.scale, biases, self.masks, asked, parts)
        return None

    def _into(self, node: Node, i: int) -> bool:
        """Go on in an argument that has all axes of the result."""
        lines = self._lines(node, node.args[i], whole=True)
        if lines is None:
            return False
        self.view, self.groups = node.args[i], lines
        return True

    def _lines(self, node: Node, x: View, whole: bool = False) -> list[list[Line]] | None:
        """The axes in an argument that is aligned with the result at the last axis.

        None if it has parts of them only, or, for the ``whole``, not all.
        """
        found: list[list[Line]] = []
        for group in self.groups:
            found.append([])
            for line in group:
                pieces = node.pieces(line)
                there = None if pieces is None else node.into(pieces, x)
                if there is None or (whole and 0 in map(itemgetter(0), there)):
                    return None
                found[-1].append(there)
        return found

    def _leads(self, node: Node, i: int) -> bool:
        """Whether an argument has all axes of the scores, and comes from a product."""
        x = node.args[i]
        if self._lines(node, x, whole=True) is None:
            return False
        for _ in range(STEPS):
            at = x.settled().node
            if at.name in PRODUCTS:
                return all(v.node.data for j, v in at.views if j >= PRODUCTS[at.name])
            if not at.sources or not at.entrywise:
                return False
            x = at.sources[0][1]
        return False

    def _other(self, node: Node, i: int) -> Tensor | None:
        """An argument beside the scores, as (*b, h, t, s) with 1 where it is the same."""
        x, view = node.kept(i), node.args[i]
        lines = self._lines(node, view) if isinstance(view, View) else None
        return None if x is None or lines is None else _broadcast(x, lines)

    def _added(self, node: Node, main: int, sign: float) -> bool:
        other = self._other(node, 1 - main)
        if other is None:
            return False
        if other.shape[-1] > 1 or not self.groups[-1]:  # else it is the same for all keys
            self.biases.append((other, sign * self.scale))
        return True

    def _hidden(self, node: Node, mask: int, value: Any, at: int, keep: bool) -> bool:
        if isinstance(value, View):
            x = node.kept(at)
            value = float(x) if x is not None and x.numel() == 1 else None
        shown = self._other(node, mask)
        if value is None or shown is None or value * math.copysign(1, self.scale) > HIDDEN:
            return False
        self.masks.append(shown if keep else ~shown)
        return True

    def _steps(
        self, node: Node, group: Sequence[Line], steps: Mapping[int, int]
    ) -> list[Part] | None:
        """An axis in a factor of a product, as steps and sizes; None for a diagonal."""
        found: list[Part] = []
        for line in group:
            pieces = node.pieces(line)
            if pieces is None:
                return None
            for axis, step, n in reversed(pieces):
                found.append((steps.get(axis, 0) * step, n))
        return found

    def _factor(
        self, node: Node, x: Tensor, steps: Mapping[int, int], own: int, inner: int, width: int
    ) -> Tensor | None:
        """The queries or keys (*b, h, n, d) in a factor; None if its axes are others."""
        parts = list[list[Part]]()
        for at, group in enumerate(self.groups, -len(self.groups)):
            some = self._steps(node, group, steps)
            if some is None:
                return None
            moving = [step != 0 for step, _ in some]
            if at in (-2, -1) and (at != own) in moving:
                return None
            if at < -2 or at == own:
                parts.append(some)
        return laid(x, [*parts, [(inner, width)]])


def _broadcast(x: Tensor, groups: Sequence[Sequence[Line]]) -> Tensor:
    """A tensor with its axes in the order of their lines, of size 1 where it is the same."""
    parts = [[part for line in group for part in reversed(line)] for group in groups]
    return laid(x, [some if any(map(itemgetter(0), some)) else [] for some in parts])


BY_HAND = "by hand"
"""The name of this source."""

NO_PRODUCT = "the scores of its softmax are no product of queries and keys"
IN_BLOCKS = "it attends in blocks"
DROPPED = "dropout changed weights in blocks"
CHANGED = "{} changed its weights before they met the values"
PARTS = "they met their values in several products"
OTHER = "{} made them a whole"


def call_of(site: Site) -> Call:
    """The call of a site: its queries and keys where they give the weights, else the weights."""
    summed, left = site.contraction.summed is not None, before_dropout(site)
    given = scores(site)
    blocks = in_place(site, *((given.asked, given.groups) if given else (None, ())))
    if blocks is not None:
        return replace(blocks_kept(site, blocks), shut=None if left is None else DROPPED)
    y: Tensor | After = site.output
    put: Put = partial(_put_in, site, _first if summed else _same, _same)
    if summed:
        y = After(_first(site.output), lambda mixed, rows: mixed.sum(-3))
    made = of_sources(site) if site.contraction.rows is not None else replace(site)
    met = passed = None
    if left is not None:
        whole, factor = (x.expand(site.weights.shape) for x in left)
        met, passed, made.weights = site.weights, lambda: factor, whole
    elif site.contraction.rows is not None:
        passed = partial(_pairs, site)
    as_weights = partial(weights_kept, made, y=y, met=met, passed=passed, put=put)
    if given is None:
        made = as_weights(why(site))
        how = replace(made.how, softmax=earlier(site))
        return replace(made, how=how, changed=changed(site))
    how = AttentionSpec(
        mask=allowed(reduce(and_, given.masks)) if given.masks else None,
        bias=reduce(add, map(as_bias, given.biases)) if given.biases else None,
        scale=given.scale,
    )
    return Call(
        given.q,
        given.k,
        made.values,
        y,
        how,
        BY_HAND,
        real=made.weights,
        put=put,
        as_weights=as_weights,
        met=met,
        passed=passed,
    )


def blocks_kept(site: Site, placed: Placed) -> Call:
    """The call that keeps the weights of blocks, each in its place."""
    w, y = placed.weights, placed.output
    none = w.weights.new_zeros(()).expand(*w.weights.shape[:-3], w.t, 0)
    keys = w.weights.new_zeros(()).expand(*w.weights.shape[:-3], w.s, 0)
    hidden = (w.rows < 0)[..., None]
    put = partial(
        _put_in,
        site,
        lambda x: placed.ordered(x).masked_fill(hidden, -1),
        lambda edited: edited[..., w.rows.clamp_min(0), :],
    )
    how, ones = AttentionSpec(weights=w), torch.ones_like(w.weights[(0,) * (w.weights.ndim - 3)])
    there = w.replaced(lambda x: ones if x is w.weights else x)
    made = Call(none, keys, placed.values, y, how, BY_HAND, as_it_is=IN_BLOCKS, put=put)
    return replace(made, passed=lambda: there.dense().clamp(max=1), changed=changed(site))


def why(site: Site) -> str:
    """Why the weights are kept, and not the queries and keys."""
    normal = site.normal
    assert normal is not None
    changes = _changes(normal)
    if site.parts:
        return PARTS
    if not normal.sure:
        return OTHER.format(" and ".join([f"aten.{normal.node.name}", *changes]))
    if changes:
        return CHANGED.format(" and ".join(changes))
    return (
        NO_PRODUCT
        if normal.node.name.endswith("softmax")
        else OTHER.format(f"aten.{normal.node.name}")
    )


def changed(site: Site) -> str | None:
    """What changed weights that were a whole before they met the values, None if nothing did."""
    normal = site.normal
    return (" and ".join(_changes(normal)) or None) if normal and normal.sure else None


def earlier(site: Site) -> Tensor | None:
    """The weights (*b, h, t, s) of the softmax, before something changed them."""
    normal, size = site.normal, site.weights.shape
    found = normal.node.kept(-1) if normal and changed(site) else None
    if found is None or normal is None:
        return None
    found = found.movedim(along(normal.node), -1)
    alike = found.shape[-2:] == size[-2:] and found.numel() == site.weights.numel()
    return found.reshape(size) if alike else None


def _changes(normal: Normal) -> list[str]:
    return [f"aten.{x}" for x in dict.fromkeys(normal.changes) if x != "native_dropout"]


def weights_kept(site: Site, reason: str, y: Tensor | After, **more: Any) -> Call:
    """The call that keeps the weights themselves."""
    w = site.weights
    q, k = (
        w.new_zeros(()).expand(*w.shape[:-1], 0),
        w.new_zeros(()).expand(*w.shape[:-2], w.shape[-1], 0),
    )
    how = AttentionSpec(weights=w)
    return Call(q, k, site.values, y, how, BY_HAND, real=w, as_it_is=reason, **more)


def sparse_call(weights: Tensor, axis: int) -> Call:
    """The call of a sparse matrix of weights, whose product with values is not followed."""
    w = weights.detach().to_dense().movedim(axis, -1)
    none = w.new_zeros(()).expand(*w.shape[:-1], 0)
    keys = w.new_zeros(()).expand(*w.shape[:-2], w.shape[-1], 0)
    then = "their product with values is not followed"
    how = AttentionSpec(weights=w)
    return Call(none, keys, keys, None, how, BY_HAND, as_it_is="they are sparse", then=then)


def _pairs(site: Site) -> Tensor:
    """1 where a query and a key are joined by an edge, else 0."""
    assert site.contraction.rows is not None
    row, index = site.contraction.rows
    joined = index == torch.arange(row.count, device=index.device)[:, None]
    return of_sources(replace(site, weights=joined.to(site.weights))).weights


def _put_in(
    site: Site,
    pick: Callable[[Tensor], Tensor],
    part: Callable[[Tensor], Tensor],
    edited: Tensor,
    matrix: LazyMatrix,
) -> None:
    """Overwrite what an operation wrote: ``part`` of y at the places of ``pick``, but -1."""
    out, factor = site.contraction.added or (site.contraction.result, None)
    out = out if site.into is None else site.into
    flat, at, new = out.reshape(-1), pick(site.places()), part(edited)
    if factor is not None:
        new = flat[at] + factor * (new - pick(site.output))
    there = at >= 0
    made = flat.index_put((at[there],), new[there].to(out.dtype))
    out.copy_(made.view(out.shape))


def _same(x: Tensor) -> Tensor:
    return x


def _first(x: Tensor) -> Tensor:
    """The output (*b, t, e) of one that is the same for all heads."""
    return x.select(-3, 0)
