"""Alignment: each query's key of largest weight, as links between two sentences."""

from __future__ import annotations

from intently.core.matrix.lazy import LazyMatrix
from intently.errors import ArgumentError, build


def links(matrix: LazyMatrix) -> set[tuple[int, int]]:
    """Return the links (key, query) of a matrix (t, s): each query's key of largest weight.

    For cross-attention, these are (source, target), as `alignment_error_rate` takes them. A
    query that may attend to nothing has no link. Raises `ArgumentError` for more than two axes.

    Source: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models".

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> sorted(links(Dense(torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.25, 0.75]]))))
    [(0, 0), (2, 1)]
    """
    if matrix.ndim != 2:
        raise build(
            ArgumentError,
            "matrix",
            "one head of one sentence, (t, s)",
            f"shape {matrix.shape}",
            fix="choose one, A[0, 3], or average: A[0].mean_heads()",
        )
    return {(key, query) for query, key in enumerate(matrix.argmax().tolist()) if key >= 0}
