"""The numbers of one query: vectors, scores before and after each step, and weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.kernels.problem import Problem
from intently.core.matrix import LazyMatrix
from intently.core.scores import Cosine, Dot
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.foundation.tokens import bare
from intently.show.inputs import among, as_numbers, check, one_text, whole
from intently.show.labels import visible
from intently.show.reading import at_most, names, numbers


@dataclass(frozen=True)
class Named:
    """One head of one text, (t, s), its values (s, e), and the names of its queries and keys."""

    matrix: Attention
    values: np.ndarray
    queries: tuple[str, ...]
    keys: tuple[str, ...]


def one_head(matrix: Attention, values: Numbers, head: int | None) -> Named:
    """Return the head of a matrix (h, t, s) with the values (s, e) that it averages.

    Raises KindError for anything but an attention of queries and keys, ArgumentError if a head or a
    text must be chosen, or if values do not fit.
    """
    found = scored(matrix, head)
    every = _one(values, matrix)
    if every.ndim == 3:
        h = matrix.shape[-3] if matrix.ndim > 2 else 1
        g = every.shape[0]
        if h % g:
            raise build(ArgumentError, "values", f"g heads, a divisor of h={h}", shape_of(every))
        every = every[(whole(head) or 0) // (h // g)]
    if every.ndim != 2 or every.shape[0] != found.shape[-1]:
        wanted = f"shape (s={found.shape[-1]}, e), or (g, s, e)"
        raise build(ArgumentError, "values", wanted, shape_of(every))
    return Named(found, finite(numbers(every), "values"), *both_names(found))


def scored(matrix: Attention, head: int | None = None) -> Attention:
    """Return the chosen head (t, s) of an attention of one text."""
    if not isinstance(matrix, Attention):
        expected, got = "an attention of queries and keys", type(matrix).__name__
        cause = "a story of scores begins with queries and keys"
        raise build(KindError, "matrix", expected, got, cause, "make it: it.attend(q, k, …)")
    found = one_text(check(matrix))
    if found.ndim == 3:
        h = found.shape[0]
        found = found[0 if head is None and h == 1 else among(head, h, "head", "a head")]
    if found.ndim != 2:
        raise build(
            ArgumentError,
            "matrix",
            "shape (t, s), (h, t, s) or (1, h, t, s)",
            shape_of(matrix),
            "one story is about one text",
            "pick a text: A[0]",
        )
    assert isinstance(found, Attention)
    return found


def most_keys(matrix: Attention, most: int) -> None:
    """Raise ArgumentError for more keys than a story can show."""
    cause = "every key is a row of the picture"
    fix = f"attend to fewer: it.attend(q, k[…, :{most}, :])"
    at_most(matrix, (matrix.shape[-2], most), f"{most} keys", cause, fix)


def finite(values: np.ndarray, argument: str) -> np.ndarray:
    """Return the numbers as float64.

    Raises ArgumentError if one is NaN or infinite.
    """
    if not np.isfinite(values).all():
        raise build(ArgumentError, argument, "finite numbers", "NaN or ∞")
    return values.astype(np.float64)


@contextmanager
def without_dropout(block: object) -> Iterator[None]:
    """Put a module and its parts into eval mode; restore each mode afterwards."""
    modes = {}
    if isinstance(block, nn.Module):
        modes = {part: part.training for part in block.modules()}
    try:
        for part in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _one(given: Numbers, matrix: Attention) -> Tensor:
    values = as_numbers(given, "values")
    while values.ndim > 2 and values.shape[0] == 1 and (values.ndim > 3 or matrix.ndim < 3):
        values = values[0]
    return values


def both_names(matrix: LazyMatrix) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of queries and keys; in self-attention one side may name both."""
    rows, columns = matrix.labels
    if matrix.shape[-2] == matrix.shape[-1]:
        rows, columns = rows or columns, columns or rows
    return names(matrix.label(rows, columns))


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
class Steps:
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


def steps(matrix: Attention, query: int) -> Steps:
    """Return every step from the scores of one query of a matrix (t, s) to its weights.

    Raises ArgumentError for queries, keys and weights that are not finite.

    Source: the formula in `intently.core.kernels.problem`.
    """
    with torch.no_grad():
        problem = matrix.problem
        plain = problem.as_dot()
        unmasked = problem.replaced(mask=None)
        products = type(plain.score) is Dot
        source = plain if products else problem
        q, k = (finite(numbers(x), "matrix") for x in (source.q, source.k))
        scored = problem.replaced(mask=None, bias=None, softcap=None)
        capped = unmasked.replaced(bias=None)
        return Steps(
            q=q.reshape(-1, q.shape[-1])[query],
            k=k.reshape(-1, k.shape[-1]),
            products=products,
            dragged=products and type(problem.score) is not Cosine,
            scores=_row(scored.replaced(scale=1.0), query),
            scale=float(torch.as_tensor(problem.scale, dtype=torch.float64).reshape(-1)[0]),
            scaled=_row(scored, query),
            softcap=problem.softcap,
            capped=None if problem.softcap is None else _row(capped, query),
            biased=None if problem.bias is None else _row(unmasked, query),
            logits=_row(problem, query),
            weights=finite(numbers(matrix[query, :]), "matrix"),
            sink=None if problem.sinks is None else float(problem.sinks.reshape(-1)[0]),
        )


def _row(problem: Problem, query: int) -> np.ndarray:
    """Return the scores of one query at this stage of the problem."""
    return numbers(Attention(problem).scores[query, :]).astype(np.float64)
