"""In half precision, what is right is verified, and nothing that is nearly right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intently as it
from intently.observe.watching.call import Call, operand
from intently.observe.watching.checking import Verdict, check, sample

from ..combinations import pairs

HALF = (torch.bfloat16, torch.float16)
T, D, HEADS = 40, 16, 4


def operands(dtype: torch.dtype, groups: int = 2, spread: float = 1.0) -> list[Tensor]:
    """Q, k and v of scores that differ by ``spread``, and of grouped heads."""
    torch.manual_seed(0)
    q, k = torch.randn(2, HEADS, T, D), torch.randn(2, groups, T, D)
    return [(x * spread**0.5).to(dtype) for x in (q, k)] + [torch.randn(2, groups, T, D).to(dtype)]


def written(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The output and the weights of attention as models write it, every step rounded."""
    k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
    z = q @ k.mT * D**-0.5 + added
    if sinks is not None:
        z = torch.cat([z, sinks.view(1, -1, 1, 1).expand(*z.shape[:-1], 1)], -1)
    w = z.softmax(-1, dtype=torch.float32).to(q.dtype)[..., :T]
    return w @ v, w


def called(given: list[Tensor], added: Tensor, how: str, **sinks: Tensor) -> Call:
    """A call that ran fused, or written out, and then with the weights that ran if ``known``."""
    q, k, v = given
    if how == "fused":
        mask = added.expand(2, HEADS, T, T)
        return Call(q, k, v, F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True))
    y, w = written(q, k, v, added, **sinks)
    return Call(q, k, v, y, real=w if how == "known" else None)


def low(mask: it.Mask, dtype: torch.dtype) -> Tensor:
    """A mask (t, t) as models add it."""
    seen = it.attend(torch.zeros(T, D), torch.zeros(T, D), mask=mask).dense() > 0
    return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)


def verdicts(call: Call, **spec: Any) -> list[Verdict]:
    """The verdicts on some samples of rows."""
    matrix = it.attend(operand(call.q), operand(call.k), **spec)
    return [check(call, matrix, turn) for turn in range(3)]


def table(dtype: torch.dtype) -> Tensor:
    """A bias (h, t, t) of relative positions."""
    torch.manual_seed(2)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    return torch.randn(HEADS, 2 * T)[:, distance.clamp(-8, 8) + 8].to(dtype)


def slopes(dtype: torch.dtype) -> Tensor:
    """ALiBi's bias (h, t, t)."""
    distance = (torch.arange(T)[:, None] - torch.arange(T)).abs()
    return (-distance * 2.0 ** -torch.arange(2, 2 + HEADS)[:, None, None]).to(dtype)


WAYS = ("fused", "written", "known")


@pairs({"spread": [0.3, 1.0, 5.0], "how": WAYS, "dtype": HALF})
def test_another_scale_or_mask_is_not_verified(dtype: torch.dtype, how: str, spread: float) -> None:
    call = called(operands(dtype, spread=spread), low(it.causal(), dtype), how)
    assert all(found.verified for found in verdicts(call, mask=it.causal()))
    wrong = [{"mask": it.causal(), "scale": D**-0.5 * x} for x in (0.5, 0.9, 1.1, 2)]
    wrong += [{"mask": it.causal(x)} for x in (-1, 1)] + [{"mask": None}]
    for spec in wrong:
        assert not any(found.verified for found in verdicts(call, **spec)), spec


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("dtype", HALF)
def test_a_window_off_by_one_is_not_verified(dtype: torch.dtype, how: str) -> None:
    call = called(operands(dtype), low(it.window(5, 2), dtype), how)
    assert all(found.verified for found in verdicts(call, mask=it.window(5, 2)))
    for before, after in ((4, 2), (6, 2), (5, 1), (5, 3)):
        assert not any(found.verified for found in verdicts(call, mask=it.window(before, after)))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("bias", [table, slopes])
@pytest.mark.parametrize("dtype", HALF)
def test_a_bias_that_is_dropped_or_turned_is_not_verified(
    dtype: torch.dtype, bias: Any, how: str
) -> None:
    added = bias(dtype)
    call = called(operands(dtype), added + low(it.causal(), dtype), how)
    assert all(found.verified for found in verdicts(call, mask=it.causal(), bias=added))
    for wrong in (None, -added, added / 2):
        assert not any(found.verified for found in verdicts(call, mask=it.causal(), bias=wrong))


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("dtype", HALF)
def test_key_heads_that_are_tiled_are_not_verified(dtype: torch.dtype, how: str) -> None:
    call = called(operands(dtype), low(it.causal(), dtype), how)
    tiled = [x.repeat(1, HEADS // 2, 1, 1) for x in (call.k, call.v)]  # type: ignore[union-attr]
    other = replace(call, k=tiled[0], v=tiled[1])
    assert not any(found.verified for found in verdicts(other, mask=it.causal()))


@pytest.mark.parametrize("dtype", HALF)
def test_sinks_that_are_dropped_are_not_verified(dtype: torch.dtype) -> None:
    sinks = torch.randn(HEADS).to(dtype)
    call = called(operands(dtype), low(it.causal(), dtype), "written", sinks=sinks)
    assert all(found.verified for found in verdicts(call, mask=it.causal(), sinks=sinks))
    for wrong in (None, sinks + 0.3):
        assert not any(found.verified for found in verdicts(call, mask=it.causal(), sinks=wrong))


@pytest.mark.parametrize("dtype", HALF)
def test_values_that_hardly_differ_cannot_tell(dtype: torch.dtype) -> None:
    q, k, v = operands(dtype)
    v = 1 + v * torch.finfo(dtype).eps
    call = called([q, k, v], low(it.causal(), dtype), "fused")
    for found in verdicts(call, mask=it.causal()):
        assert found.verified is None and found.rows == T
        assert str(found.why).startswith("the values cannot tell: another scale")
    known = called([q, k, v], low(it.causal(), dtype), "known")
    assert all(found.verified for found in verdicts(known, mask=it.causal()))


@pytest.mark.parametrize("dtype", HALF)
def test_rows_are_taken_until_they_tell(dtype: torch.dtype) -> None:
    q, k, v = operands(dtype)
    some = torch.zeros(2, HEADS, T, T, dtype=torch.bool)
    asked = set(sample(T, 0, 8).tolist())
    some[..., next(i for i in range(T) if i not in asked), :3] = True
    added = torch.where(some, 0.0, -torch.inf).to(dtype)
    for how in WAYS:
        call = called([q, k, v], added, how)
        found = check(call, it.attend(q, k, mask=it.allowed(some)), 0)
        assert found.verified and found.rows > 8, how
        other = some.roll(1, -1) | some
        assert not check(call, it.attend(q, k, mask=it.allowed(other)), 0).verified, how


@pytest.mark.parametrize("t", [5, 300])
def test_rows_that_see_nothing_prove_nothing(t: int) -> None:
    q, k, v = (torch.randn(1, 2, t, 8) for _ in range(3))
    mask = torch.zeros(t, t, dtype=torch.bool)
    mask[3, :5] = True
    for x in (torch.float32, *HALF):
        call = Call(q.to(x), k.to(x), v.to(x), it.attention(q, k, v, mask=it.allowed(mask)).to(x))
        other = it.attend(operand(call.q), operand(call.k), mask=it.allowed(torch.zeros_like(mask)))
        assert not check(call, other, 0).verified


@pytest.mark.parametrize("dtype", HALF)
def test_numbers_that_are_none_are_the_same_on_both_sides(dtype: torch.dtype) -> None:
    q, k, v = operands(dtype)
    k[0], v[0] = torch.nan, torch.nan
    call = called([q, k, v], low(it.causal(), dtype), "written")
    assert all(found.verified for found in verdicts(call, mask=it.causal()))
    call.y[1] += 1  # type: ignore[index]
    assert not any(found.verified for found in verdicts(call, mask=it.causal()))
