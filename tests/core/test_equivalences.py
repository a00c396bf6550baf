"""The same call written two ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intently as it
from intently.core.scores import Cosine, General

from ..combinations import pairs
from .formula import random, serving

B, H, T, D = 2, 4, 6, 8
Q, K, V = (random(B, H, T, D, seed=i) for i in range(3))
LENGTHS = torch.tensor([4, 6])
M = random(B, H, T, T, seed=4) > 0
PERM = torch.tensor([3, 0, 5, 1, 4, 2])
BIAS = random(T, T, seed=5)
HALVES = (slice(2), slice(2, T))
ZERO = torch.zeros((), dtype=torch.float64)
SQUARE = random(D, D, seed=9)


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


def ragged() -> Tensor:
    """Rows of 5 and 3 steps through one cache: two chunks of prefill, then a step of decoding.

    Row i writes its new keys behind its own ones. What it has not written yet is NaN.
    """
    whole = (5, 3)
    keys, values = (torch.full_like(x, torch.nan) for x in (K, V))
    answers = torch.zeros_like(Q)
    seen = torch.tensor([0, 0])
    for new in ([2, 1], [2, 1], [1, 1]):
        chunk = torch.zeros(B, H, max(new), D, dtype=Q.dtype)
        for row, n in enumerate(new):
            at_once = slice(int(seen[row]), int(seen[row]) + n)
            chunk[row, :, :n] = Q[row, :, at_once]
            keys[row, :, at_once], values[row, :, at_once] = K[row, :, at_once], V[row, :, at_once]
        mask = it.causal(seen) & it.padding(seen + torch.tensor(new))
        y = at(chunk, keys, values, mask=mask)
        for row, n in enumerate(new):
            answers[row, :, int(seen[row]) : int(seen[row]) + n] = y[row, :, :n]
        seen = seen + torch.tensor(new)
    assert tuple(seen.tolist()) == whole
    return answers


def each_row_alone() -> Tensor:
    answers = torch.zeros_like(Q)
    for row, n in enumerate((5, 3)):
        answers[row, :, :n] = at(*(x[row, :, :n] for x in (Q, K, V)), mask=it.causal())
    return answers


def within_one_sequence() -> Tensor:
    """Decoder and encoder steps in one sequence: those of the decoder may look at the others."""
    decoder = torch.arange(2 * T)[:, None] < T
    encoder = torch.arange(2 * T) >= T
    q, k, v = (torch.cat([Q, x], 2) for x in (K, K, V))
    return at(q, k, v, mask=(decoder & encoder) | ~decoder)[:, :, :T]


def in_two_parts() -> Tensor:
    """Keys in two parts, joined by their lse."""
    parts = [it.attend(Q, K[:, :, i], bias=BIAS[:, i]) for i in HALVES]
    shares = torch.stack([part.lse for part in parts]).softmax(0)
    return sum((w[..., None] * (A @ V[:, :, i]) for w, A, i in zip(shares, parts, HALVES)), ZERO)


PAIRS: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
    "order of & does not matter": (
        lambda: at(Q, K, V, mask=it.causal() & it.padding(LENGTHS)),
        lambda: at(Q, K, V, mask=it.padding(LENGTHS) & it.causal()),
    ),
    "order of | does not matter": (
        lambda: at(Q, K, V, mask=it.window(0, 1) | it.prefix(2) | M),
        lambda: at(Q, K, V, mask=it.allowed(M) | (it.prefix(2) | it.window(0, 1))),
    ),
    "& before |": (
        lambda: at(Q, K, V, mask=it.causal() & (it.prefix(4) | it.allowed(M))),
        lambda: at(Q, K, V, mask=it.causal() & it.prefix(4) | it.causal() & M),
    ),
    "De Morgan": (
        lambda: at(Q, K, V, mask=~(it.causal() & M)),
        lambda: at(Q, K, V, mask=~it.causal() | ~it.allowed(M)),
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
    "a ragged batch in chunks or each row alone": (ragged, each_row_alone),
    "cross-attention is a corner of self-attention": (lambda: at(Q, K, V), within_one_sequence),
    "self-attention is cross-attention to itself": (
        lambda: it.attend(Q, Q, scale=1) @ Q,
        lambda: at(Q, Q.clone(), Q.clone(), scale=1),
    ),
    "attention without parameters": (
        lambda: it.attend(Q, Q, scale=1) @ Q,
        lambda: torch.softmax(Q @ Q.mT, -1) @ Q,
    ),
    "keys in one part or two": (lambda: at(Q, K, V, bias=BIAS), in_two_parts),
    "the same key twice is a bias of ln 2": (
        lambda: at(Q, *(torch.cat([x, x[:, :, :1]], 2) for x in (K, V))),
        lambda: at(Q, K, V, bias=torch.tensor([2.0, 1, 1, 1, 1, 1], dtype=Q.dtype).log()),
    ),
    "keys and values permuted together": (
        lambda: at(Q, K[:, :, PERM], V[:, :, PERM]),
        lambda: at(Q, K, V),
    ),
    "keys, values and columns of mask and bias permuted": (
        lambda: at(Q, K[:, :, PERM], V[:, :, PERM], mask=M[..., PERM], bias=BIAS[:, PERM]),
        lambda: at(Q, K, V, mask=M, bias=BIAS),
    ),
    "queries permuted": (lambda: at(Q[:, :, PERM], K, V), lambda: at(Q, K, V)[:, :, PERM]),
    "temperature": (lambda: at(Q, K, V, scale=1 / (2 * D**0.5)), lambda: at(Q / 2, K, V)),
    "a scale of zero under a mask": (
        lambda: at(Q, K, V, scale=0.0, mask=it.causal()),
        lambda: V.cumsum(2) / torch.arange(1, T + 1)[:, None],
    ),
    "a scale below zero": (
        lambda: at(Q, K, V, scale=-0.5, mask=it.causal()),
        lambda: at(-Q, K, V, scale=0.5, mask=it.causal()),
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
    "rows of the identity are weights": (
        lambda: at(Q, K, torch.eye(T, dtype=Q.dtype).expand(B, H, T, T), mask=M),
        lambda: it.attend(Q, K, mask=M).dense(),
    ),
    "general of the identity is the dot product": (
        lambda: at(Q, K, V, score=General(torch.eye(D, dtype=Q.dtype))),
        lambda: at(Q, K, V, scale=1),
    ),
    "general is the dot product of projected queries": (
        lambda: at(Q, K, V, score=General(SQUARE), mask=M),
        lambda: at(Q @ SQUARE, K, V, scale=1, mask=M),
    ),
    "cosine is the dot product of unit vectors": (
        lambda: at(Q, K, V, score=Cosine(), scale=3.0, mask=M),
        lambda: at(F.normalize(Q, dim=-1), F.normalize(K, dim=-1), V, scale=3.0, mask=M),
    ),
    "positions are bottom-right": (
        lambda: at(Q[:, :, -2:], K, V, mask=it.window(1, 0)),
        lambda: at(Q, K, V, mask=it.window(1, 0))[:, :, -2:],
    ),
}


@pytest.mark.parametrize("kernel", ["tiled", "eager"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_same_written_two_ways(name: str, kernel: str) -> None:
    one, other = PAIRS[name]
    with serving(kernel):
        found = one()
    torch.testing.assert_close(found, other(), atol=1e-12, rtol=1e-11)


@pairs(
    {
        "kernel": it.kernels.available(),
        "written": ["masks", "biases", "a bias of −∞"],
        "k": [1, 3, 5],
    }
)
def test_a_convolution_is_one_hot_heads(k: int, written: str, kernel: str) -> None:
    """A k × k convolution is k² heads, each looking at one neighbour.

    Head (dy, dx) looks at the pixel shifted by (dy, dx) alone; its value map is the kernel there.
    Source: Cordonnier et al. 2020, "On the Relationship between Self-Attention …", theorem 1.
    """
    height, width, channels = 4, 5, 3
    image = random(1, channels, height, width)
    weight = random(2, channels, k, k, seed=1)
    pixels = image[0].flatten(1).mT  # (t, c), row after row
    y, x = torch.arange(height * width) // width, torch.arange(height * width) % width
    shifts = [
        (dy, dx) for dy in range(-(k // 2), k // 2 + 1) for dx in range(-(k // 2), k // 2 + 1)
    ]
    one_hot = torch.stack(
        [(y == y[:, None] + dy) & (x == x[:, None] + dx) for dy, dx in shifts]
    )  # (k², t, t); beyond the border a row is empty: exactly zero padding
    values = torch.einsum("tc,ocij->ijto", pixels, weight).flatten(0, 1)
    q = torch.zeros(k * k, height * width, channels, dtype=torch.float64)
    options: dict[str, Tensor] = {"mask": one_hot}
    if written == "a bias of −∞":
        options = {"bias": torch.zeros(one_hot.shape).double().masked_fill(~one_hot, -torch.inf)}
    if written == "biases":
        options = {"bias": 1e4 * one_hot.double()}
    with serving(kernel):
        heads = it.attention(q, q, values, **options)  # type: ignore[arg-type]
    if written == "biases":  # a bias alone cannot leave a row empty
        heads = heads * one_hot.any(-1, keepdim=True)
    expected = F.conv2d(image, weight, padding=k // 2)[0].flatten(1).mT
    torch.testing.assert_close(heads.sum(0), expected, atol=1e-12, rtol=0)
