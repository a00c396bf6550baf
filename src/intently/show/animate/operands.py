"""The numbers of one query: vectors, scores before and after each step, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from intently.core.attention import Attention
from intently.core.kernels.problem import Problem
from intently.core.scores import Cosine, Dot
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.foundation.tokens import bare
from intently.show.inputs import among, as_numbers, check, one_text, whole
from intently.show.labels import visible
from intently.show.reading import names, numbers


class NamedHead(NamedTuple):
    """One head of one text, (t, s), its values (s, e), and the names of its queries and keys."""

    matrix: Attention
    values: np.ndarray
    queries: tuple[str, ...]
    keys: tuple[str, ...]


def one_head(matrix: Attention, values: Numbers, head: int | None) -> NamedHead:
    """Return the head of a matrix (h, t, s) with the values (s, e) that it averages.

    In self-attention the names of one side may name both. Raises KindError for anything but an
    attention of queries and keys, ArgumentError if a head or a text must be chosen, or if values do
    not fit.
    """
    if not isinstance(matrix, Attention):
        expected, got = "an attention of queries and keys", type(matrix).__name__
        cause = "a story of scores begins with queries and keys"
        raise build(KindError, "matrix", expected, got, cause, "make it: it.attend(q, k, …)")
    chosen = one_text(check(matrix))
    h = chosen.shape[0] if chosen.ndim == 3 else 1
    if chosen.ndim == 3:
        chosen = chosen[0 if head is None and h == 1 else among(head, h, "head", "a head")]
    if chosen.ndim != 2:
        raise build(
            ArgumentError,
            "matrix",
            "shape (t, s), (h, t, s) or (1, h, t, s)",
            shape_of(matrix),
            "one story is about one text",
            "pick a text: A[0]",
        )
    assert isinstance(chosen, Attention)
    every = as_numbers(values, "values")
    while every.ndim > 2 and every.shape[0] == 1 and (every.ndim > 3 or matrix.ndim < 3):
        every = every[0]
    if every.ndim == 3:
        g = every.shape[0]
        if h % g:
            raise build(ArgumentError, "values", f"g heads, a divisor of h={h}", shape_of(every))
        every = every[(whole(head) or 0) // (h // g)]
    t, s = chosen.shape
    if every.ndim != 2 or every.shape[0] != s:
        raise build(ArgumentError, "values", f"shape (s={s}, e), or (g, s, e)", shape_of(every))
    rows, columns = chosen.labels
    if t == s:
        rows, columns = rows or columns, columns or rows
    queries, keys = names(chosen.label(rows, columns))
    return NamedHead(chosen, finite(numbers(every), "values"), queries, keys)


def finite(values: np.ndarray, argument: str) -> np.ndarray:
    """Return the numbers as float64.

    Raises ArgumentError if one is NaN or infinite.
    """
    if not np.isfinite(values).all():
        raise build(ArgumentError, argument, "finite numbers", "NaN or ∞")
    return values.astype(np.float64)


def token_names(labels: Sequence[str] | None, t: int) -> tuple[str, ...]:
    """Return the names of t tokens in a story: their labels, or their numbers.

    Raises ArgumentError for another number of labels.
    """
    if labels is not None and len(labels) != t:
        raise build(ArgumentError, "labels", f"t={t} labels", len(labels))
    return short(list(map(str, range(t))) if labels is None else labels)


def short(labels: Sequence[str]) -> tuple[str, ...]:
    """Return labels for a story: at most 14 characters, without tokenizer marks."""
    return tuple(visible(bare(label), 14) for label in labels)


@dataclass(frozen=True)
class ScoreSteps:
    """From dot products to weights, each (s,); steps that change nothing are None.

    ``dragged``: another q may take the place of this one, for its products are the scores.
    """

    q: np.ndarray
    k: np.ndarray
    products: bool
    dragged: bool
    scores: np.ndarray
    scale: float
    scaled: np.ndarray
    softcap: float | None
    capped: np.ndarray | None
    biased: np.ndarray | None
    logits: np.ndarray
    weights: np.ndarray
    sink: float | None


def steps(matrix: Attention, query: int) -> ScoreSteps:
    """Return every step from the scores of one query of a matrix (t, s) to its weights.

    Raises ArgumentError for queries, keys and weights that are not finite.

    Source: the formula in `intently.core.kernels.problem`.
    """

    def scores(at: Problem) -> np.ndarray:
        return numbers(Attention(at).scores[query, :]).astype(np.float64)

    with torch.no_grad():
        problem = matrix.problem
        plain = problem.as_dot()
        products = type(plain.score) is Dot
        source = plain if products else problem
        q, k = (finite(numbers(x), "matrix") for x in (source.q, source.k))
        unmasked = problem.replaced(mask=None)
        scored = unmasked.replaced(bias=None, softcap=None)
        return ScoreSteps(
            q=q.reshape(-1, q.shape[-1])[query],
            k=k.reshape(-1, k.shape[-1]),
            products=products,
            dragged=products and type(problem.score) is not Cosine,
            scores=scores(scored.replaced(scale=1.0)),
            scale=float(torch.as_tensor(problem.scale, dtype=torch.float64).reshape(-1)[0]),
            scaled=scores(scored),
            softcap=problem.softcap,
            capped=None if problem.softcap is None else scores(unmasked.replaced(bias=None)),
            biased=None if problem.bias is None else scores(unmasked),
            logits=scores(problem),
            weights=finite(numbers(matrix[query, :]), "matrix"),
            sink=None if problem.sinks is None else float(problem.sinks.reshape(-1)[0]),
        )
