"""Statistics at their edges: no rows, few keys, half types, gradients, and what they refuse.

Their definitions are tested in `test_every_matrix.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KindError, RangeError

from ..messages import raises
from .formula import EPS, families, random

B, H, T, S = 2, 2, 5, 7
BLOCKS = [2**22, 30]
"""All rows at once, and one row at a time."""


@pytest.fixture(params=BLOCKS, ids=["whole", "row by row"], autouse=True)
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.core.matrix.statistics.BLOCK", request.param)


def matrix(dtype: torch.dtype = torch.float64) -> it.Attention:
    q, k = random(B, H, T, 4, dtype=dtype, seed=1), random(B, H, S, 4, dtype=dtype, seed=2)
    return it.attend(q, k, mask=families(B, H, T, S)["allowed"][0])


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("keys", "kept"),
    [(1, [1]), ([], []), ([0, -1], [0, 6]), (torch.arange(S) > 0, [*range(1, S)])],
    ids=["one", "none", "two", "a boolean"],
)
def test_mass_of_any_keys(keys: Any, kept: list[int]) -> None:
    A = matrix()
    for view in (A, A.mean_heads()):
        expected = view.dense()[..., kept].sum(-1)
        torch.testing.assert_close(view.mass(keys), expected, atol=1e-14, rtol=1e-13)


def test_pool_of_negative_numbers() -> None:
    w = -1 - torch.rand(4, 4, dtype=torch.float64)
    assert torch.equal(it.Dense(w).pool(1, 1, "max")[0, 0], w.max())
    assert it.Dense(torch.zeros(0, 4)).pool(2, 2).shape == (0, 2)


def test_top_asks_for_more_than_there_is() -> None:
    A = it.attend(torch.ones(3, 2), torch.ones(3, 2), mask=it.causal())
    weights, keys = A.top(5)
    assert weights.shape == keys.shape == (3, 5) and keys.dtype is torch.int64
    assert (keys >= 0).sum(-1).tolist() == [1, 2, 3]
    assert weights[keys < 0].abs().sum() == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(3))


def test_no_rows_or_no_columns() -> None:
    none = it.attend(torch.ones(2, 0, 3), torch.ones(2, 4, 3))
    assert none.top(2)[1].shape == (2, 0, 2) and none.argmax().shape == (2, 0)
    assert none.received().tolist() == [[0.0] * 4] * 2 and none.entropy().shape == (2, 0)
    blind = it.attend(torch.ones(2, 3, 3), torch.ones(2, 0, 3))
    assert blind.argmax().tolist() == [[-1] * 3] * 2 and blind.received().shape == (2, 0)
    assert not blind.entropy().any() and not blind.distance().any()
    assert (blind.lse == -torch.inf).all() and blind.pool(2, 2).shape == (2, 2, 0)


@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_half_types_are_summed_in_float32(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    A, exact = matrix(dtype), matrix()
    for found, expected in [
        (A.entropy(), exact.entropy()),
        (A.received(), exact.received()),
        (A.pool(2, 2), exact.pool(2, 2)),
        (A.lse, exact.lse),
        (A.top(2)[0], exact.top(2)[0]),
        (A.distance(), exact.distance()),
    ]:
        assert found.dtype is wide
        torch.testing.assert_close(found.double(), expected, atol=0.03, rtol=0.02)
    long = it.attend(torch.zeros(3000, 2, dtype=dtype), torch.zeros(3000, 2, dtype=dtype))
    torch.testing.assert_close(long.received(), torch.ones(3000, dtype=wide), atol=1e-3, rtol=0)


def test_entropy_can_be_trained_on() -> None:
    q = random(4, 3).requires_grad_()
    A = it.attend(q, random(4, 3, seed=5), mask=it.causal(-1))
    assert torch.autograd.grad(A.entropy().sum(), q)[0].isfinite().all()


Q, K = random(4, 60, 6) * 2, random(4, 90, 6, seed=1)


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
        torch.testing.assert_close(ask(), expected, atol=1e-13, rtol=1e-12)
        assert torch.autograd.grad(ask().square().sum(), q)[0].abs().sum() > 0


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


test_errors = raises(
    {
        ArgumentError: {
            "n: expected an int ≥ 1; got 0.": lambda: matrix().top(0),
            "rows: expected an int ≥ 1; got 0.": lambda: matrix().pool(0, 2),
            'reduce: expected "mean", "max" or "sum"; got \'min\'.': lambda: matrix().pool(
                2, 2, "min"
            ),
        },
        KindError: {
            "n: expected an int ≥ 1; got 1.5.": lambda: matrix().top(1.5),
            "n: expected an int ≥ 1; got True.": lambda: matrix().top(True),
            "cols: expected an int ≥ 1; got 'x'.": lambda: matrix().pool(2, "x"),
        },
        RangeError: {
            "index: expected positions from −7 to 6 along s=7; got 7 to 7.": lambda: matrix().mass(
                [7]
            )
        },
    },
    whole=True,
)
