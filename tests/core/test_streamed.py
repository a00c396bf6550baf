"""Statistics of matrices of many blocks, with everything that forms weights, against the dense."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it

from ..combinations import each
from .formula import random

B, H, G, T, S, D = 2, 4, 2, 260, 390, 6
Q, K = random(B, H, T, D) * 2, random(B, G, S, D, seed=1)
KEYS = random(H, 1, S, seed=2)

MATRICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": it.causal()},
    "window": {"mask": it.window(30, 2)},
    "ragged": {"mask": it.causal(torch.tensor([-40, 200])) & it.padding(torch.tensor([390, 90]))},
    "two far runs": {"mask": it.prefix(5) | it.window(9, 0)},
    "sinks, softcap": {"mask": it.causal(), "sinks": random(H, seed=3), "softcap": 2.0},
    "biases": {"mask": it.window(200, 0), "bias": it.alibi(H) + KEYS},
    "bias of −∞": {"bias": torch.where(torch.arange(S) < 200, -math.inf, 0.0).double()},
    "every key hidden": {"mask": it.padding(torch.tensor([0, 0]))},
    "cosine": {"score": it.Cosine(), "scale": 8.0},
}


BLOCKS = {"one block": 2**22, "many blocks": 2**14}


@pytest.fixture
def both(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[it.LazyMatrix, Tensor]:
    name, block = request.param
    monkeypatch.setattr("intently.core.matrix.statistics.BLOCK", BLOCKS[block])
    A = it.attend(Q, K, **MATRICES[name])
    return A, it.kernels.eager.weights(A.problem)


BOTH = list(product(MATRICES, BLOCKS))
every_matrix = pytest.mark.parametrize("both", BOTH, indirect=True)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-12)


@every_matrix
def test_each_statistic(both: tuple[it.LazyMatrix, Tensor]) -> None:
    A, w = both
    close(A.entropy(), -torch.xlogy(w, w).sum(-1))
    close(A.received(), w.sum(-2))
    close(A.mass([3, 3, 200, -1]), w[..., [3, 200, -1]].sum(-1))
    apart = (torch.arange(T)[:, None] + S - T - torch.arange(S)).abs()
    close(A.distance(), (w * apart).sum(-1))
    close(A.mT @ Q, w.mT @ Q)
    close(A.dense(), w)
    close(A[..., 7:9, [1, 300]], w[..., 7:9, [1, 300]])
    allow = A.problem.allow()
    viewers = torch.full((S,), T) if allow is None else allow.expand(B, H, T, S).sum(-2)
    close(A.received(normalize=True), w.sum(-2) / viewers.clamp_min(1))


@each({"both": BOTH, "n": [1, 3, 8]}, indirect=["both"])
def test_top(both: tuple[it.LazyMatrix, Tensor], n: int) -> None:
    A, w = both
    weights, keys = A.top(n)
    close(weights, w.sort(-1, descending=True).values[..., :n])
    assert bool(((keys == -1) == (weights == 0)).all())
    close(w.gather(-1, keys.clamp_min(0)) * (keys >= 0), weights)
    assert all(len(set(row)) == n for row in keys.flatten(0, -2).tolist() if -1 not in row)
    close(w.gather(-1, A.argmax().clamp_min(0)[..., None])[..., 0], w.amax(-1))
    assert bool(((A.argmax() == -1) == (w.amax(-1) == 0)).all())


@each(
    {
        "both": BOTH,
        "cells": [(1, 1), (7, 11), (64, 64), (T, 5), (3, S), (999, 999), (1, S)],
        "how": ["mean", "max", "sum"],
    },
    times=3,
    indirect=["both"],
)
def test_pool(both: tuple[it.LazyMatrix, Tensor], cells: tuple[int, int], how: str) -> None:
    A, w = both
    rows, cols = min(cells[0], T), min(cells[1], S)
    reduce = {"mean": Tensor.mean, "max": Tensor.amax, "sum": Tensor.sum}[how]
    edges = [[-(-i * n // c) for i in range(c + 1)] for n, c in ((T, rows), (S, cols))]
    down = [reduce(w[..., a:b, :], -2) for a, b in zip(edges[0], edges[0][1:])]
    across = torch.stack(down, -2)
    parts = [reduce(across[..., a:b], -1) for a, b in zip(edges[1], edges[1][1:])]
    close(A.pool(*cells, reduce=how), torch.stack(parts, -1))


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_long_rows_with_ties(dtype: torch.dtype, rtol: float) -> None:
    """Groups of 64 keys are skipped by their maximum; equal weights do not lose any."""
    q, k = torch.ones(2, 3, 1, dtype=dtype), torch.zeros(2, 5000, 1, dtype=dtype)
    k[0, [17, 64, 65, 4095, 4999]] = 5.0
    A = it.attend(q, k, scale=1.0)
    assert set(A.top(5)[1][0, 0].tolist()) == {17, 64, 65, 4095, 4999}
    assert len(set(A.top(7)[1][1, 2].tolist())) == 7
    exact = it.attend(q.double(), k.double(), scale=1.0).dense()
    largest = exact.sort(-1, descending=True).values[..., :7]
    torch.testing.assert_close(A.top(7)[0].double(), largest, atol=0, rtol=rtol)


def test_statistics_follow_gradients() -> None:
    q = Q.clone().requires_grad_()
    A = it.attend(q, K, mask=it.causal())
    for ask in (A.entropy, A.received, lambda: A.pool(5, 5), A.distance, lambda: A.mass([0])):
        with torch.no_grad():
            expected = ask()
        close(ask(), expected)
        assert torch.autograd.grad(ask().square().sum(), q)[0].abs().sum() > 0


@every_matrix
def test_statistics_of_the_transpose(both: tuple[it.LazyMatrix, Tensor]) -> None:
    A, w = both
    close(A.mT.entropy(), -torch.xlogy(w, w).sum(-2))
    close(A.mT.received(), w.sum(-1))
    close(A.mT.top(2)[0], w.mT.sort(-1, descending=True).values[..., :2])
    close(A.mT.pool(5, 7), A.pool(7, 5).mT)


def test_the_lse_is_computed_once_and_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = it.kernels.lse
    monkeypatch.setattr("intently.core.kernels.lse", lambda p: calls.append(1) or original(p))
    A = it.attend(Q, K, mask=it.causal())
    expected = A.lse.clone()
    A.lse.add_(1)
    A.mT.entropy()
    assert torch.equal(A.lse, expected) and calls == [1]
    q = Q.clone().requires_grad_()
    B = it.attend(q, K)
    with torch.no_grad():
        _ = B.lse
    assert torch.autograd.grad(B.lse.sum(), q)[0].abs().sum() > 0, "kept without, used with"
    with torch.inference_mode():
        A = it.attend(Q, K)
        _ = A.lse
    assert (A.lse * torch.ones(1, requires_grad=True)).requires_grad
