"""Large scores, half types, other kernels, autocast: what breaks there, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.checker import check

from .reports import held


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def later(z: Tensor) -> Tensor:
    return torch.ones(z.shape[-2:]).triu(1).bool()


# --- large scores -------------------------------------------------------------------------------


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1) @ v


def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = scores(q, k)
    w = (z - z.amax(-1, keepdim=True)).exp()
    return w / w.sum(-1, keepdim=True) @ v


def overflowing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = scores(q, k).exp()
    return w / w.sum(-1, keepdim=True) @ v


def clamped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).clamp(-50, 50).softmax(-1) @ v


def masked(c: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = scores(q, k)
    return (z - c * later(z)).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return it.attention(q, k, v, softcap=30.0, mask=it.causal())


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (overflowing, "large-scores"),
        (clamped, "large-scores"),
        (partial(masked, 1e4), "mask-too-weak"),
    ],
)
def test_large_scores_show_what_small_ones_hide(subject: Callable[..., Tensor], name: str) -> None:
    report = check(subject)
    assert report.ok and [f.name for f in report.hazards] == [name], str(report)
    assert held(report, "large scores") is False


@pytest.mark.parametrize("subject", [plain, shifted, capped, partial(masked, 1e9)])
def test_large_scores_are_right(subject: Callable[..., Tensor]) -> None:
    report = check(subject)
    assert held(report, "large scores") is True and not report.findings, str(report)


# --- half types ---------------------------------------------------------------------------------


def summed_in_type(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = scores(q, k)
    w = (z - z.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(q[..., :1])
    for j in range(k.shape[-2]):
        total = total + w[..., j : j + 1]
    return (w @ v) / total


def summed_in_float(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    wide = (x if x.dtype == torch.double else x.float() for x in (q, k, v))
    return summed_in_type(*wide).to(q.dtype)


def scaled_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (scores(200 * q, 200 * k) / 40_000).softmax(-1) @ v


def test_sums_in_a_half_type_lose_numbers() -> None:
    report = check(summed_in_type)
    assert [f.name for f in report.hazards] == ["half-imprecise"], str(report)
    assert held(report, "bfloat16") is False


def test_a_half_type_overflows() -> None:
    report = check(scaled_late)
    assert [f.name for f in report.hazards] == ["half-overflow"], str(report)
    assert held(report, "bfloat16") is True and held(report, "float16") is False


@pytest.mark.parametrize("subject", [plain, summed_in_float, capped])
def test_half_types_are_right(subject: Callable[..., Tensor]) -> None:
    report = check(subject)
    assert held(report, "bfloat16") is True and not report.findings, str(report)


# --- other kernels, autocast, other forms -------------------------------------------------------


class Layer(nn.Module):
    """Causal attention; ``masked`` says when, for those that slip."""

    def __init__(self, masked: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masked, self.qkv, self.out = masked, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.masked())
        return self.out(y.transpose(1, 2).flatten(2))


class Fast(nn.MultiheadAttention):
    """Attention whose mask is dropped without the fast path."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:  # type: ignore[override]
        mask = (
            torch.ones(6, 6).triu(1).bool() if torch.backends.mha.get_fastpath_enabled() else None
        )
        return super().forward(query, key, value, attn_mask=mask, need_weights=False)


def test_a_mask_that_the_plain_path_drops() -> None:
    torch.manual_seed(0)
    known = torch.backends.mha.get_fastpath_enabled()
    report = check(Fast(32, 4, batch_first=True).eval(), mask=it.causal())
    assert "mask-in-one-path" in [f.name for f in report.mistakes], str(report)
    assert "without the fast path" in str(report)
    assert torch.backends.mha.get_fastpath_enabled() is known


def test_a_mask_that_autocast_drops() -> None:
    careless = Layer(lambda: not torch.is_autocast_enabled("cpu")).eval()
    report = check(careless, mask=it.causal())
    assert [f.name for f in report.mistakes] == ["mask-in-one-path"], str(report)
    assert "under autocast" in str(report)


def test_kernels_and_autocast_are_right() -> None:
    report = check(Layer().eval(), mask=it.causal())
    tried = [p for p in report.properties if "autocast" in p.name or "kernel" in p.name]
    assert len(tried) == 2 and all(p.holds for p in tried), str(report)


def unmasked(module: Layer) -> Layer:
    return Layer(lambda: False).double().eval()


def test_another_form_has_to_give_the_same() -> None:
    layer = Layer().eval()
    assert check(layer, mask=it.causal(), same=[partial(torch.compile, backend="eager")]).ok
    report = check(layer, mask=it.causal(), same=[unmasked])
    assert [f.name for f in report.mistakes] == ["mask-in-one-path"], str(report)
    assert "after unmasked" in str(report)
