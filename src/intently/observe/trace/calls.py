"""A site as the call that watches keep and edits change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from operator import add, and_
from typing import Any

import torch
from torch import Tensor

from intently.core.biases import as_bias
from intently.core.masks import allowed
from intently.core.matrix import LazyMatrix
from intently.observe.trace.axes import along
from intently.observe.trace.blocks import Placed, in_place, of_sources
from intently.observe.trace.normaliser import Normal
from intently.observe.trace.scores import before_dropout, scores
from intently.observe.trace.sites import Site
from intently.observe.watching.call import After, AttentionSpec, Call, Put

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
    placed = in_place(site, given)
    if placed is not None:
        return replace(blocks_kept(site, placed), shut=None if left is None else DROPPED)
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
