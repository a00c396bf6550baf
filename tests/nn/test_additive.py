"""Attention of recurrent decoders against the formulas written out."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn import AdditiveAttention, LuongAttention
from intently.nn.recurrent import AttentionalVector

from ..core.formula import random
from ..messages import Refusals, raises
from ..tensors import drawn

C, K, A, S, T = 6, 8, 5, 7, 3
LENGTHS = torch.tensor([7, 4])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).requires_grad_()


MAKE: dict[str, Callable[[], Any]] = {
    "additive": lambda: AdditiveAttention(C, K, A),
    "additive, no bias": lambda: AdditiveAttention(C, K, A, bias=False),
    "dot": lambda: LuongAttention(C, C),
    "general": lambda: LuongAttention(C, K, "general"),
    "concat": lambda: LuongAttention(C, K, "concat"),
    "concat, hidden": lambda: LuongAttention(C, K, "concat", hidden=A),
    "concat, no bias": lambda: LuongAttention(C, K, "concat", bias=False),
}


def made(name: str) -> Any:
    return drawn(MAKE[name](), 1.0)


def scores(att: Any, q: Tensor, states: Tensor) -> Tensor:
    """The raw scores, one pair of vectors at a time."""
    rows = []
    for i in range(len(q)):
        for x in q[i]:
            for h in states[i]:
                if isinstance(att, AdditiveAttention) or att.score == "concat":
                    inner = att.query.weight @ x + att.key.weight @ h
                    inner = inner if att.key.bias is None else inner + att.key.bias
                    rows.append(att.energy @ torch.tanh(inner))
                elif att.score == "general":
                    rows.append(x @ att.key.weight @ h)
                else:
                    rows.append(x @ h)
    return torch.stack(rows).view(len(q), q.shape[1], states.shape[1])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_it_is_the_formula(name: str, padded: bool) -> None:
    att = made(name)
    q, states = draw(2, T, C), draw(2, S, att.context_width, seed=1)
    memory = att.remember(states, LENGTHS if padded else None)
    z = scores(att, q, states)
    if padded:
        z = z.masked_fill(torch.arange(S) >= LENGTHS[:, None, None], -torch.inf)
    weights = z.softmax(-1)
    y, expected = att(q, memory), weights @ states
    torch.testing.assert_close(y, expected)
    matrix = att.attend(q, memory)
    assert matrix.shape == (2, T, S)
    torch.testing.assert_close(matrix.dense(), weights)
    inputs = [q, states, *att.parameters()]
    up = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, inputs, up), torch.autograd.grad(expected, inputs, up)
    )


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", ["additive", "general", "dot"])
def test_the_attentional_vector_is_the_formula(name: str, biased: bool) -> None:
    att = made(name)
    options: dict[str, bool] = {} if biased else {"bias": False}
    vector = AttentionalVector(C, att.context_width, **options).double()
    h, states = draw(2, T, C), draw(2, S, att.context_width, seed=1)
    memory = att.remember(states, LENGTHS)
    context = att.attend(h, memory).dense() @ states
    W, bias = vector.join.weight, vector.join.bias
    assert W.shape == (C, att.context_width + C) and (bias is not None) == biased
    added = torch.zeros(C).double() if bias is None else torch.nn.init.normal_(bias)
    pairs = zip(context.flatten(0, 1), h.flatten(0, 1))
    rows = [torch.tanh(W @ torch.cat([c, x]) + added) for c, x in pairs]
    expected = torch.stack(rows).view(2, T, C)
    found = vector(att(h, att.remember(states, LENGTHS)), h)
    torch.testing.assert_close(found, expected)
    inputs = [h, states, *vector.parameters()]
    up = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, up), torch.autograd.grad(expected, inputs, up)
    )


@torch.no_grad()
@pytest.mark.parametrize("name", MAKE)
def test_keys_are_projected_once_and_rows_can_be_picked(name: str) -> None:
    att = made(name)
    q, states = draw(2, T, C), draw(2, S, att.context_width, seed=1)
    memory = att.remember(states, LENGTHS)
    expected = att(q, memory)
    if name != "dot":
        calls = []
        att.key.register_forward_hook(lambda *_: calls.append(1))
        found = torch.cat([att(step, memory) for step in q.split(1, 1)], 1)
        assert not calls
        torch.testing.assert_close(found, expected)
    index = torch.tensor([1, 1, 0])
    torch.testing.assert_close(att(q[index], memory.expand(index)), expected[index])
    with it.kernels.use("tiled"):
        torch.testing.assert_close(att(q, memory), expected)


def test_lengths_may_be_a_list() -> None:
    states, q = draw(2, S, K), draw(2, T, C)
    att = made("additive")
    found = att(q, att.remember(states, LENGTHS.tolist()))
    torch.testing.assert_close(found, att(q, att.remember(states, LENGTHS)))


def test_padding_never_matters() -> None:
    att = made("additive")
    states = draw(2, S, K).detach()
    states[1, 4:] = torch.nan
    y = att(draw(2, T, C), att.remember(states.requires_grad_(), LENGTHS))
    assert y.isfinite().all()
    y.sum().backward()
    assert states.grad is not None
    assert states.grad[1, :4].isfinite().all()
    empty = att(draw(2, T, C), att.remember(states.detach(), torch.tensor([7, 0])))
    assert not empty[1].any()


def test_dropout_only_while_training() -> None:
    att = AdditiveAttention(C, K, A, dropout=0.5)
    q, states = draw(2, T, C).float(), draw(2, S, K).float()
    memory = att.remember(states)
    assert not torch.equal(att(q, memory), att(q, memory))
    att.eval()
    assert torch.equal(att(q, memory), att(q, memory))


@pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced")
def test_one_graph() -> None:
    torch._dynamo.reset()
    att = AdditiveAttention(C, K, A)
    q, states = draw(2, T, C).float(), draw(2, S, K).float()

    def f(q: Tensor, states: Tensor) -> Tensor:
        return att(q, att.remember(states))

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, states), f(q, states))


VECTOR = AttentionalVector(C, K)
ATT = AdditiveAttention(C, K, A)
MEMORY = ATT.remember(torch.zeros(2, S, K))
CASES: Refusals = {
    ArgumentError: {
        "query: expected shape (b, t, c=6); got shape (2, 6). A single step needs its axis: "
        "query[:, None].": lambda: ATT(torch.zeros(2, C), MEMORY),
        "query: expected shape (b=2, t, c=6); got shape (3, 1, 6). The memory belongs to another "
        "batch. Pick its rows: memory.expand(index).": lambda: ATT(torch.zeros(3, 1, C), MEMORY),
        "states: expected shape (b, s, k=8); got shape (2, 7, 6).": lambda: ATT.remember(
            torch.zeros(2, S, C)
        ),
        "lengths: expected shape (b=2,); got shape (1,).": lambda: ATT.remember(
            torch.zeros(2, S, K), torch.tensor([3])
        ),
        "hidden: expected an int ≥ 1; got 0.": [
            lambda: AdditiveAttention(C, K, 0),
            lambda: LuongAttention(C, C, "concat", hidden=0),
        ],
        "width: expected an int ≥ 1; got 0.": lambda: AdditiveAttention(0, K, 1),
        "dropout: expected a probability in [0, 1); got 1.0.": lambda: AdditiveAttention(
            C, K, A, dropout=1.0
        ),
        'context_width: expected width=6 for the score "dot"; got 8. "general" and "concat" '
        "join different widths.": lambda: LuongAttention(C, K),
        'score: expected "dot", "general" or "concat"; got \'mlp\'.': lambda: LuongAttention(
            C, C, "mlp"
        ),
        "context_width: expected an int ≥ 1; got 0.": lambda: AttentionalVector(C, 0),
        "query: expected shape (b, t, c=6); got shape (2, 6).": lambda: VECTOR(
            torch.zeros(2, 1, K), torch.zeros(2, C)
        ),
        "context: expected shape (b=2, t=1, k=8); got shape (2, 3, 8). It belongs to another step "
        "or batch.": lambda: VECTOR(torch.zeros(2, 3, K), torch.zeros(2, 1, C)),
        'hidden: expected None: it is for the score "concat"; got 3.': lambda: LuongAttention(
            C, C, hidden=3
        ),
        "lengths: expected steps from 0 to s=7, those of the states; got 7 to 9.": lambda: (
            ATT.remember(torch.zeros(2, S, K), [7, 9])
        ),
        "lengths: expected steps from 0 to s=7, those of the states; got -4 to 7.": lambda: (
            ATT.remember(torch.zeros(2, S, K), [-4, 7])
        ),
        "index: expected rows from 0 to 1; got 0 to 2.": lambda: MEMORY.expand(
            torch.tensor([0, 2])
        ),
        "index: expected row numbers (n,); got shape (1, 2).": lambda: MEMORY.expand(
            torch.zeros(1, 2).long()
        ),
    },
    KindError: {
        "memory: expected what remember(states) returned; got Tensor. Keys are projected once for "
        "the sequence.": lambda: ATT(torch.zeros(2, 1, C), torch.zeros(2, S, K)),
        "query: expected a floating-point tensor (b, t, width); got dtype torch.int64.": lambda: (
            ATT(torch.zeros(2, 1, C).long(), MEMORY)
        ),
        "query: expected torch.float32 on cpu, as the layer's weights; got torch.float64 on cpu.": [
            lambda: ATT(torch.zeros(2, 1, C).double(), MEMORY),
            lambda: VECTOR(torch.zeros(2, 1, K), torch.zeros(2, 1, C).double()),
        ],
        "context: expected a floating-point tensor (b, t, width); got dtype torch.int64.": lambda: (
            VECTOR(torch.zeros(2, 1, K).long(), torch.zeros(2, 1, C))
        ),
        "context_width: expected an int ≥ 1; got 2.5.": lambda: AdditiveAttention(C, 2.5, A),
        "lengths: expected integers; got dtype torch.float32.": lambda: ATT.remember(
            torch.zeros(2, S, K), torch.ones(2)
        ),
        "index: expected a tensor of row numbers (n,), int64; got list.": lambda: MEMORY.expand(
            [0, 1]
        ),
        "index: expected a tensor of row numbers (n,), int64; got dtype torch.bool.": lambda: (
            MEMORY.expand(torch.tensor([True, False]))
        ),
    },
}


test_errors = raises(CASES)
