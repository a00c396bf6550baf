"""A site as the call that watches keep and edits change: at once, or when its function returned.

Where one product and one softmax give the weights, these lead back to their queries and keys. The
trace sees operations below autograd, where a result can be changed but not its gradient. Above it,
overwriting what an operation wrote is an operation like any other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add, and_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

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
from intently.observe.watching.modules import share
from intently.observe.watching.scope import current, tell

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
            break
        if here.name not in COPIES or not walk._into(here, 0):
            return None
    else:
        return None
    whole = walk._other(node, i)
    if whole is None:
        return None
    if node.name not in ("mul", "div"):
        return whole, torch.where(whole == 0, 0, site.weights / whole)
    factor = walk._other(node, 1 - i)
    return None if factor is None else (whole, 1 / factor if node.name == "div" else factor)


def _number(node: Node, i: int) -> Any:
    """An argument that is a number, or a tensor of one that was kept; None for other tensors."""
    value, x = node.args[i], node.kept(i)
    if not isinstance(value, View):
        return value
    return float(x) if x is not None and x.numel() == 1 else None


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
        self.whole, self.scale = False, 1.0
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
            self.whole = name == "exp" or (node is self.normal and name in SOFTMAX)
            divided = node is self.normal and name in ("div", "mul")
            return (self.whole or divided) and self._into(node, 0)
        if name == "neg" or (name == "_log_softmax" and node is self.normal):
            self.scale *= -1 if name == "neg" else 1
            return self._into(node, 0)
        if name in ("mul", "div"):
            factor = _number(node, 1)
            if not factor:
                return False
            self.scale *= factor if name == "mul" else 1 / factor
            return self._into(node, 0)
        if name in ("add", "sub") and len(views) == 2:
            main, alpha = int(not self._leads(node, 0)), node.kwargs.get("alpha", 1)
            sign, fits = (
                -alpha if name == "sub" else alpha,
                main == 0 or (name, alpha) == ("add", 1),
            )
            return fits and self._added(node, main, sign) and self._into(node, main)
        if name == "masked_fill" and 1 in views:
            return self._hidden(node, 1, 2, False) and self._into(node, 0)
        if name == "where":
            for main, fill in ((1, 2), (2, 1)):
                if main in views and self._leads(node, main):
                    return self._hidden(node, 0, fill, main == 1) and self._into(node, main)
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
            pieces = [node.pieces(line) for line in group]
            there = [None if some is None else node.into(some, x) for some in pieces]
            lines = [line for line in there if line is not None]
            if len(lines) < len(there) or (whole and any(not n for x in lines for n, _ in x)):
                return None
            found.append(lines)
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
        if x is None or lines is None:
            return None
        parts = [[part for line in group for part in reversed(line)] for group in lines]
        return laid(x, [some if any(map(itemgetter(0), some)) else [] for some in parts])

    def _added(self, node: Node, main: int, sign: float) -> bool:
        other = self._other(node, 1 - main)
        if other is None:
            return False
        if other.shape[-1] > 1 or not self.groups[-1]:  # else it is the same for all keys
            self.biases.append((other, sign * self.scale))
        return True

    def _hidden(self, node: Node, mask: int, at: int, keep: bool) -> bool:
        value, shown = _number(node, at), self._other(node, mask)
        if value is None or shown is None or value * math.copysign(1, self.scale) > HIDDEN:
            return False
        self.masks.append(shown if keep else ~shown)
        return True

    def _steps(
        self, node: Node, group: Sequence[Line], steps: Mapping[int, int]
    ) -> list[Part] | None:
        """An axis in a factor of a product, as steps and sizes; None for a diagonal."""
        found: list[Part] = []
        for pieces in map(node.pieces, group):
            if pieces is None:
                return None
            found += [(steps.get(axis, 0) * step, n) for axis, step, n in reversed(pieces)]
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


# --- the call -------------------------------------------------------------------------------------

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
    summed, left, given = site.contraction.summed is not None, before_dropout(site), scores(site)
    blocks = in_place(site, *((given.asked, given.groups) if given else (None, ())))
    if blocks is not None:
        return replace(blocks_kept(site, blocks), shut=None if left is None else DROPPED)
    y: Tensor | After = site.output
    put: Put = partial(_put_in, site, _first if summed else lambda x: x, lambda edited: edited)
    y = After(_first(site.output), lambda mixed, rows: mixed.sum(-3)) if summed else y
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
    call = Call(given.q, given.k, made.values, y, how, BY_HAND, real=made.weights, put=put)
    return replace(call, as_weights=as_weights, met=met, passed=passed)


def blocks_kept(site: Site, placed: Placed) -> Call:
    """The call that keeps the weights of blocks, each in its place."""
    w, y = placed.weights, placed.output
    none, keys = (w.weights.new_zeros(()).expand(*w.weights.shape[:-3], n, 0) for n in (w.t, w.s))
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
    q, k = (w.new_zeros(()).expand(*w.shape[:-2], n, 0) for n in w.shape[-2:])
    how = AttentionSpec(weights=w)
    return Call(q, k, site.values, y, how, BY_HAND, real=w, as_it_is=reason, **more)


def sparse_call(weights: Tensor, axis: int) -> Call:
    """The call of a sparse matrix of weights, whose product with values is not followed."""
    w = weights.detach().to_dense().movedim(axis, -1)
    none, keys = (w.new_zeros(()).expand(*w.shape[:-2], n, 0) for n in w.shape[-2:])
    then, how = "their product with values is not followed", AttentionSpec(weights=w)
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


def _first(x: Tensor) -> Tensor:
    """The output (*b, t, e) of one that is the same for all heads."""
    return x.select(-3, 0)


# --- when it is told ------------------------------------------------------------------------------

LATE = "aten.{} read the output within the function that computed it, so that no gradient follows"
OWN_BACKWARD = "it ran in a torch.autograd.Function, which computes its gradient itself"


@dataclass
class Waiting:
    """A site of a module that an edit changes; it is found ``again`` above autograd.

    ``graded`` says that gradients flow; ``refused`` is why it cannot be changed, ``more`` that its
    call was changed before, with different values.
    """

    module: nn.Module | None
    site: Site
    again: Callable[[], Site | None]
    graded: bool
    more: bool = False
    refused: str | None = None

    def reads(self, name: str, args: tuple[Any, ...], made: Any) -> None:
        """Hear of an operation that runs before the function has returned."""
        result = self.site.contraction.result
        if any(isinstance(x, Tensor) and share(x, result) for x in args):
            if name == "_unsafe_view":  # the same memory, and another tensor for autograd
                self.site.into = made
            else:
                self.refused = self.refused or LATE.format(name)

    def tell(self) -> None:
        """Let edits change it, and others hear of it."""
        tell(current(), BY_HAND, self.module, self._call, again=self.more or bool(self.site.again))

    def _call(self) -> Call | str:
        if self.refused is not None:
            return self.refused
        site = self.again() if self.graded else self.site
        assert site is not None
        return replace(call_of(replace(site, into=self.site.into)), again=self.more)


class AfterFunctions(TorchFunctionMode):
    """Tells the sites that are ``waiting`` as soon as the function that computed them returns."""

    def __init__(self, waiting: list[Waiting]) -> None:
        super().__init__()
        self._waiting = waiting

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        while self._waiting:
            self._waiting.pop(0).tell()
        return result


def has_own_backward() -> bool:
    """Whether the forward of a `torch.autograd.Function` runs, other than that of a checkpoint."""
    graded = torch.is_grad_enabled() or torch._C._is_fwd_grad_enabled()  # `no_grad` leaves this
    if graded or torch.is_inference_mode_enabled():
        return False
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back
    return frame is None
