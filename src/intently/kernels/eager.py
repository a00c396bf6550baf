"""The plain formula on one screen: it builds the (…, t, s) matrix, and serves every call."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.kernels.problem import Problem


def weights(
    problem: Problem, rows: Tensor | None = None, cols: Tensor | None = None
) -> Tensor:
    """Weights (…, rows, cols) in the compute dtype; rows that may attend to nothing are zero."""
    if cols is not None:
        total = lse(problem, rows)[..., None]
        z, allow = problem.logits(rows, cols)
        if allow is not None:
            z = z.masked_fill(~allow, -math.inf)
        empty = total == -math.inf
        return torch.exp(z - total.masked_fill(empty, 0)).masked_fill(empty, 0)
    z, allow = problem.logits(rows)
    if z.shape[-1] == 0:
        return z
    empty = None
    if allow is not None:
        z = z.masked_fill(~allow, -math.inf)
        empty = ~allow.any(-1, keepdim=True)
        z = z.masked_fill(empty, 0)
    if problem.sinks is None:
        w = torch.softmax(z, -1)
    else:
        w = torch.softmax(torch.cat([z, _sink(problem, z)], -1), -1)[..., :-1]
    return w if empty is None else w.masked_fill(empty, 0)


def lse(problem: Problem, rows: Tensor | None = None) -> Tensor:
    """log(Σ exp z + exp sink) of each query (…, rows); −∞ where nothing may be attended."""
    z, allow = problem.logits(rows)
    empty = None
    if allow is not None:
        z = z.masked_fill(~allow, -math.inf)
    if problem.sinks is not None:
        z = torch.cat([z, _sink(problem, z)], -1)
    elif z.shape[-1] == 0:
        return z.new_full(z.shape[:-1], -math.inf)
    elif allow is not None:
        empty = ~allow.any(-1).expand(z.shape[:-1])
        z = z.masked_fill(empty[..., None], 0)
    total = torch.logsumexp(z, -1)
    return total if empty is None else total.masked_fill(empty, -math.inf)


def _sink(problem: Problem, z: Tensor) -> Tensor:
    assert problem.sinks is not None
    sinks = problem.sinks.to(z.dtype)
    if sinks.ndim:
        sinks = sinks[..., None, None]
    return sinks.expand(*z.shape[:-1], 1)


class Eager:
    """y = weights @ v with the matrix built: O(t·s) memory, any score, mask, bias and derivative."""

    name = "eager"
    note = "every derivative, forward mode, torch.func and torch.compile"

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Nothing is refused."""
        return None

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes at the peak: the scores and the weights."""
        return 2 * problem.matrix_bytes()

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """Y (…, t, e) in the dtype of q."""
        w = weights(problem)
        if problem.dropout:
            w = F.dropout(w, problem.dropout, training=True)
        values = problem.per_query_head(problem.without_unseen(v)).to(w.dtype)
        return (w @ values).to(problem.q.dtype)
