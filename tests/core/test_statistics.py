"""Every statistic against its definition on the dense weights, in blocks and in one piece."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import intently as it

from ..messages import refused
from .formula import EPS, families, random

B, H, T, S = 2, 2, 5, 7
BLOCKS = [2**22, 30]
"""All rows at once, and one row at a time."""


@pytest.fixture(params=BLOCKS, ids=["whole", "row by row"], autouse=True)
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.matrix.statistics.BLOCK", request.param)


def matrices(dtype: torch.dtype = torch.float64) -> dict[str, it.LazyMatrix]:
    q, k = random(B, H, T, 4, dtype=dtype, seed=1), random(B, H, S, 4, dtype=dtype, seed=2)
    rules = families(B, H, T, S)
    found: dict[str, it.LazyMatrix] = {
        name: it.attend(q, k, mask=rules[name][0]) for name in ("none", "causal", "allowed")
    }
    A = found["allowed"]
    found["sinks, softcap"] = it.attend(q, k, sinks=random(H).to(dtype), softcap=2.0)
    found |= {
        "transposed": A.mT,
        "mean of heads": A.mean_heads(),
        "dense": it.Dense(A.dense()),
        "stacked": it.stack_rows([A, found["none"][..., :, :]]),
        "merged": it.Merged(A, [[0, 1], [4], [2]], [[0], [2, 3, 5], [6]]),
        "one head": A[1, 1],
        "transposed mean": A.mean_heads().mT,
    }
    return found


NAMES = sorted(matrices())
DEFINED: dict[str, tuple[Callable[[it.LazyMatrix], Tensor], Callable[[Tensor], Tensor]]] = {
    "entropy": (lambda A: A.entropy(), lambda w: -(w * w.clamp_min(1e-300).log()).sum(-1)),
    "received": (lambda A: A.received(), lambda w: w.sum(-2)),
    "mass": (lambda A: A.mass([0, -1]), lambda w: w[..., 0] + w[..., -1]),
    "mass of one": (lambda A: A.mass(1), lambda w: w[..., 1]),  # type: ignore[arg-type]
    "mass of none": (lambda A: A.mass([]), lambda w: w.sum(-1) * 0),
    "mass by boolean": (
        lambda A: A.mass(torch.arange(A.shape[-1]) > 0),
        lambda w: w[..., 1:].sum(-1),
    ),
    "argmax": (lambda A: A.argmax(), lambda w: w.argmax(-1).masked_fill(w.sum(-1) == 0, -1)),
    "top weights": (lambda A: A.top(2)[0], lambda w: w.sort(-1, descending=True)[0][..., :2]),
    "weights of top keys": (
        lambda A: A.dense().gather(-1, A.top(3)[1].clamp_min(0)) * (A.top(3)[1] >= 0),
        lambda w: w.sort(-1, descending=True)[0][..., :3],
    ),
}


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", DEFINED)
def test_definition(what: str, name: str) -> None:
    A = matrices()[name]
    ask, define = DEFINED[what]
    expected = define(A.dense())
    found = ask(A)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_distance(name: str) -> None:
    A = matrices()[name]
    w, (t, s) = A.dense(), A.shape[-2:]
    expected = torch.zeros(A.shape[:-1], dtype=w.dtype)
    for i in range(t):
        for j in range(s):
            expected[..., i] += w[..., i, j] * abs(s - t + i - j)
    torch.testing.assert_close(A.distance(), expected, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("how", ["mean", "max", "sum"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cells", [(1, 1), (2, 3), (3, 2), (4, 4), (5, 7), (100, 100)], ids=str)
def test_pool(cells: tuple[int, int], name: str, how: str) -> None:
    """Awkward sizes: every entry belongs to one cell, and cells cover rows ⌈i t / rows⌉ …"""
    A = matrices()[name]
    w, (t, s) = A.dense(), A.shape[-2:]
    rows, cols = min(cells[0], t), min(cells[1], s)
    found = A.pool(*cells, how=how)
    assert found.shape == (*A.shape[:-2], rows, cols) and found.dtype is torch.float64
    for i in range(rows):
        for j in range(cols):
            cell = w[
                ...,
                -(-i * t // rows) : -(-(i + 1) * t // rows),
                -(-j * s // cols) : -(-(j + 1) * s // cols),
            ]
            reduced = {"mean": cell.mean, "sum": cell.sum, "max": cell.amax}[how]((-2, -1))
            torch.testing.assert_close(found[..., i, j], reduced, atol=1e-14, rtol=1e-13)
    if how == "sum":
        torch.testing.assert_close(found.sum((-2, -1)), w.sum((-2, -1)))


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
    A, exact = (matrices(x)["allowed"] for x in (dtype, torch.float64))
    for found, expected in [
        (A.entropy(), exact.entropy()),
        (A.received(), exact.received()),
        (A.pool(2, 2), exact.pool(2, 2)),
        (A.lse, exact.lse),  # type: ignore[attr-defined]
    ]:
        assert found.dtype is wide
        torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0.02)
    long = it.attend(torch.zeros(3000, 2, dtype=dtype), torch.zeros(3000, 2, dtype=dtype))
    torch.testing.assert_close(long.received(), torch.ones(3000, dtype=wide), atol=1e-3, rtol=0)


def test_entropy_can_be_trained_on() -> None:
    q = random(4, 3).requires_grad_()
    A = it.attend(q, random(4, 3, seed=5), mask=it.causal(-1))
    assert torch.autograd.grad(A.entropy().sum(), q)[0].isfinite().all()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda A: A.top(0), "n: expected an int ≥ 1; got 0."),
        (lambda A: A.top(1.5), "n: expected an int ≥ 1; got 1.5."),
        (lambda A: A.top(True), "n: expected an int ≥ 1; got True."),
        (lambda A: A.pool(0, 2), "rows: expected an int ≥ 1; got 0."),
        (lambda A: A.pool(2, "x"), "cols: expected an int ≥ 1; got 'x'."),
        (lambda A: A.pool(2, 2, "min"), 'how: expected "mean", "max" or "sum"; got \'min\'.'),
        (lambda A: A.mass([7]), "index: expected positions from −7 to 6 along s=7; got 7 to 7."),
    ],
)
def test_errors(ask: Callable[[it.LazyMatrix], object], text: str) -> None:
    refused(lambda: ask(matrices()["causal"]), it.errors.IntentlyError, text, whole=True)
