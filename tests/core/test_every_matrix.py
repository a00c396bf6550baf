"""Every statistic and product of every kind of matrix against NumPy in float64."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import intently as it
from intently.core.matrix import Transposed

from .cases import Case, Floats, attentions, cases


def close(found: Tensor, expected: Floats) -> None:
    assert tuple(found.shape) == expected.shape, (found.shape, expected.shape)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-13)


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """Draw how much goes into a block of a statistic, and into one of a kernel."""
    return {
        "intently.core.matrix.statistics.BLOCK": draw(st.sampled_from([2**22, 20])),
        "intently.core.kernels.walk.GRAIN": draw(st.sampled_from([128, 2])),
    }


@settings(max_examples=200)
@given(case=cases(), blocks=sizes(), cells=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_every_statistic(case: Case, blocks: dict[str, int], cells: tuple[int, int]) -> None:
    A, w = case.matrix, case.weights
    t, s = w.shape[-2:]
    unknown = np.isnan(w).any(-1)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in blocks.items():
            patch.setattr(name, size)
        assert A.shape == w.shape
        close(A.dense(), w)
        close(A.received(), w.sum(-2))
        close(A.received(normalize=True), w.sum(-2) / np.maximum(1, case.allow.sum(-2)))
        with np.errstate(divide="ignore", invalid="ignore"):
            close(A.entropy(), -np.where(w == 0, 0, w * np.log(w)).sum(-1))
        close(A.distance(), (w * abs(s - t + np.arange(t)[:, None] - np.arange(s))).sum(-1))
        if s:
            close(A.mass([0, -1, 0]), w[..., sorted({0, s - 1})].sum(-1))
            close(A[..., [s - 1, 0]], w[..., [s - 1, 0]])
        if t:
            close(A[..., t - 1, :], w[..., t - 1, :])
            close(A[..., [t - 1, 0], :], w[..., [t - 1, 0], :])
        n = 3
        weights, keys = A.top(n)
        best = np.zeros((*w.shape[:-1], n))
        best[..., : min(n, s)] = -np.sort(-w, -1)[..., :n]
        close(weights, np.where(unknown[..., None], np.nan, best))
        at = keys.numpy()
        assert (at[unknown] == -1).all() and ((at == -1) == (best == 0))[~unknown].all()
        if s:
            taken = np.where(at < 0, 0, np.take_along_axis(w, at.clip(0), -1))
            close(weights[~torch.tensor(unknown)], taken[~unknown])
            assert all(len({*row} - {-1}) == sum(row >= 0) for row in at.reshape(-1, n))
        best = np.take_along_axis(w, A.argmax().numpy().clip(0)[..., None], -1) if s else best
        close(weights[..., :1], np.where(unknown[..., None], np.nan, best[..., :1]))
        assert ((A.argmax().numpy() == -1) == (at[..., 0] == -1)).all()
        for how in ("sum", "mean", "max"):
            close(A.pool(*cells, how), pooled(w, *cells, how))


def pooled(w: Floats, rows: int, cols: int, how: str) -> Floats:
    t, s = w.shape[-2:]
    rows, cols = min(rows, t), min(cols, s)
    out = np.zeros((*w.shape[:-2], rows, cols))
    for i in range(rows):
        for j in range(cols):
            down = slice(-(-i * t // rows), -(-(i + 1) * t // rows))
            across = slice(-(-j * s // cols), -(-(j + 1) * s // cols))
            out[..., i, j] = getattr(np, how)(w[..., down, across], axis=(-2, -1))
    return out


@settings(max_examples=150)
@given(case=cases(), blocks=sizes(), poison=st.sampled_from([None, np.nan, np.inf]))
def test_every_product(case: Case, blocks: dict[str, int], poison: float | None) -> None:
    A, w = case.matrix, case.weights
    t, s = w.shape[-2:]
    rng = np.random.default_rng(t * 100 + s)
    u, v = rng.normal(size=(t, 2)), rng.normal(size=(s, 3))
    clean = u.copy(), v.copy()
    if poison is not None:  # what no query sees in any item or head, and who sees nothing
        lead = tuple(range(w.ndim - 2))
        v[~case.allow.any((*lead, -2))] = poison
        u[~case.allow.any((*lead, -1))] = poison
    with pytest.MonkeyPatch.context() as patch:
        for name, size in blocks.items():
            patch.setattr(name, size)
        with it.kernels.use("tiled"):
            if not (isinstance(A, Transposed) and case.unknown.any()):  # A.mT is what it was
                close(A.mT @ torch.tensor(u), w.swapaxes(-1, -2) @ clean[0])
        for kernel in ("eager", "tiled", None):
            with it.kernels.use(kernel) if kernel else nullcontext():
                y = A @ torch.tensor(v)
            close(y[torch.tensor(~case.unknown)], (w @ clean[1])[~case.unknown])


@settings(max_examples=50)
@given(data=st.data(), blocks=sizes())
def test_lse_and_scores(data: st.DataObject, blocks: dict[str, int]) -> None:
    case = data.draw(attentions((2, 2)))
    A = case.matrix
    assert isinstance(A, it.Attention)
    p = A.problem
    z = p.logits().numpy()
    z = np.where(case.allow, z, -np.inf)
    sinks = None if p.sinks is None else p.sinks.numpy()
    close(A.scores[...], z)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in blocks.items():
            patch.setattr(name, size)
        sink = np.full((2, 1), -np.inf) if sinks is None else np.broadcast_to(sinks, 2)[:, None]
        whole = np.concatenate([z, np.broadcast_to(sink[:, None], (*z.shape[:-1], 1))], -1)
        with np.errstate(invalid="ignore"):
            expected = np.logaddexp.reduce(whole, -1)
        close(A.lse, expected)
