"""A site as the call that watches keep and edits change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from operator import add, and_
from typing import Any

import torch
from torch import Tensor

from intently.core.biases import as_bias
from intently.core.masks import allowed
from intently.core.matrix import LazyMatrix
from intently.observe.trace.blocks import Placed, in_place, of_sources
from intently.observe.trace.scores import before_dropout, scores
from intently.observe.trace.sites import Site
from intently.observe.watching.call import After, AttentionSpec, Call

BY_HAND = "by hand"
"""The name of this source."""

NO_PRODUCT = "the scores of its softmax are no product of queries and keys"
IN_BLOCKS = "it attends in blocks"
CHANGED = "{} changed its weights before they met the values"
OTHER = "{} makes them a whole"


def call_of(site: Site) -> Call:
    """The call of a site: its queries and keys where they give the weights, else the weights."""
    site = site if site.contraction.rows is None else of_sources(site)
    y: Tensor | After = site.output
    put = partial(_put_in, y) if _shares(y, site.contraction.result) else None
    if site.contraction.summed is not None:
        y, put = After(y.select(-3, 0), lambda mixed, rows: mixed.sum(-3)), None
    site = replace(site, output=y)
    given = scores(site)
    whole = before_dropout(site)
    placed = in_place(site, given)
    if placed is not None:
        return replace(blocks_kept(placed), changed=changed(site))
    met = None if whole is None else site.weights
    site = site if whole is None else replace(site, weights=whole.expand(site.weights.shape))
    if given is None:
        return replace(weights_kept(site, why(site), put), met=met, changed=changed(site))
    how = AttentionSpec(
        mask=allowed(reduce(and_, given.masks)) if given.masks else None,
        bias=reduce(add, map(as_bias, given.biases)) if given.biases else None,
        scale=given.scale,
    )
    return Call(
        given.q,
        given.k,
        site.values,
        y,
        how,
        BY_HAND,
        real=site.weights,
        put=put,
        as_weights=lambda reason: replace(weights_kept(site, reason, put), met=met),
        met=met,
    )


def blocks_kept(placed: Placed) -> Call:
    """The call that keeps the weights of blocks, each in its place."""
    w = placed.weights
    none = w.weights.new_zeros(()).expand(*w.weights.shape[:-3], w.t, 0)
    keys = w.weights.new_zeros(()).expand(*w.weights.shape[:-3], w.s, 0)
    how = AttentionSpec(weights=w.replaced(Tensor.detach))
    return Call(none, keys, placed.values, placed.output, how, BY_HAND, as_it_is=IN_BLOCKS)


def why(site: Site) -> str:
    """Why the weights are kept, and not the queries and keys."""
    normal, changes = site.normal, changed(site)
    assert normal is not None
    if changes is not None:
        return CHANGED.format(changes)
    return (
        NO_PRODUCT
        if normal.node.name.endswith("softmax")
        else OTHER.format(f"aten.{normal.node.name}")
    )


def changed(site: Site) -> str | None:
    """What changed the weights after they were made a whole, before they met the values."""
    assert site.normal is not None
    names = [f"aten.{name}" for name in site.normal.changes if name != "native_dropout"]
    return " and ".join(names) or None


def weights_kept(site: Site, reason: str, put: Any) -> Call:
    """The call that keeps the weights themselves."""
    w = site.weights.detach()
    q, k = (
        w.new_zeros(()).expand(*w.shape[:-1], 0),
        w.new_zeros(()).expand(*w.shape[:-2], w.shape[-1], 0),
    )
    how = AttentionSpec(weights=w)
    return Call(q, k, site.values, site.output, how, BY_HAND, real=w, as_it_is=reason, put=put)


def sparse_call(weights: Tensor, axis: int) -> Call:
    """The call of a sparse matrix of weights, whose product with values is not followed."""
    w = weights.detach().to_dense().movedim(axis, -1)
    none = w.new_zeros(()).expand(*w.shape[:-1], 0)
    keys = w.new_zeros(()).expand(*w.shape[:-2], w.shape[-1], 0)
    then = "their product with values is not followed"
    how = AttentionSpec(weights=w)
    return Call(none, keys, keys, None, how, BY_HAND, as_it_is="they are sparse", then=then)


def _shares(y: Tensor, out: Tensor) -> bool:
    return y.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()


def _put_in(y: Tensor, edited: Tensor, matrix: LazyMatrix) -> None:
    """Overwrite what a product returned."""
    with torch.no_grad():
        y.copy_(edited)
