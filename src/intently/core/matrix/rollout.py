"""Attention rollout: the matrices of many layers multiplied, row vectors first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from intently.core.matrix.indexing import Entry, positions
from intently.core.matrix.lazy import LazyMatrix, Transposed
from intently.errors import ArgumentError, MemoryRefused, build
from intently.foundation.checks import check_kind


def rollout(
    matrices: Sequence[LazyMatrix],
    residual: float = 0.5,
    queries: Entry | Sequence[int] | np.ndarray | np.integer | None = None,
    max_bytes: int = 2**30,
) -> Tensor:
    """Return how much each query depends on each input position through all layers, (…, n, s).

    ``matrices`` are square self-attention, from the first layer to the last; heads (axis −3) are
    averaged. Each layer counts as residual · I + (1 − residual) · A, and the product runs from
    the last layer back as row vectors times matrices, so that no t × s product is built.
    ``queries`` are positions (an int drops the axis), all where None. A row sums to 1 if every row
    of every A does.

    Raises `ArgumentError` for matrices that are not square or differ in shape, and
    `MemoryRefused` where the result would take more than ``max_bytes``.

    Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    >>> rollout([A, A], queries=1)
    tensor([0.4375, 0.5625])
    """
    if not 0 <= residual <= 1:
        raise build(ArgumentError, "residual", "a share from 0 to 1", residual)
    layers = [_mean_heads(m) for m in matrices]
    _check_layers(layers)
    last = layers[-1]
    t = last.shape[-1]
    if queries is not None and not isinstance(queries, (int, slice, Tensor)):
        given = np.asarray(queries)
        queries = torch.as_tensor(given, dtype=None if given.size else torch.long)
    one = isinstance(queries, int) or (isinstance(queries, Tensor) and not queries.ndim)
    at = positions(queries, t, "t", last.device)
    at = torch.arange(t, device=last.device) if at is None else at
    dtype = torch.promote_types(last.dtype, torch.float32)
    size = math.prod(last.shape[:-2]) * len(at) * t * (torch.finfo(dtype).bits // 8)
    if size > max_bytes:
        raise build(
            MemoryRefused,
            "rollout",
            f"at most max_bytes={max_bytes:,} bytes",
            f"{size:,} bytes for {len(at)} queries of {t}",
            fix="ask for fewer: rollout(matrices, queries=range(10)), or raise max_bytes",
        )
    columns = torch.zeros(t, len(at), dtype=dtype, device=last.device)
    columns[at, torch.arange(len(at), device=last.device)] = 1
    columns = columns.expand(*last.shape[:-2], *columns.shape)
    for layer in reversed(layers):
        columns = residual * columns + (1 - residual) * _drawn(layer, columns)
    return columns[..., 0] if one else columns.mT


def _drawn(layer: LazyMatrix, columns: Tensor) -> Tensor:
    """Aᵀ columns; a NaN row of A reaches only the columns that depend on its position."""
    found = Transposed(layer).summed(columns)
    if not bool(found.isnan().any()):
        return found
    broken = (
        layer @ torch.ones(layer.shape[-1], 1, dtype=layer.dtype, device=layer.device)
    ).isnan()
    reached = (broken & (columns != 0)).any(-2, keepdim=True)
    return Transposed(layer).summed(columns, nan=False).masked_fill(reached, math.nan)


def _mean_heads(matrix: LazyMatrix) -> LazyMatrix:
    check_kind(
        matrix,
        LazyMatrix,
        "matrices",
        "lazy matrices, one for each layer",
        fix="wrap dense weights: it.Dense(weights)",
    )
    return matrix.mean_heads() if matrix.ndim > 2 else matrix


def _check_layers(layers: Sequence[LazyMatrix]) -> None:
    if not layers:
        raise build(ArgumentError, "matrices", "at least one layer", "none")
    for layer in layers:
        if layer.shape[-2] != layer.shape[-1]:
            raise build(
                ArgumentError,
                "matrices",
                "square matrices, t = s",
                f"shape {layer.shape}",
                "rollout follows one sequence through its layers: self-attention",
            )
    if len({layer.shape for layer in layers}) > 1:
        shapes = ", ".join(str(layer.shape) for layer in layers)
        raise build(ArgumentError, "matrices", "layers of one shape, heads aside", shapes)
