"""What every picture asks of a matrix: weights that fit the paper, names of rows and columns."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.matrix import LazyMatrix

Pooling = Literal["mean", "max", "sum"]


class Names(NamedTuple):
    """The labels of the rows and of the columns; their numbers where a matrix has none."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]


def check(matrix: object, argument: str = "matrix") -> LazyMatrix:
    """Return the matrix if it can be drawn: lazy, with at least one query and one key.

    Raises KindError for anything but a lazy matrix, ArgumentError for an empty one.
    """
    if not isinstance(matrix, LazyMatrix):
        raise build(
            KindError,
            argument,
            "a lazy matrix, shape (…, t, s)",
            type(matrix).__name__,
            "pictures are drawn from lazy matrices only",
            "wrap the weights: intently.matrix.Dense(tensor)",
        )
    if 0 in tuple(matrix.shape):
        raise build(
            ArgumentError,
            argument,
            "at least one query and one key, shape (…, t, s)",
            shape_of(matrix),
            "an empty matrix has nothing to draw",
            "leave out the sentences that have no words",
        )
    return matrix


def flat(matrix: object, argument: str = "matrix") -> tuple[LazyMatrix, str]:
    """Return a (t, s) matrix and what was done to get it: the mean of (h, t, s), or nothing.

    Raises ArgumentError when the matrix has leading axes beside the heads.
    """
    lazy = check(matrix, argument)
    if lazy.ndim == 2:
        return lazy, ""
    if lazy.ndim == 3:
        return lazy.mean_heads(), f"mean of {lazy.shape[0]} heads" if lazy.shape[0] > 1 else ""
    raise build(
        ArgumentError,
        argument,
        "shape (t, s) or (h, t, s)",
        shape_of(lazy),
        "one picture shows one sentence",
        "pick a sentence: A[0]",
    )


def numbers(values: torch.Tensor) -> np.ndarray:
    """Return the tensor as a NumPy array on the CPU, half types as float32."""
    values = values.detach().cpu()
    half = values.is_floating_point() and values.element_size() < 4
    return (values.float() if half else values).numpy()


def weights(matrix: LazyMatrix) -> np.ndarray:
    """Return all weights, shape (…, t, s)."""
    with torch.no_grad():
        return numbers(matrix.dense())


def picture(matrix: LazyMatrix, most: int, how: Pooling = "mean") -> tuple[np.ndarray, str]:
    """Return weights of at most ``most`` rows and columns, and a sentence if they were pooled."""
    t, s = matrix.shape[-2:]
    if t <= most and s <= most:
        return weights(matrix), ""
    rows, columns = min(t, most), min(s, most)
    with torch.no_grad():
        values = numbers(matrix.pool(rows, columns, how=how))
    return values, f"each cell the {how} of about {t / rows:.3g} × {s / columns:.3g} weights"


def names(matrix: LazyMatrix) -> Names:
    """Return the labels of rows and columns, numbered from 0 where there are none."""
    rows, columns = matrix.labels
    t, s = matrix.shape[-2:]
    return Names(
        tuple(map(str, range(t))) if rows is None else tuple(rows),
        tuple(map(str, range(s))) if columns is None else tuple(columns),
    )


def missing(values: np.ndarray) -> str:
    """Say how many of the values are no finite number; nothing when all are."""
    count = int((~np.isfinite(values)).sum())
    if not count:
        return ""
    return f"hatched: {count} of {values.size} weights {'is' if count == 1 else 'are'} not finite"
