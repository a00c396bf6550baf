"""Contracts 4 and 5: rows without keys are exactly zero; what no query may see never matters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it

from ..combinations import pairs
from .formula import EPS, IN_FLOAT64, families, multiply, random, written_out

KERNELS = it.kernels.available()
B, H, T, S, D = 2, 4, 5, 7, 8
STEPS, FIRST = torch.arange(T), torch.arange(B)[:, None] == 0
ONE_ROW = FIRST & (STEPS == 2)
EMPTY: dict[str, tuple[dict[str, Any], Tensor]] = {
    "allowed": (
        {"mask": it.allowed(written_out(lambda b, h, i, j: i != 2 or b == 1, B, H, T, S))},
        ONE_ROW,
    ),
    "padding": ({"mask": it.padding(torch.tensor([0, 3]))}, FIRST.expand(B, T)),
    "causal": ({"mask": it.causal(-2)}, (STEPS < 2).expand(B, T)),
    "all": ({"mask": ~it.prefix(S)}, (STEPS >= 0).expand(B, T)),
    "a bias of −∞": (
        {"bias": torch.zeros(B, 1, T, S).masked_fill(ONE_ROW[:, None, :, None], -math.inf)},
        ONE_ROW,
    ),
}
"""Options, and the rows (b, t) that may attend to nothing under them."""


@pairs({"groups": [1, 2], "dtype": EPS, "kernel": KERNELS, "family": EMPTY})
def test_a_row_without_keys_is_exactly_zero(
    family: str, kernel: str, dtype: torch.dtype, groups: int
) -> None:
    q = random(B, H, T, D, dtype=dtype, seed=1).requires_grad_()
    k, v = (random(B, H // groups, S, D, dtype=dtype, seed=i).requires_grad_() for i in (2, 3))
    options, rows = EMPTY[family]
    if "bias" in options:
        options = {"bias": options["bias"].to(dtype)}
    A = it.attend(q, k, **options)
    y = multiply(A, v, kernel)
    assert rows.any() and not y.transpose(1, 2)[rows].any()
    for x in torch.autograd.grad(y.sum() + (y**2).sum(), (q, k, v)):
        assert bool(x.isfinite().all())
        if x.shape[2] == T:
            assert not x.transpose(1, 2)[rows].any()
    assert (A.lse.transpose(1, 2)[rows] == -math.inf).all()
    assert A.lse.transpose(1, 2)[~rows].isfinite().all()
    weights, keys = A.top(S + 2)
    assert not weights.transpose(1, 2)[rows].any()
    assert (keys.transpose(1, 2)[rows] == -1).all()
    assert (A.argmax().transpose(1, 2)[rows] == -1).all()
    assert (A.argmax().transpose(1, 2)[~rows] >= 0).all()
    assert not A.dense().transpose(1, 2)[rows].any()
    assert not A.entropy().transpose(1, 2)[rows].any()
    grads = torch.autograd.grad(A.lse[A.lse.isfinite()].sum() + A.dense().sum(), (q, k))
    assert all(bool(x.isfinite().all()) for x in grads)


POISON = [math.nan, math.inf, -math.inf]


@pairs(
    {"poison": POISON, "kernel": IN_FLOAT64, "family": families(B, H, T, S), "groups": [1, 2, 4]}
)
def test_what_no_query_may_see_changes_nothing(
    family: str, kernel: str, poison: float, groups: int
) -> None:
    mask, rule = families(B, H, T, S)[family]
    allow = written_out(rule, B, H, T, S)
    g = H // groups
    seen = allow.any(-2).unflatten(1, (g, groups)).any(2)
    q = random(B, H, T, D, seed=1).requires_grad_()
    clean = [random(B, g, S, D, seed=i) * seen[..., None] for i in (2, 3)]
    dirty = [torch.where(seen[..., None], x, poison) for x in clean]
    results = []
    for k, v in (clean, dirty):
        k, v = k.clone().requires_grad_(), v.clone().requires_grad_()
        A = it.attend(q, k, mask=mask)
        y = multiply(A, v, kernel)
        grads = torch.autograd.grad((y**2).sum(), (q, k, v))
        results.append([y, *grads, A.dense(), A.lse, A.entropy(), A.received(), A.top(2)[0]])
    for before, after in zip(*results):
        assert torch.equal(before, after)
    assert not results[1][2][~seen].any() and not results[1][3][~seen].any()


@pytest.mark.parametrize("kernel", IN_FLOAT64)
@pytest.mark.parametrize("poison", POISON)
def test_keys_that_heads_or_rows_share_are_unseen_only_if_none_of_them_sees_them(
    poison: float, kernel: str
) -> None:
    q = random(B, H, T, D, seed=1)
    k, v = random(S, D, seed=2), random(S, D, seed=3)
    mask = it.padding(torch.tensor([3, 5]))
    clean = it.attend(q, k, mask=mask) @ v
    k[5:], v[5:] = poison, poison
    found = multiply(it.attend(q, k, mask=mask), v, kernel)
    torch.testing.assert_close(found, clean, atol=1e-12, rtol=0)


def test_poison_in_scores_that_a_mask_hides_from_some_queries_only() -> None:
    """Key 3 is seen by query 3 alone: its NaN is that query's, and nobody else's weight."""
    q, k = random(4, D, seed=1), random(4, D, seed=2)
    clean = it.attend(q, k, mask=it.causal()).dense()
    k[3] = math.nan
    found = it.attend(q, k, mask=it.causal()).dense()
    assert torch.equal(found[:3], clean[:3]) and found[3].isnan().any()
