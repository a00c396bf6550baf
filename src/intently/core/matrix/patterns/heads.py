"""The divergence of the heads of a layer, and blocks of weights that hold all heads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from intently.core.kernels.walk import Block
from intently.core.matrix import statistics
from intently.core.matrix.lazy import LazyMatrix
from intently.errors import ArgumentError, build


def jensen_shannon(matrix: LazyMatrix) -> Tensor:
    """Return the Jensen-Shannon divergence of each two heads, (…, h, h), in nats; 0 if equal.

    JSD(p, q) = H((p + q) / 2) − H(p) / 2 − H(q) / 2 with H(p) = −Σ p log p, averaged over the
    queries that attend to something in both heads. It is at most log 2, if no key is shared. The
    weights of sinks are left out of the sums. Two heads without a common query have NaN.

    Raises `ArgumentError` for a matrix without heads.

    Source: Lin 1991, "Divergence Measures Based on the Shannon Entropy", equation 4.1; of heads,
    Clark et al. 2019, "What Does BERT Look At?", section 6.

    >>> from intently.core.matrix import Dense
    >>> A = Dense(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]]))
    >>> jensen_shannon(A)
    tensor([[0.0000, 0.0000, 0.6931],
            [0.0000, 0.0000, 0.6931],
            [0.6931, 0.6931, 0.0000]])
    """
    if matrix.ndim < 3:
        raise build(
            ArgumentError,
            "jensen_shannon",
            "a matrix (…, h, t, s)",
            f"shape {matrix.shape}",
            "it has no axis of heads",
        )
    h = matrix.shape[-3]
    total, count = matrix._zeros(h), matrix._zeros(h)
    with torch.no_grad():
        for block in blocks_of_heads(matrix, statistics.BLOCK // 4):
            w = block.weights.to(total.dtype)
            sums, alive = w.sum(-1), w.amax(-1) > 0
            own = entropies(w)
            at = block.lead or (...,)
            for a in range(h):
                mixed = w[..., a : a + 1, :, :] + w[..., a:, :, :]
                both = alive[..., a : a + 1, :] & alive[..., a:, :]
                apart = entropies(mixed) - own[..., a : a + 1, :] - own[..., a:, :]
                apart += math.log(2) * (sums[..., a : a + 1, :] + sums[..., a:, :])
                total[at][..., a, a:] += (apart * both).sum(-1) / 2
                count[at][..., a, a:] += both.sum(-1)
    found = (total / count).clamp_min(0).triu()
    return found + found.triu(1).mT


def entropies(w: Tensor) -> Tensor:
    """−Σ w log w over the last axis: logarithms and a dot product, which are vectorised."""
    tiny = torch.finfo(w.dtype).tiny
    return -torch.linalg.vecdot(w, w.clamp_min(tiny).log_())


def blocks_of_heads(matrix: LazyMatrix, size: int) -> Iterator[Block]:
    """Yield all weights that may differ from 0, about ``size`` at a time, all heads together."""
    return matrix._blocks(size)
