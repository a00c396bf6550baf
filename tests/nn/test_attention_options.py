"""`AttentionOptions` options of a block against the formula written out, in every storage."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.core.positions import DynamicNTK, YaRN
from intently.errors import ArgumentError, KindError
from intently.nn import (
    AdditiveScore,
    AttentionOptions,
    GeneralScore,
    MultiHeadAttention,
    Projections,
    RelativeBias,
    Sinks,
)

from ..combinations import pairs
from ..core.formula import random
from ..messages import Refusals, raises
from ..tensors import close, drawn

C, H, T, D = 24, 4, 7, 6


def x(b: int = 2, t: int = T, seed: int = 0) -> Tensor:
    return random(b, t, C, seed=seed)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "separate": {"projections": Projections(fused=False)},
    "grouped": {"kv_heads": 2},
    "e ≠ d": {"head_widths": (D, 3), "kv_heads": 1},
}
OPTIONS: dict[str, Callable[[], AttentionOptions]] = {
    "mask": lambda: AttentionOptions(mask=it.causal()),
    "a tensor as mask": lambda: AttentionOptions(mask=torch.ones(T, T).tril() > 0),
    "bias": lambda: AttentionOptions(bias=it.alibi(H), softcap=2.0, scale=0.7),
    "a tensor as bias": lambda: AttentionOptions(
        bias=torch.linspace(-1, 1, T * T).view(T, T).double()
    ),
    "a table": lambda: AttentionOptions(bias=RelativeBias(H, buckets=8, max_distance=6), scale=1.0),
    "a score": lambda: AttentionOptions(score=it.Cosine(), scale=3.0),
    "general": lambda: AttentionOptions(score=GeneralScore(H, D)),
    "additive": lambda: AttentionOptions(score=AdditiveScore(H, D, 5), mask=it.causal()),
    "sinks": lambda: AttentionOptions(sinks=Sinks(H)),
    "zero sink": lambda: AttentionOptions(sinks=torch.zeros(()).double()),
    "norms": lambda: AttentionOptions(qk_norm=nn.RMSNorm),
    "turned": lambda: AttentionOptions(positions=it.Rotary(D), mask=it.causal()),
    "turned, interleaved": lambda: AttentionOptions(positions=it.Rotary(D, layout="interleaved")),
    "partly turned": lambda: AttentionOptions(
        positions=it.Rotary(D, width=4), qk_norm=nn.LayerNorm
    ),
    "scaled": lambda: AttentionOptions(positions=it.Rotary(D, scaling=YaRN(4.0, 4))),
    "scaled by length": lambda: AttentionOptions(
        positions=it.Rotary(D, scaling=DynamicNTK(4.0, 4))
    ),
}


def by_hand(layer: MultiHeadAttention, steps: Tensor, mask: it.Mask | None) -> tuple[Any, Tensor]:
    """The matrix and the output of self-attention, written out."""
    options = layer.attention
    h, g, d, e = layer.heads, layer.kv_heads, layer.d, layer.e
    sizes = (h * d, g * d, g * e)
    if layer.fused:
        weights, biases = layer.qkv_weight.split(sizes), layer.qkv_bias.split(sizes)
    else:
        weights = (layer.q_weight, layer.k_weight, layer.v_weight)
        biases = (layer.q_bias, layer.k_bias, layer.v_bias)
    q, k, v = (
        (steps @ w.T + bias).unflatten(-1, (n, -1)).transpose(1, 2)
        for w, bias, n in zip(weights, biases, (h, g, g))
    )
    if options.qk_norm is not None:
        q, k = layer.q_norm(q), layer.k_norm(k)
    if options.positions is not None:
        q, k = options.positions(q), options.positions(k)
    given = {
        name: value() if isinstance(value, nn.Module) else value
        for name in ("score", "bias", "sinks")
        if (value := getattr(options, name)) is not None
    }
    joined = options.mask if mask is None else mask
    if mask is not None and options.mask is not None:
        joined = mask & options.mask
    A = it.attend(q, k, mask=joined, softcap=options.softcap, scale=options.scale, **given)
    y = (A.dense() @ v.repeat_interleave(h // g, 1)).transpose(1, 2).flatten(2)
    return A, y @ layer.out_weight.T + layer.out_bias


@pairs({"masked": [False, True], "shape": SHAPES, "name": OPTIONS})
def test_it_is_the_formula(name: str, shape: str, masked: bool) -> None:
    options = OPTIONS[name]()
    layer = drawn(MultiHeadAttention(C, H, attention=options, **SHAPES[shape]))
    a, b = x().requires_grad_(), x().requires_grad_()
    mask = it.padding(torch.tensor([3, T])) if masked else None
    matrix, expected = by_hand(layer, b, mask)
    y = layer(a, mask=mask)
    close(y, expected)
    close(layer.attend(a, mask=mask).dense(), matrix.dense())
    up = torch.randn_like(y)
    own = list(layer.parameters())
    found = torch.autograd.grad(y, [a, *own], up, allow_unused=True)
    wanted = torch.autograd.grad(expected, [b, *own], up, allow_unused=True)
    close(found, wanted, 1e-11, 1e-10)


@pytest.mark.parametrize(
    ("attention", "names"),
    [
        (lambda: AttentionOptions(bias=RelativeBias(H)), {"bias.table"}),
        (lambda: AttentionOptions(sinks=Sinks(H)), {"sinks.logits"}),
        (lambda: AttentionOptions(score=GeneralScore(H, D)), {"score.weight"}),
        (lambda: AttentionOptions(qk_norm=nn.RMSNorm), {"q_norm.weight", "k_norm.weight"}),
    ],
)
def test_what_is_learned_is_the_layers(attention: Any, names: set[str]) -> None:
    layer, plain = MultiHeadAttention(C, H, attention=attention()), MultiHeadAttention(C, H)
    assert set(layer.state_dict()) - set(plain.state_dict()) == names
    layer(x().float()).square().sum().backward()
    assert all(layer.get_parameter(name).grad is not None for name in names)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for name in names:
            layer.get_parameter(name).normal_()
    changed = layer(x().float())
    assert not torch.allclose(changed, twin(x().float()))
    twin.load_state_dict(layer.state_dict())
    torch.testing.assert_close(twin(x().float()), changed)


def test_values_move_with_the_layer() -> None:
    options = AttentionOptions(
        bias=torch.zeros(T, T), sinks=torch.zeros(H), score=it.General(torch.eye(D))
    )
    layer = MultiHeadAttention(C, H, attention=options).double()
    assert layer(x()).dtype == torch.float64
    assert all(y.dtype == torch.float64 for y in layer.bias.tensors())
    assert layer.sinks.dtype == layer.score.parts[0].dtype == torch.float64


@pairs(
    {
        "layout": ["half", "interleaved"],
        "dtype": [torch.float32, torch.bfloat16, torch.float64],
        "offset": [0, 300, "rows"],
    }
)
def test_the_table_of_angles_is_rotarys_formula(layout: Any, dtype: Any, offset: Any) -> None:
    from intently.nn.projected_attention import turned

    rotary = it.Rotary(8, layout=layout, width=6, scaling=YaRN(4.0, 16), base=500.0)
    heads = torch.randn(2, 5, 3, 8).to(dtype)
    start = torch.tensor([2, 9]) if offset == "rows" else offset
    end = 14 if offset == "rows" else offset + 5
    found = turned(rotary, heads, start, end)
    expected = rotary(heads.transpose(1, 2), start).transpose(1, 2)
    assert found.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float64: 1e-14}[dtype]
    close(found, expected, tolerance, tolerance)


def test_the_table_made_without_gradients_serves_training() -> None:
    rotary = it.Rotary(D, base=1234.5)
    layer = MultiHeadAttention(C, H, attention=AttentionOptions(positions=rotary))
    with torch.inference_mode():
        layer(x().float())
    layer(x().float()).sum().backward()
    assert layer.qkv_weight.grad is not None


@pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced")
def test_one_graph() -> None:
    torch._dynamo.reset()
    options = AttentionOptions(
        mask=it.causal(), positions=it.Rotary(D), bias=RelativeBias(H), qk_norm=nn.RMSNorm
    )
    layer = MultiHeadAttention(C, H, kv_heads=2, attention=options)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x().float()), layer(x().float()), atol=1e-6, rtol=1e-5)


def test_per_sample_gradients() -> None:
    layer = drawn(MultiHeadAttention(C, H, attention=AttentionOptions(positions=it.Rotary(D))))
    state = dict(layer.named_parameters())

    def loss(p: Any, steps: Tensor) -> Tensor:
        return torch.func.functional_call(layer, p, (steps[None],)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(state, x())
    for i, steps in enumerate(x()):
        alone = torch.func.grad(loss)(state, steps)
        torch.testing.assert_close(found["out_weight"][i], alone["out_weight"])


CASES: Refusals = {
    ArgumentError: {
        "bias: expected a value without gradients, or an nn.Module whose call returns it; got a "
        "tensor that needs a gradient. What is learned belongs to a module, which moves it, saves "
        "it and shows it to the optimiser.": lambda: AttentionOptions(
            bias=nn.Parameter(torch.zeros(3, 3))
        ),
        "score: expected a value without gradients, or an nn.Module": lambda: AttentionOptions(
            score=it.General(torch.eye(3).requires_grad_())
        ),
        "positions: expected Rotary(d=6), as wide as a head; got Rotary(d=8). To rotate only some "
        "dimensions, write Rotary(d, width=…).": lambda: MultiHeadAttention(
            C, H, attention=AttentionOptions(positions=it.Rotary(8))
        ),
        "context: expected none: positions rotate only the steps of x; got shape (2, "
        "7, 24).": lambda: MultiHeadAttention(
            C, H, attention=AttentionOptions(positions=it.Rotary(D))
        )(x().float(), x().float()),
        "mask: expected t = s = 2·2 = 4 for grid(2, 2, 1); got t=7, s=7.": lambda: (
            MultiHeadAttention(C, H, attention=AttentionOptions(mask=it.grid(2, 2, 1)))(x().float())
        ),
    },
    KindError: {
        "mask: expected a mask such as it.causal(), or a boolean tensor; got str.": lambda: (
            AttentionOptions(mask="causal")
        ),
        "positions: expected it.Rotary(d): other positions are added to the "
        "embeddings; got Tens": lambda: AttentionOptions(positions=it.sinusoidal(3, 4)),
        "qk_norm: expected a function that makes a norm from the head width d; got RMSNorm. Write "
        "qk_norm=torch.nn.RMSNorm, not RMSNorm(d).": lambda: AttentionOptions(
            qk_norm=nn.RMSNorm(4)
        ),
        "sinks: expected a tensor (h,) or (), or an nn.Module whose call returns it; "
        "got float.": lambda: AttentionOptions(sinks=0.0),
        "x: expected torch.float32 on cpu, as the layer's weights; got torch.float64 on cpu. "
        "Convert one of them with .to(…).": lambda: MultiHeadAttention(C, H)(x()),
        "context: expected torch.float32 on cpu, as the layer's weights; got "
        "torch.float64 on cpu.": lambda: MultiHeadAttention(C, H)(x().float(), x()),
        "x: expected torch.float32 on cpu, as the layer's weights; got torch.float32 "
        "on meta.": lambda: MultiHeadAttention(C, H)(x().float().to("meta")),
    },
}


test_errors = raises(CASES)
