"""Weights are believed only where they give what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.core.biases import as_bias
from intently.observe.sources import functional
from intently.observe.watching import checking
from intently.observe.watching.call import After, AttentionSpec, Call
from intently.observe.watching.checking import check, sample

from ..combinations import pairs
from .attending import SelfAttention, Stack, seen_by, stack


def merged(mixed: Tensor) -> Tensor:
    return mixed.transpose(1, 2).flatten(2)


def finished(call: Call, finish: Callable[[Tensor], Tensor]) -> Call:
    """The call with an operator after the product, whose output came out."""
    return replace(call, y=After(finish(call.y), lambda mixed, rows: finish(mixed)))  # type: ignore[arg-type]


def operands(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Q, k and v of one shape."""
    return [torch.randn(*shape).to(dtype) for _ in range(3)]


def attended(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Call:
    """A call of PyTorch's function."""
    return Call(q, k, v, F.scaled_dot_product_attention(q, k, v, **options))


def call(dtype: torch.dtype = torch.float32, **how: object) -> Call:
    q, k = torch.randn(2, 4, 9, 8, dtype=dtype), torch.randn(2, 2, 9, 8, dtype=dtype)
    v = torch.randn(2, 2, 9, 8, dtype=dtype)
    given = AttentionSpec(**how)  # type: ignore[arg-type]
    y = it.attention(q, k, v, mask=given.mask, scale=given.scale, softcap=given.softcap)
    return Call(q, k, v, y, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_right_is_verified(dtype: torch.dtype) -> None:
    own = call(dtype, mask=it.causal())
    assert check(own, it.attend(own.q, own.k, mask=it.causal()), 3).verified


WRONG: dict[str, Callable[[Tensor, Tensor], it.Attention]] = {
    "scale": lambda q, k: it.attend(q, k, mask=it.causal(), scale=0.36),
    "mask": lambda q, k: it.attend(q, k),
    "offset": lambda q, k: it.attend(q, k, mask=it.causal(1)),
    "softcap": lambda q, k: it.attend(q, k, mask=it.causal(), softcap=5.0),
    "heads": lambda q, k: it.attend(q, k.flip(1), mask=it.causal()),
    "rows": lambda q, k: it.attend(q.flip(0), k, mask=it.causal()),
    "queries": lambda q, k: it.attend(q * 1.01, k, mask=it.causal()),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    own = call(mask=it.causal())
    found = check(own, WRONG[name](own.q, own.k), 3)  # type: ignore[arg-type]
    assert found.verified is False and "differs from what came out" in str(found.why)


HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALF)
def test_what_rounding_hides_is_not_verified(dtype: torch.dtype) -> None:
    own = call(dtype)

    # a residual beside which A @ v is small
    hidden = finished(own, lambda mixed: 30_000 + merged(mixed))
    name = str(dtype).removeprefix("torch.")
    for scale in (None, 0.5 * 8**-0.5):
        found = check(hidden, it.attend(own.q, own.k, scale=scale), 0)
        assert found.verified is None
        assert str(found.why).startswith("the values cannot tell: another scale")
        assert str(found.why).endswith(f"would have given the same in {name}")


@pytest.mark.parametrize("dtype", HALF)
def test_weights_that_have_no_scale_are_verified_in_half_precision(dtype: torch.dtype) -> None:
    q, v = torch.zeros(1, 2, 5, 8, dtype=dtype), torch.randn(1, 2, 5, 8).to(dtype)
    assert check(attended(q, q, v), it.attend(q, q), 0).verified


def plainly(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, how: str) -> Tensor:
    """Causal attention as models write it out in half precision, where every score is rounded."""
    z = q @ k.mT * q.shape[-1] ** -0.5
    z = z + torch.full(z.shape[-2:], torch.finfo(z.dtype).min, dtype=z.dtype).triu(1)
    if how == "float32":
        return z.softmax(-1, dtype=torch.float32).to(z.dtype) @ v
    if how == "sinks":  # as GPT-OSS
        z = torch.cat([z, sinks.view(1, -1, 1, 1).expand(*z.shape[:-1], 1)], -1)
        z = z - z.amax(-1, keepdim=True)
        return z.softmax(-1)[..., :-1] @ v
    return z.softmax(-1) @ v


@pairs(
    {
        "t, d": [(9, 8), (64, 32), (200, 64)],
        "spread": [0.3, 1.0, 3.0, 10.0, 20.0],
        "how": ["fused", "half", "float32", "sinks"],
        "dtype": HALF,
    }
)
def test_scores_that_were_rounded(
    dtype: torch.dtype, how: str, spread: float, t: int, d: int
) -> None:
    """What is right is verified however it was rounded, and nothing else is."""
    torch.manual_seed(1)
    q, k = (torch.randn(1, 4, t, d).mul(spread**0.5).to(dtype) for _ in range(2))
    v, sinks = torch.randn(1, 4, t, d).to(dtype), torch.randn(4).to(dtype)
    own = {"mask": it.causal(), "sinks": sinks if how == "sinks" else None}
    written = Call(q, k, v, plainly(q, k, v, sinks, how))
    call = attended(q, k, v, is_causal=True) if how == "fused" else written
    wrong = {"scale": 0.5 * d**-0.5}, {"scale": 2 * d**-0.5}, {"softcap": 0.7}, {"mask": None}
    for turn in range(3):
        assert check(call, it.attend(q, k, **own), turn).verified  # type: ignore[arg-type]
        for change in wrong:
            other = it.attend(q, k, **own | change)  # type: ignore[arg-type]
            assert check(call, other, turn).verified is not True, change


def test_more_rows_are_asked_where_a_few_cannot_tell() -> None:
    q, k = torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8)
    v = torch.randn(1, 2, 40, 8)
    q[..., torch.arange(40) != 20, :] = 0  # most rows see all keys alike, whatever the scale is
    right, wrong = (it.attend(q, k, scale=s) for s in (None, 0.1))
    assert check(attended(q, k, v), right, 0).rows == 40
    assert check(attended(q, k, v), right, 0).verified
    assert check(attended(q, k, v), wrong, 0).verified is False


def test_what_an_operator_made_of_the_product_is_compared() -> None:
    own, weight = call(), torch.randn(32, 32)
    right = finished(own, lambda mixed: merged(mixed) @ weight)
    assert check(right, it.attend(own.q, own.k), 0).verified
    wrong = replace(right, y=replace(right.y, output=right.y.output + 0.01))  # type: ignore
    assert check(wrong, it.attend(own.q, own.k), 0).verified is False


def test_rows_that_see_nothing_and_values_that_cancel() -> None:
    own = call(mask=it.padding(torch.tensor([9, 0])))
    own.y[1] = torch.nan  # type: ignore[index]
    assert check(own, it.attend(own.q, own.k, mask=own.how.mask), 0).verified
    q = torch.zeros(1, 1, 1000, 8)
    v = torch.cat([torch.ones(500, 8), -torch.ones(500, 8)])[torch.randperm(1000)][None, None]
    assert check(attended(q, q, v), it.attend(q, q), 0).verified


def test_dropout_cannot_be_compared() -> None:
    seen = seen_by(Stack(SelfAttention(dropout_p=0.5)), torch.randn(1, 5, 32))
    assert seen.calls[0].verified is None and "dropout=0.5" in str(seen.coverage())
    assert seen["layers.0"].shape == (1, 4, 5, 5)


def test_an_entry_that_fails_refuses_and_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = functional.how_of

    def wrong(*args: object) -> AttentionSpec:
        return replace(whole(*args), scale=1.0)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "how_of", wrong)
    seen = seen_by(stack(2), torch.randn(1, 5, 32))
    assert str(seen.coverage()).count("UNVERIFIED: A[rows] @ v differs") == 2
    with pytest.raises(it.errors.UnverifiedError, match=r"seen\['layers.1', 0\]: expected weights"):
        seen["layers.1"]


def test_a_check_that_fails_by_itself_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        functional, "how_of", lambda *args: AttentionSpec(scale=torch.ones(7, 1, 1))
    )
    seen = seen_by(stack(1), torch.randn(1, 5, 32))
    assert "layers.0" in seen.coverage().unseen or seen.calls[0].verified is False


def test_random_numbers_stay_as_they_were() -> None:
    model, x = stack(2), torch.randn(1, 5, 32)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    seen_by(model, x)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("t", [1, 2, 3, 1000])
def test_sampled_rows_are_within_and_change(t: int) -> None:
    found = [sample(t, turn).tolist() for turn in range(50)]
    assert all(rows[-1] == t - 1 and 0 <= rows[0] < t and rows == sorted(rows) for rows in found)
    assert t < 1000 or len({tuple(rows) for rows in found}) > 40


@pytest.mark.parametrize("values", [torch.zeros(6, 8), torch.ones(6, 8)])
def test_values_that_cannot_tell_are_no_verdict(values: Tensor) -> None:
    q, k, v = operands(1, 2, 6, 8)
    v[:, 0] = 1  # one head that tells is enough
    assert check(attended(q, k, v), it.attend(q, k), 0).verified
    own = attended(q, k, values.expand(1, 2, 6, 8))
    found = check(own, it.attend(q, k), 0)
    assert found.verified is None and "the values cannot tell" in str(found.why)
    assert check(replace(own, y=own.y + 1), it.attend(q, k), 0).verified is False  # type: ignore


class Attends(nn.Module):
    """Attention alone."""

    def forward(self, *operands: Tensor, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(*operands, **options)


def test_steps_whose_values_cannot_tell_leave_it_to_the_others() -> None:
    q, k = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    for drawn in ((False, True), (True, False), (False, False)):
        with it.watch(model := Attends()) as seen:
            for n, some in zip((5, 6), drawn):
                v = torch.randn(1, 2, n, 8) if some else torch.ones(1, 2, n, 8)
                model(q[..., 0 if n == 5 else 5 : n, :], k[..., :n, :], v, is_causal=n == 5)
        (entry,) = seen.calls
        assert entry.steps == 2 and entry.verified is (True if any(drawn) else None)


def test_a_small_part_of_the_output_cannot_tell() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True).eval()
    with torch.no_grad():
        layer.self_attn.out_proj.weight.mul_(1e-7)
        seen = seen_by(layer, torch.randn(2, 6, 16))
    assert "the values cannot tell" in str(seen.coverage())


def test_one_head_that_sees_nothing_beside_others_that_see() -> None:
    q, k, v = operands(1, 2, 3, 8)
    allowed = torch.ones(1, 2, 3, 3, dtype=torch.bool)
    allowed[0, 1, 2] = False
    matrix = it.attend(q, k, mask=it.allowed(allowed))
    own = finished(Call(q, k, v, matrix.dense() @ v), merged)
    y = own.y.output  # type: ignore[union-attr]
    y[0, 2] = torch.nan
    assert check(own, matrix, 0).verified
    y[0, :] = 7
    assert check(own, matrix, 0).verified is False


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.1},
    "causal": {"mask": it.causal()},
    "offset": {"mask": it.causal(offset=0)},
    "window": {"mask": it.window(3, 1)},
    "padding": {"mask": it.padding(torch.tensor([9, 7]))},
    "tensor": {"mask": it.allowed(torch.rand(2, 1, 6, 9) < 0.9)},
    "bias": {"bias": as_bias(torch.randn(4, 6, 9)), "mask": it.causal()},
    "softcap": {"softcap": 2.0},
}
CHANGED: dict[str, dict[str, Any]] = {
    "scale": {"scale": 0.4},
    "half the scale": {"scale": 0.5 * 8**-0.5},
    "mask": {"mask": it.window(1, 0)},
    "bias": {"bias": as_bias(torch.randn(4, 6, 9))},
    "softcap": {"softcap": 0.5},
}


@pairs({"heads": [4, 2, 1], "dtype": [torch.float32, torch.float64], "name": HOW})
def test_what_is_right_is_verified_and_nothing_else(
    name: str, dtype: torch.dtype, heads: int
) -> None:
    q, k, v = (torch.randn(2, h, t, 8, dtype=dtype) for h, t in ((4, 6), (heads, 9), (heads, 9)))
    own = Call(q, k, v, it.attention(q, k, v, **HOW[name]), AttentionSpec(**HOW[name]))
    known = replace(own, y=None, real=own.how.attend(q, k).dense())
    for turn in range(3):
        for made in (own, known):
            assert check(made, own.how.attend(q, k), turn).verified
            for wrong in CHANGED.values():
                other = replace(own.how, **wrong).attend(q, k)
                assert check(made, other, turn).verified is not True, wrong
        for other in (replace(own, y=own.y + 0.01), replace(own, v=v.flip(-2))):  # type: ignore
            assert check(other, own.how.attend(q, k), turn).verified is False


@pytest.mark.parametrize("x", [torch.nan, torch.inf])
def test_what_is_no_number_is_not_verified(x: float) -> None:
    own = call()
    for other in (replace(own, y=torch.full_like(own.y, x)), replace(own, v=own.v * x)):  # type: ignore
        assert check(other, it.attend(own.q, own.k), 0).verified is False  # type: ignore[arg-type]


def test_weights_of_other_keys_are_not_those_that_ran() -> None:
    own = replace(call(), y=None)
    matrix = it.attend(own.q, own.k)  # type: ignore[arg-type]
    wider = F.pad(matrix.dense(), (0, 1), value=0.1)
    assert check(replace(own, real=wider), matrix, 0).verified is None


class ByHand(nn.Module):
    """Attention written out."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT / x.shape[-1] ** 0.5, -1) @ x


@pytest.mark.parametrize(
    ("options", "times"),
    [({}, 1), ({"store": "disk"}, 1), ({"store": "reference"}, 2), ({"dtype": torch.float64}, 2)],
)
def test_a_call_by_hand_is_compared_once_if_the_same_bits_are_kept(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], times: int
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(checking, "check", lambda *given: found.append(check(*given)) or found[-1])
    with it.watch(model := ByHand(), **options) as seen:
        model(torch.randn(2, 5, 8))
    (entry,) = seen.calls
    assert (entry.verified, entry.compared, entry.source) == (True, 2, "by hand")
    assert entry.attention().q.shape[-1] == 8 and len(found) == times  # type: ignore[union-attr]


def test_a_reference_that_cannot_tell_is_not_verified() -> None:
    with torch.inference_mode(), it.watch(model := ByHand(), store="reference") as seen:
        model(torch.randn(2, 5, 8))
    (entry,) = seen.calls
    assert entry.verified is None and "inference" in str(entry.why)
