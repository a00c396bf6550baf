"""Kinds of heads as masks: which keys a previous-token or an induction head would look at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from intently.core.kernels.walk import Block
from intently.core.masks import Geometry, Mask, causal, segments, window
from intently.core.masks.geometry import integers
from intently.core.matrix.lazy import LazyMatrix
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.checks import check_kind


def previous() -> Mask:
    """Allow only the key just before the query.

    ::

        previous(), t=s=4   · · · ·
                            █ · · ·
                            · █ · ·
                            · · █ ·

    Source: Clark et al. 2019, "What Does BERT Look At?", section 3.1; Voita et al. 2019,
    "Analyzing Multi-Head Self-Attention", section 5.1 (positional heads).
    """
    return window(1, 0) & ~window(0, 0)


def duplicate(ids: Tensor | Sequence[int], t: int | None = None) -> Mask:
    """Allow the keys before a query that hold its own token: token_j = token_i, j < i.

    ``ids`` are the tokens of the keys, (s,) or (b, s); the queries are the last ``t`` of them (all
    where None).

    ::

        duplicate(tensor([5, 7, 5, 7]))   · · · ·
                                          · · · ·
                                          █ · · ·
                                          · █ · ·

    Source: Wang et al. 2023, "Interpretability in the Wild", section 3 (duplicate token heads).
    """
    tokens, queries = _tokens(ids, t)
    return segments(queries, tokens) & causal() & ~window(0, 0)


def induction(ids: Tensor | Sequence[int], t: int | None = None) -> Mask:
    """Allow the keys that follow earlier occurrences of a query's token: token_(j−1) = token_i.

    ``ids`` are the tokens of the keys, (s,) or (b, s); the queries are the last ``t`` of them (all
    where None). j ≤ i, so that a query sees itself if its token has just been repeated.

    ::

        induction(tensor([5, 7, 5, 7]))   · · · ·
                                          · · · ·
                                          · █ · ·
                                          · · █ ·

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching).
    """
    tokens, queries = _tokens(ids, t)
    named = 1 + _named(tokens)
    before = torch.cat([torch.zeros_like(named[..., :1]), named[..., :-1]], -1)
    return segments(named[..., named.shape[-1] - queries.shape[-1] :], before) & causal()


def mass_on(matrix: LazyMatrix, mask: Mask) -> Tensor:
    """Return the weight of each query on the keys that ``mask`` allows, (…, t): Σ_j w_ij m_ij.

    Raises `ArgumentError` for a mask that does not fit the matrix.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.125, 0.5, 0.375]]))
    >>> mass_on(A, previous())
    tensor([0.0000, 0.7500, 0.5000])
    >>> mass_on(A, induction([4, 4, 9]))
    tensor([0.0000, 0.2500, 0.0000])
    """
    check_kind(
        mask,
        Mask,
        "mask",
        "a mask such as patterns.previous()",
        fix="wrap a boolean tensor: it.allowed(tensor); for positions write A.mass(keys)",
    )
    *lead, t, s = matrix.shape
    g = Geometry(tuple(lead), t, s, matrix.device)
    mask.check(g)

    wide = torch.promote_types(matrix.dtype, torch.float32)

    def reduce(block: Block) -> Tensor:
        return (block.weights.to(wide) * allowed_in(mask, g, block)).sum(-1)

    return matrix._per_row(reduce)


def allowed_in(mask: Mask, g: Geometry, block: Block) -> Tensor:
    """A mask over a block of the matrix ``g``: a boolean that broadcasts to its weights."""
    if block.lead:
        mask = mask.part(block.lead, g)
        g = g._replace(lead=tuple(len(range(n)[c]) for n, c in zip(g.lead, block.lead)))
    at = (torch.arange(x.start, x.stop, device=g.device) for x in (block.rows, block.cols))
    return mask.allow(g, *at)


def appeared(ids: Tensor) -> Tensor:
    """Whether the token at each position has occurred before, (…, s)."""
    named = _named(ids)
    order = named.sort(dim=-1, stable=True)
    again = torch.zeros_like(named, dtype=torch.bool)
    again[..., 1:] = order.values[..., 1:] == order.values[..., :-1]
    return torch.zeros_like(again).scatter_(-1, order.indices, again)


def _named(ids: Tensor) -> Tensor:
    """The same tokens as numbers from 0."""
    return ids.unique(return_inverse=True)[1]


def _tokens(ids: Tensor | Sequence[int], t: int | None) -> tuple[Tensor, Tensor]:
    """Tokens of the keys (…, s) and of the queries (…, t)."""
    tokens = integers(ids, "ids")
    if not tokens.ndim or not tokens.shape[-1]:
        raise build(ArgumentError, "ids", "at least one token, (s,) or (b, s)", shape_of(tokens))
    t = tokens.shape[-1] if t is None else t
    if not 0 <= t <= tokens.shape[-1]:
        raise build(
            ArgumentError,
            "ids",
            f"a token for each key, and so at least t={t}",
            shape_of(tokens),
            "cross-attention has other tokens on its two sides",
        )
    return tokens, tokens[..., tokens.shape[-1] - t :]
