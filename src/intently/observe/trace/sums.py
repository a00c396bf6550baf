"""Values that met exponentials before these were divided by their sum: one block of keys, or many.

Followed back from a division, the result is a sum of products, each with a factor for every row:
what its weights were multiplied by afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from intently.observe.trace.graph import Node, View
from intently.observe.trace.normaliser import Normal, adds_up, behind, mixes, upstream, whole
from intently.observe.trace.sites import Contraction, Site, laid_out

DEPTH = 256
"""Operations at most between the products and the division."""


def divided(
    node: Node, out: Tensor, waiting: Mapping[Node, Contraction]
) -> tuple[set[Node], Site] | None:
    """The site whose weights a quotient makes whole, of one product or of many, and these."""
    args = list(node.sources)
    for i, x in args[:1] if node.name == "div" else args:
        others = [y for j, y in args if j != i]
        if not any(map(mixes, others)) or not _holds(x, waiting):
            continue
        one = torch.ones_like(out, dtype=torch.float64)
        numbers = torch.arange(1, out.numel() + 1, device=out.device).view(out.shape)
        terms = _terms(node.view, one, numbers, waiting, DEPTH)
        for side in (0, 1):
            sites = [_site(waiting[term.product], side, term, node, out) for term in terms]
            shapes = {(x.weights.shape[:-1], x.values.shape[:-2]) for x in sites}
            if len(shapes) != 1:
                continue
            weights = torch.cat([x.weights for x in sites], -1)
            top = waiting[terms[0].product].views[side]
            if whole(weights) or (len(terms) == 1 and adds_up([(0, y) for y in others], top)):
                values = torch.cat([x.values for x in sites], -2)
                made = replace(sites[0], weights=weights, values=values)
                return {term.product for term in terms}, made
        for term in terms[:1] if len(terms) == 1 else ():
            site = factored(waiting[term.product], waiting, term, node, out)
            if site is not None:
                return {term.product}, site
    return None


def running_sums(node: Node) -> bool:
    """Whether an operation divides running sums, as attention without a softmax may do."""
    args = [x for _, x in node.sources]
    return len(args) == 2 and all(any(y.name == "cumsum" for y in upstream(x, 8)) for x in args)


def factored(
    contraction: Contraction,
    waiting: Mapping[Node, Contraction],
    term: Term | None = None,
    by: Node | None = None,
    out: Tensor | None = None,
) -> Site | None:
    """The site of weights that are never made: features of queries times features of keys."""
    by = by or contraction.node
    for side, inner_side in product((0, 1), (0, 1)):
        inner = waiting.get(contraction.views[1 - side].settled().node)
        if inner is not None:
            outer = (
                laid_out(contraction, side, Normal(by, False))
                if term is None or out is None
                else _site(contraction, side, term, by, out)
            )
            keys = laid_out(inner, inner_side, outer.normal)
            left, right = outer.weights, keys.weights
            if left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-2]:
                continue
            if whole(left[..., :2, :] @ right) and outer.values.shape[-1] == keys.values.shape[-1]:
                weights, output = left @ right, outer.output.clone()
                made = replace(outer, weights=weights, values=keys.values, output=output)
                return made if whole(weights) else None
    return None


class Term(NamedTuple):
    """A product in a sum, in its own axes: its factor, and the number of each entry in the sum.

    Numbers begin at 1; 0 stands for entries that are not in it.
    """

    product: Node
    factor: Tensor
    numbers: Tensor


def _site(contraction: Contraction, side: int, term: Term, by: Node, out: Tensor) -> Site:
    """A product as a site, each row of its weights times a factor, and the sum as its output."""
    site = laid_out(contraction, side, Normal(by, False))
    factor, numbers = (
        laid_out(replace(contraction, result=x), side, site.normal).output
        for x in (term.factor, term.numbers)
    )
    weights = (site.weights * factor[..., :1]).to(site.weights.dtype)
    output = torch.cat([out.new_zeros(1), out.reshape(-1)])[numbers]
    written = replace(contraction, result=out)
    return replace(
        site, node=by, weights=weights, output=output, contraction=written, at=numbers - 1
    )


def _holds(view: View, waiting: Mapping[Node, Contraction]) -> bool:
    """Whether a tensor is made, entry by entry, of a product that waits."""
    return any(node in waiting for node in behind([view], lambda node: node.entrywise, DEPTH))


def _terms(
    view: View, factor: Tensor, numbers: Tensor, waiting: Mapping[Node, Contraction], depth: int
) -> list[Term]:
    """The products of which a tensor is a sum."""
    view = view.settled()
    node, factor, numbers = view.node, _within(view, factor), _within(view, numbers)
    if node in waiting:
        return [Term(node, factor, numbers)]
    found: list[Term] = []
    if not depth or not node.entrywise:
        return found
    for i, x in node.sources:
        if not _holds(x, waiting) or tuple(x.size) != node.size:
            continue
        share = factor
        if node.name in ("mul", "div"):
            other = node.kept(1 - i) if isinstance(node.args[1 - i], View) else node.args[1 - i]
            if other is None or (node.name == "div" and i == 1):
                return []
            share = share * other if node.name == "mul" else share / other
        elif node.name == "sub" and i == 1:
            share = -share
        found += _terms(x, share, numbers, waiting, depth - 1)
    return found


def _within(view: View, x: Tensor) -> Tensor:
    """What a view holds in the axes of its node, 0 where the view has no entry."""
    node = view.node
    flat = x.new_zeros(1 + sum((n - 1) * step for n, step in zip(node.size, node.stride) if n))
    flat.as_strided(view.size, view.stride, view.offset - node.offset).copy_(x)
    return flat.as_strided(node.size, node.stride)
