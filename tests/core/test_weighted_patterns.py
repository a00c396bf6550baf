"""Weights times the norms of values and the gradient of a loss; what patterns refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.matrix import patterns
from intently.core.matrix.lazy import LazyMatrix
from intently.errors import ArgumentError, KindError

from ..messages import Refusals, raises
from .formula import Largest, random
from .test_patterns import B, H, S, T


def value_norms(v: Tensor, out: Tensor | None, h: int) -> Tensor:
    v = v.repeat_interleave(h // v.shape[-3], -3)
    return (v if out is None else v @ out).norm(dim=-1)


WEIGHTED: dict[str, Callable[[it.Attention, Tensor, Tensor, Tensor], tuple[LazyMatrix, Tensor]]] = {
    "value norms": lambda A, v, dy, out: (
        patterns.by_value_norm(A, v),
        A.dense() * value_norms(v, None, A.shape[-3])[..., None, :],
    ),
    "mapped value norms": lambda A, v, dy, out: (
        patterns.by_value_norm(A, v, out),
        A.dense() * value_norms(v, out, A.shape[-3])[..., None, :],
    ),
    "gradient": lambda A, v, dy, out: (patterns.by_gradient(A, v, dy), gradient_of(A, v, dy)),
    "positive": lambda A, v, dy, out: (
        patterns.by_gradient(A, v, dy).positive(),
        gradient_of(A, v, dy).clamp_min(0),
    ),
}


def gradient_of(A: it.Attention, v: Tensor, dy: Tensor) -> Tensor:
    """What autograd gives for the weights, times the weights."""
    w = A.dense().requires_grad_()
    loss = ((w @ v.repeat_interleave(A.shape[-3] // v.shape[-3], -3)) * dy).sum()
    return (w * torch.autograd.grad(loss, w)[0]).detach()


@pytest.fixture(params=[1, 2, 4], ids=lambda g: f"g={g}")
def carried(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[it.Attention, Tensor, Tensor, Tensor]]:
    q, k, v = (
        random(B, n, m, 3, dtype=torch.float64, seed=i)
        for i, (n, m) in enumerate([(4, T), (request.param, S), (request.param, S)])
    )
    A = it.attend(q, k, mask=it.causal() & it.padding(torch.tensor([7, 5])))
    yield A, v, random(B, 4, T, 3, dtype=torch.float64, seed=9), random(4, 3, 8).double()


@pytest.mark.parametrize("what", WEIGHTED)
def test_weighted(what: str, carried: tuple[it.Attention, Tensor, Tensor, Tensor]) -> None:
    found, expected = WEIGHTED[what](*carried)

    def same(a: Tensor, b: Tensor) -> None:
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)

    same(found.dense(), expected)
    same(found[..., [4, 0], 2:5], expected[..., [4, 0], 2:5])
    same(found[1, 2].dense(), expected[1, 2])
    same(found[:, [3, 1]].dense(), expected[:, [3, 1]])
    u = random(B, 4, S, 2, dtype=torch.float64)
    same(found @ u, expected @ u)
    same(
        found.mT @ random(B, 4, T, 2, dtype=torch.float64),
        expected.mT @ random(B, 4, T, 2, dtype=torch.float64),
    )
    same(found.received(), expected.sum(-2))
    same(found.mean_heads().dense(), expected.mean(1))
    same(found.to("cpu").dense(), expected)
    same(found.top(2)[0][expected.amax(-1) > 0], expected.topk(2)[0][expected.amax(-1) > 0])


def test_relevance_of_chefer() -> None:
    """R ← R + Ā R, from R = I: their equation 6, by rollout and by hand."""
    layers, R = [], torch.eye(S, dtype=torch.float64).expand(B, S, S)
    for n in range(3):
        q, k, v, dy = (random(B, H, S, 4, dtype=torch.float64, seed=4 * n + i) for i in range(4))
        A = it.attend(q, k)
        layers.append(patterns.by_gradient(A, v, dy).positive())
        R = R + gradient_of(A, v, dy).clamp_min(0).mean(1) @ R
    torch.testing.assert_close(it.rollout(layers) * 2**3, R)


def test_gradient_of_a_long_sequence_is_never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    q, v, dy = (random(2, 900, 4, seed=i, dtype=torch.float32) for i in range(3))
    monkeypatch.setattr("intently.core.matrix.statistics.BLOCK", 50_000)
    found = patterns.by_gradient(it.attend(q, q, mask=it.causal()), v, dy)
    with Largest() as made:
        received = found.received()
    assert 0 < made.numbers <= 200_000  # of 1,620,000 weights
    torch.testing.assert_close(received, found.dense().sum(-2), atol=1e-4, rtol=1e-4)


# --- errors -------------------------------------------------------------------------------------

A3 = it.Dense(torch.ones(2, 3, 4) / 4)
V = torch.ones(2, 4, 5)
CASES: Refusals = {
    ArgumentError: {
        "ids: expected shape (s,) = (4,); got shape (3,).": lambda: patterns.measure(A3, [1, 2, 3]),
        "ids: expected shape (s,) = (4,) or (2, 4); got shape (3, 4).": lambda: patterns.measure(
            it.Dense(torch.ones(2, 2, 3, 4)), torch.ones(3, 4).long()
        ),
        "ids: expected None where t=4 > s=3; got shape (3,). Token patterns need "
        "self-attention.": lambda: patterns.measure(A3.mT, [1, 2, 3]),
        "ids: expected at least one token, (s,) or (b, s); got shape (0,).": lambda: (
            patterns.duplicate(torch.zeros(0).long())
        ),
        "ids: expected a token for each key, and so at least t=3; got shape (2,). "
        "Cross-attention has other tokens on its two sides.": lambda: patterns.induction([1, 2], 3),
        "key_ids: expected shape (…, s=4); got shape (3,). Give one id per step, and key_ids of "
        "their own where t and s differ.": lambda: patterns.mass_on(
            A3, patterns.duplicate([1, 2, 3])
        ),
        "jensen_shannon: expected a matrix (…, h, t, s); got shape (3, 4). It has no axis of "
        "heads.": lambda: patterns.jensen_shannon(A3[0]),
        "matrix: expected one head of one sentence, (t, s); got shape (2, 3, 4). Choose one, "
        "A[0, 3], or average: A[0].mean_heads().": lambda: patterns.links(A3),
        "out: expected shape (h=2, e=5, c); got shape (2, 4, 8). Each head has its own rows of "
        "the output map. For nn.Linear(h·e, c) write weight.T.unflatten(0, (h, e)).": lambda: (
            patterns.by_value_norm(A3, V, torch.ones(2, 4, 8))
        ),
        "v: expected shape (…, s=4, e); got shape (2, 3, 5). V holds one row for "
        "each key.": lambda: patterns.by_value_norm(A3, V[:, :3]),
        "dy: expected the shape of A @ v, (2, 3, 5); got shape (2, 3, 4). It is the gradient of "
        "the loss to A @ v.": lambda: patterns.by_gradient(A3, V, torch.ones(2, 3, 4)),
        "v: expected g heads, h=3 a multiple of g; got shape (1, 2, 4, 5). Heads are "
        "axis −3.": lambda: patterns.by_value_norm(
            it.Dense(torch.ones(1, 3, 2, 4)), torch.ones(1, 2, 4, 5)
        ),
    },
    KindError: {
        "ids: expected integers; got dtype torch.float32.": lambda: patterns.measure(A3, [0.5] * 4),
        "mask: expected a mask such as patterns.previous(); got list. Wrap a boolean tensor: "
        "it.allowed(tensor); for positions write A.mass(keys).": lambda: patterns.mass_on(
            A3, [0, 1]
        ),
        "dy: expected a tensor like v, torch.float32 on cpu; got NoneType.": lambda: (
            patterns.by_gradient(A3, V, None)
        ),
        "dy: expected a tensor like v, torch.float32 on cpu; got torch.float64 on cpu.": lambda: (
            patterns.by_gradient(A3, V, torch.ones(2, 3, 5).double())
        ),
    },
}


test_message = raises(CASES, whole=True)
