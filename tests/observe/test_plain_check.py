"""The quick check confirms what `checking.check` verifies, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import intently as it
from intently.core.biases import as_bias
from intently.observe.watching import checking, plain_check, recorder
from intently.observe.watching.call import After, AttentionSpec, Call, InPieces
from intently.observe.watching.checking import check
from intently.observe.watching.plain_check import confirmed

from ..combinations import pairs

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
WRONG: dict[str, dict[str, Any]] = {
    "scale": {"scale": 0.4},
    "half the scale": {"scale": 0.5 * 8**-0.5},
    "mask": {"mask": it.window(1, 0)},
    "bias": {"bias": as_bias(torch.randn(4, 6, 9))},
    "softcap": {"softcap": 0.5},
}


def call(heads: int = 4, dtype: torch.dtype = torch.float32, **how: Any) -> Any:
    """Queries (2, 4, 6, 8) and keys (2, heads, 9, 8) of one call, and its output."""
    q, k, v = (torch.randn(2, h, t, 8, dtype=dtype) for h, t in ((4, 6), (heads, 9), (heads, 9)))
    return Call(q, k, v, it.attention(q, k, v, **how), AttentionSpec(**how))


def said(own: Any, turn: int = 0, **changed: Any) -> bool:
    found = confirmed(own, own.q, own.k, replace(own.how, **changed), turn)
    assert found is None or found.verified
    return found is not None


@pairs({"heads": [4, 2, 1], "dtype": [torch.float32, torch.float64], "name": HOW})
def test_what_is_right_is_confirmed_and_nothing_else(
    name: str, dtype: torch.dtype, heads: int
) -> None:
    own = call(heads, dtype, **HOW[name])
    for turn in range(3):
        found = confirmed(own, own.q, own.k, own.how, turn)
        assert found == check(own, own.how.attend(own.q, own.k), turn)
        assert not any(said(own, turn, **WRONG[wrong]) for wrong in WRONG)
    changed = replace(own, y=own.y + 0.01)
    assert not said(changed) and not said(replace(own, v=own.v.flip(-2)))
    assert not said(replace(own, q=own.q * 1.01)) and not said(replace(own, k=own.k * 1.1))


def test_weights_that_ran_are_compared() -> None:
    own = call(mask=it.causal())
    real = own.how.attend(own.q, own.k).dense()
    for y in (None, own.y):
        assert said(replace(own, y=y, real=real))
    for wrong in WRONG.values():
        assert not said(replace(own, y=None, real=real), **wrong)
    assert not said(replace(own, y=None))


def test_weights_of_other_keys_are_not_confirmed() -> None:
    own = replace(call(), y=None)
    wider = torch.nn.functional.pad(own.how.attend(own.q, own.k).dense(), (0, 1))
    assert not said(replace(own, real=wider))


def test_what_the_values_cannot_tell_is_not_confirmed() -> None:
    own = call()
    alike = replace(own, v=torch.ones_like(own.v), y=torch.ones_like(own.y))
    assert not said(alike)
    assert check(alike, own.how.attend(own.q, own.k), 0).verified is None


@pytest.mark.parametrize("x", [torch.nan, torch.inf])
def test_no_number_is_not_confirmed(x: float) -> None:
    own = call()
    assert not said(replace(own, y=torch.full_like(own.y, x)))
    assert not said(replace(own, v=torch.full_like(own.v, x)))


def _after(own: Any) -> Call:
    return replace(own, y=After(own.y, lambda mixed, rows: mixed))


def _sinks(own: Any) -> Call:
    return replace(own, how=replace(own.how, sinks=torch.zeros(4)))


def _dropout(own: Any) -> Call:
    return replace(own, how=replace(own.how, dropout=0.1))


def _some_columns(own: Any) -> Call:
    return replace(own, columns=slice(0, 9))


def _half(own: Any) -> Call:
    q, k, v, y = (x.bfloat16() for x in (own.q, own.k, own.v, own.y))
    return replace(own, q=q, k=k, v=v, y=y)


def _in_pieces(own: Any) -> Call:
    rows = torch.arange(2)
    weights = own.how.attend(own.q, own.k).tile(rows)
    return replace(own, real=InPieces((2, 4, 6, 9), weights.dtype, rows, weights))


def _half_weights(own: Any) -> Call:
    return replace(own, real=own.how.attend(own.q, own.k).dense().bfloat16())


def _no_width(own: Any) -> Call:
    return replace(own, q=own.q[..., :0], k=own.k[..., :0])


OTHERS = _after, _sinks, _dropout, _some_columns, _half, _in_pieces, _half_weights, _no_width


@pytest.mark.parametrize("other", OTHERS)
def test_other_calls_are_left_to_the_other_check(other: Any) -> None:
    own = call()
    assert said(own) and not said(other(own))


def test_large_calls_are_left_to_the_other_check(monkeypatch: pytest.MonkeyPatch) -> None:
    own = call()
    for name, most in (("SMALL", 2 * 9 * 8), ("WHOLE", 2 * 4 * 2 * 9 * 8)):
        monkeypatch.setattr(plain_check, name, most)
        assert said(own)
        monkeypatch.setattr(plain_check, name, most - 1)
        assert not said(own)
        monkeypatch.undo()


class ByHand(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.mT / x.shape[-1] ** 0.5, -1) @ x


@pytest.mark.parametrize(
    ("options", "times"),
    [({}, 1), ({"store": "disk"}, 1), ({"store": "reference"}, 2), ({"dtype": torch.float64}, 2)],
)
def test_a_call_by_hand_is_compared_once_if_the_same_bits_are_kept(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], times: int
) -> None:
    found: list[Any] = []

    def kept(compare: Any) -> Any:
        def comparing(*given: Any) -> Any:
            found.append(compare(*given))
            return found[-1]

        return comparing

    monkeypatch.setattr(checking, "check", kept(check))
    monkeypatch.setattr(recorder, "confirmed", kept(confirmed))
    with it.watch(model := ByHand(), **options) as seen:
        model(torch.randn(2, 5, 8))
    (entry,) = seen.calls
    assert (entry.verified, entry.compared, entry.source) == (True, 2, "by hand")
    assert entry.attention().q.shape[-1] == 8
    assert sum(verdict is not None for verdict in found) == times


def test_a_reference_that_cannot_tell_is_not_verified() -> None:
    with torch.inference_mode(), it.watch(model := ByHand(), store="reference") as seen:
        model(torch.randn(2, 5, 8))
    (entry,) = seen.calls
    assert entry.verified is None and "inference" in str(entry.why)


def test_a_recording_asks_the_other_check_only_about_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Call] = []

    def counted(own: Call, *others: Any) -> checking.Verdict:
        asked.append(own)
        return check(own, *others)

    monkeypatch.setattr(checking, "check", counted)
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    with it.watch() as seen:
        it.attention(q, k, v, mask=it.causal())
        it.attention(q, k, torch.ones_like(v))
    assert [entry.verified for entry in seen.calls] == [True, None] and len(asked) == 1
