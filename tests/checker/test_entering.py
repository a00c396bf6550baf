"""What only another example tells: padding, more keys, the inputs of projections, given biases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from intently.checker import check

from .reports import names


@pytest.mark.parametrize(
    ("rows", "across", "expected"),
    [
        (slice(None), False, []),
        (slice(0, 1), False, ["mask-of-other-rows"]),
        (slice(None), True, ["mask-on-queries"]),
    ],
)
def test_padding_that_hides_nothing_in_the_example(
    rows: slice, across: bool, expected: list[str]
) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, pad: Tensor) -> Tensor:
        hidden = pad[rows, None, None]
        hidden = hidden.mT if across else hidden
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return (scores + hidden * -1e9).softmax(-1) @ v

    q, k, v = torch.randn(3, 3, 4, 7, 8)
    pad = torch.arange(7) >= torch.tensor([7, 5, 4])[:, None]
    inputs = {"q": q, "k": k, "v": v, "pad": pad}
    report = check(attend, inputs=inputs, arguments={"pad": "ignore"})
    assert [x for x in names(report) if x != "mean-without-keys"] == expected, str(report)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda bias: bias, []),
        (lambda bias: bias.flip(1), ["mask-of-other-rows"]),
        (lambda bias: 2 * bias, ["bias-twice"]),
        (lambda bias: bias / 3, ["bias-scaled"]),
        (lambda bias: 0 * bias, ["bias-missing"]),
    ],
)
def test_a_bias_that_is_handed_in(change: Callable[[Tensor], Tensor], expected: list[str]) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=change(bias))

    q, k, v = torch.randn(3, 2, 4, 7, 8)
    inputs = {"q": q, "k": k, "v": v, "bias": torch.randn(1, 4, 7, 7)}
    report = check(attend, inputs=inputs, arguments={"bias": "add"})
    assert names(report) == expected, str(report)


@pytest.mark.parametrize(
    ("start", "before", "after", "expected"),
    [
        (1, 4, 4, []),
        (0, 4, 4, ["mask-top-left"]),
        (1, 4, 99, ["window-missing"]),
        (1, 3, 3, ["window-off-by-one"]),
    ],
)
def test_more_keys_than_queries(start: int, before: int, after: int, expected: list[str]) -> None:
    def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t, s = q.shape[-2], k.shape[-2]
        far = torch.arange(t)[:, None] + start * (s - t) - torch.arange(s)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(far <= before) & (far >= -after))

    assert names(check(local, mask=it.window(4, 4))) == expected


class Layer(nn.Module):
    """Causal attention with projections apart; ``way`` is what it does otherwise."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(32, 32) for _ in range(3))
        self.out, self.way = nn.Linear(32, 32), way

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(1, keepdim=True) if "leak" in self.way else x
        q = self.q_proj(x * 8**-0.5 if "scaled" in self.way else x)
        k, v = self.k_proj(x), self.v_proj(x)
        k, v = (v, k) if "exchanged" in self.way else (k, v)
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal="unmasked" not in self.way)
        y = y.transpose(1, 2).flatten(2)
        return F.linear(y, self.out.weight) if "bare" in self.way else self.out(y)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("", []),
        ("scaled", ["scale-one-over-d"]),
        ("leak unmasked", ["mask-missing", "leak-later"]),
        ("unmasked", ["mask-missing"]),
        ("exchanged", ["projections-exchanged"]),
        ("bare", ["projection-bias-missing"]),
    ],
)
def test_what_enters_and_leaves(way: str, expected: list[str]) -> None:
    report = check(Layer(way), inputs={"x": torch.randn(2, 7, 32)}, mask=it.causal())
    assert names(report) == expected, str(report)


@pytest.mark.parametrize("flipped", [False, True])
def test_slopes_in_the_order_of_the_heads(flipped: bool) -> None:
    slopes = 2.0 ** (-2 * torch.arange(1, 5))
    slopes = slopes.flip(0) if flipped else slopes

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        far = torch.arange(7)[:, None] - torch.arange(7)
        bias = (-slopes[:, None, None] * far).masked_fill(far < 0, -torch.inf).to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    q, k, v = torch.randn(3, 2, 4, 7, 8)
    report = check(attend, inputs={"q": q, "k": k, "v": v}, mask=it.causal())
    assert names(report) == ["bias-slopes"] * flipped, str(report)


def test_a_norm_of_queries_whose_heads_stand_before_the_steps_leaks_nothing() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.q_norm, self.k_norm = nn.Linear(32, 96), nn.RMSNorm(8), nn.RMSNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            q, k = self.q_norm(q), self.k_norm(k)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).flatten(2)

    x = torch.randn(2, 8, 32)  # 8 heads of 8 would hide a confusion of axes
    assert names(check(Normed(), inputs={"x": x}, mask=it.causal())) == []


class OnlyPadding(nn.Module):
    """Attends to nothing but the zeros that it appends to keys and values."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.qkv, self.gate = nn.Linear(32, 96), nn.Parameter(torch.full((1,), gate))
        self.inverted = gate != 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        k, v = (F.pad(y, (0, 0, 0, 2)) for y in (k, v))
        padding = torch.arange(k.shape[-2])[None] >= x.shape[1]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=padding == self.inverted)
        return self.gate * y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("gate", "expected"), [(1.0, ["mask-inverted"]), (0.0, [])])
def test_outputs_that_no_input_changes(gate: float, expected: list[str]) -> None:
    report = check(OnlyPadding(gate), inputs={"x": torch.randn(2, 6, 32)})
    assert [x.name for x in report.mistakes] == expected, str(report)
