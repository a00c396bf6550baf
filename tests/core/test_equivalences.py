"""The same call written two ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intently as it

from .formula import random

B, H, T, D = 2, 4, 6, 8
Q, K, V = (random(B, H, T, D, seed=i) for i in range(3))
LENGTHS = torch.tensor([4, 6])
M = random(B, H, T, T, seed=4) > 0
PERM = torch.tensor([3, 0, 5, 1, 4, 2])
BIAS = random(T, T, seed=5)


def at(*args: Tensor, **options: object) -> Tensor:
    return it.attention(*args, **options)  # type: ignore[arg-type]


def unpadded() -> Tensor:
    """Each row alone, its padding sliced off; the padded queries are given their answers too."""
    return torch.stack([at(Q[i], K[i, :, :n], V[i, :, :n]) for i, n in enumerate(LENGTHS)])


def step_by_step() -> Tensor:
    steps = [at(Q[:, :, i : i + 1], K[:, :, : i + 1], V[:, :, : i + 1]) for i in range(T)]
    return torch.cat(steps, 2)


def in_chunks() -> Tensor:
    parts = [
        at(Q[:, :, a:b], K[:, :, :b], V[:, :, :b], mask=it.causal()) for a, b in ((0, 2), (2, 6))
    ]
    return torch.cat(parts, 2)


def by_heads() -> Tensor:
    return torch.stack([at(Q[:, i], K[:, i], V[:, i], mask=it.causal()) for i in range(H)], 1)


def by_rows() -> Tensor:
    return torch.stack([at(q, k, v, mask=it.causal()) for q, k, v in zip(Q, K, V)])


PAIRS: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
    "attention is attend @ v": (lambda: at(Q, K, V), lambda: it.attend(Q, K) @ V),
    "PyTorch's own": (lambda: at(Q, K, V), lambda: F.scaled_dot_product_attention(Q, K, V)),
    "PyTorch's own, causal": (
        lambda: at(Q, K, V, mask=it.causal()),
        lambda: F.scaled_dot_product_attention(Q, K, V, is_causal=True),
    ),
    "PyTorch's own, mask": (
        lambda: at(Q, K, V, mask=M),
        lambda: F.scaled_dot_product_attention(Q, K, V, M),
    ),
    "order of & does not matter": (
        lambda: at(Q, K, V, mask=it.causal() & it.padding(LENGTHS)),
        lambda: at(Q, K, V, mask=it.padding(LENGTHS) & it.causal()),
    ),
    "De Morgan": (
        lambda: at(Q, K, V, mask=~(it.causal() & M)),
        lambda: at(Q, K, V, mask=~it.causal() | ~it.allowed(M)),
    ),
    "a mask twice": (
        lambda: at(Q, K, V, mask=it.allowed(M) & M),
        lambda: at(Q, K, V, mask=M),
    ),
    "a mask is a bias of 0 and −∞": (
        lambda: at(Q, K, V, mask=M),
        lambda: at(Q, K, V, bias=torch.zeros(M.shape, dtype=Q.dtype).masked_fill(~M, -torch.inf)),
    ),
    "causal is a window without end": (
        lambda: at(Q, K, V, mask=it.causal()),
        lambda: at(Q, K, V, mask=it.window(T, 0)),
    ),
    "causal is its own offset": (
        lambda: at(Q, K[:, :, :4], V[:, :, :4], mask=it.causal()),
        lambda: at(Q, K[:, :, :4], V[:, :, :4], mask=it.causal(-2)),
    ),
    "an offset for each row": (
        lambda: at(Q, K, V, mask=it.causal(torch.tensor([1, 3]))),
        lambda: torch.stack([at(Q[i], K[i], V[i], mask=it.causal(n)) for i, n in ((0, 1), (1, 3))]),
    ),
    "a prefix is padding for all": (
        lambda: at(Q, K, V, mask=it.prefix(3)),
        lambda: at(Q, K, V, mask=it.padding(torch.tensor([3, 3]))),
    ),
    "everything in one segment": (
        lambda: at(Q, K, V, mask=it.segments(torch.zeros(T, dtype=torch.long))),
        lambda: at(Q, K, V),
    ),
    "packed documents are documents alone": (
        lambda: at(Q, K, V, mask=it.segments(torch.tensor([0, 0, 1, 1, 1, 1])) & it.causal()),
        lambda: torch.cat(
            [
                at(*(x[:, :, s] for x in (Q, K, V)), mask=it.causal())
                for s in (slice(2), slice(2, 6))
            ],
            2,
        ),
    ),
    "padding or slicing": (lambda: at(Q, K, V, mask=it.padding(LENGTHS)), unpadded),
    "all at once or step by step": (lambda: at(Q, K, V, mask=it.causal()), step_by_step),
    "all at once or in chunks": (lambda: at(Q, K, V, mask=it.causal()), in_chunks),
    "heads or a loop": (lambda: at(Q, K, V, mask=it.causal()), by_heads),
    "batch or a loop": (lambda: at(Q, K, V, mask=it.causal()), by_rows),
    "grouped or repeated": (
        lambda: at(Q, K[:, :2], V[:, :2]),
        lambda: at(Q, *(x[:, :2].repeat_interleave(2, 1) for x in (K, V))),
    ),
    "keys and values permuted together": (
        lambda: at(Q, K[:, :, PERM], V[:, :, PERM]),
        lambda: at(Q, K, V),
    ),
    "queries permuted": (lambda: at(Q[:, :, PERM], K, V), lambda: at(Q, K, V)[:, :, PERM]),
    "temperature": (
        lambda: at(Q, K, V, scale=1 / (2 * D**0.5)),
        lambda: at(Q / 2, K, V),
    ),
    "scale is in q": (lambda: at(Q, K, V), lambda: at(Q / D**0.5, K, V, scale=1.0)),
    "scale as a tensor": (
        lambda: at(Q, K, V, scale=torch.tensor([1.0, 2, 3, 4], dtype=Q.dtype)[:, None, None]),
        lambda: at(Q * torch.tensor([1.0, 2, 3, 4])[:, None, None], K, V, scale=1.0),
    ),
    "the same bias for all keys": (lambda: at(Q, K, V, bias=BIAS[:, :1]), lambda: at(Q, K, V)),
    "a sink is a key of score s and value 0": (
        lambda: at(Q, K, V, sinks=torch.zeros(H, dtype=Q.dtype)),
        lambda: at(Q, F.pad(K, (0, 0, 0, 1)), F.pad(V, (0, 0, 0, 1))),
    ),
    "a sink of −∞ takes nothing": (
        lambda: at(Q, K, V, sinks=torch.full((H,), -torch.inf, dtype=Q.dtype)),
        lambda: at(Q, K, V),
    ),
    "no scale at all is the mean": (
        lambda: at(Q, K, V, scale=0.0),
        lambda: V.mean(2, keepdim=True).expand_as(V),
    ),
    "the product by hand": (
        lambda: at(Q, K, V, mask=M),
        lambda: it.attend(Q, K, mask=M).dense() @ V,
    ),
    "the transposed product": (
        lambda: it.attend(Q, K, mask=M).mT @ V,
        lambda: it.attend(Q, K, mask=M).dense().mT @ V,
    ),
    "rows of the identity are weights": (
        lambda: at(Q, K, torch.eye(T, dtype=Q.dtype).expand(B, H, T, T), mask=M),
        lambda: it.attend(Q, K, mask=M).dense(),
    ),
    "lse": (
        lambda: it.attend(Q, K, bias=BIAS).lse,
        lambda: torch.logsumexp(Q @ K.mT / D**0.5 + BIAS, -1),
    ),
    "scores": (
        lambda: it.attend(Q, K, bias=BIAS, softcap=2.0).scores[...],
        lambda: 2 * torch.tanh(Q @ K.mT / D**0.5 / 2) + BIAS,
    ),
    "positions are bottom-right": (
        lambda: at(Q[:, :, -2:], K, V, mask=it.window(1, 0)),
        lambda: at(Q, K, V, mask=it.window(1, 0))[:, :, -2:],
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_written_two_ways(name: str) -> None:
    one, other = (f() for f in PAIRS[name])
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-11)


def test_a_convolution_is_nine_one_hot_heads() -> None:
    """Source: Cordonnier et al. 2020, "On the Relationship between Self-Attention …", theorem 1.

    Head (dy, dx) looks at the pixel shifted by (dy, dx) alone; its value map is the kernel there.
    """
    height, width, channels = 4, 5, 3
    image = random(1, channels, height, width)
    kernel = random(2, channels, 3, 3, seed=1)
    pixels = image[0].flatten(1).mT  # (t, c), row after row
    y, x = torch.arange(height * width) // width, torch.arange(height * width) % width
    total = torch.zeros(height * width, 2, dtype=torch.float64)
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            one = (y[None] == y[:, None] + dy) & (x[None] == x[:, None] + dx)
            head = it.attention(pixels, pixels, pixels @ kernel[:, :, dy + 1, dx + 1].mT, mask=one)
            total += head  # beyond the border a row may attend to nothing: exactly zero padding
    expected = F.conv2d(image, kernel, padding=1)[0].flatten(1).mT
    torch.testing.assert_close(total, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("base", [10_000.0, 100.0])
def test_sinusoidal_positions_turn_by_a_fixed_angle(base: float) -> None:
    """PE(p + k) is a rotation of PE(p) by k·rate (Vaswani et al. 2017, section 3.5)."""
    c = 6
    table = it.sinusoidal(20, c, base=base).double()
    for i in range(c // 2):
        angle = torch.tensor(3.0, dtype=torch.float64) * base ** (-2 * i / c)
        sin, cos = table[:17, 2 * i], table[:17, 2 * i + 1]
        shifted = sin * angle.cos() + cos * angle.sin()
        torch.testing.assert_close(table[3:, 2 * i], shifted, atol=1e-5, rtol=0)
    assert torch.equal(it.sinusoidal(5, c, offset=7), it.sinusoidal(12, c)[7:])
    assert it.sinusoidal(0, 4).shape == (0, 4)
