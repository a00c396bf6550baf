"""Layers made of values: norms, gated feed-forwards, attention of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.modules import (
    Attention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    FixedCache,
    GatedFeedForward,
    KeyValueCache,
    MultiHeadAttention,
    WindowCache,
)

C, H, T = 12, 3, 6


def filled(module: nn.Module) -> Any:
    module = module.double().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(std=0.5)
    return module


def x(b: int = 2, t: int = T, c: int = C) -> Tensor:
    return torch.randn(b, t, c).double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [F.relu, F.gelu, F.silu, torch.relu_])
def test_feed_forward(activation: Callable[[Tensor], Tensor], bias: bool) -> None:
    plain = filled(FeedForward(C, 20, activation=activation, bias=bias))
    steps = x()
    up = steps @ plain.up.weight.T + (plain.up.bias if bias else 0)
    y = activation(up) @ plain.down.weight.T + (plain.down.bias if bias else 0)
    torch.testing.assert_close(plain(steps), y)
    activation = F.relu if activation is torch.relu_ else activation
    gated = filled(GatedFeedForward(C, 20, activation=activation, bias=bias))
    gate, up = (
        steps @ w.T + (b if bias else 0)
        for w, b in zip(
            gated.gate_up.weight.split(20),
            gated.gate_up.bias.split(20) if bias else (None, None),
        )
    )
    y = (activation(gate) * up) @ gated.down.weight.T + (gated.down.bias if bias else 0)
    torch.testing.assert_close(gated(steps), y)
    plain(steps).sum().backward()
    gated(steps).sum().backward()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_encoder_layer_with_gelu_is_torchs(norm: Any, activation: Any) -> None:
    from .test_caches import renamed

    ours = filled(
        EncoderLayer(C, H, FeedForward(C, 20, activation=getattr(F, activation)), norm=norm)
    )
    theirs = nn.TransformerEncoderLayer(
        C, H, 20, dropout=0.0, batch_first=True, norm_first=norm == "pre", activation=activation,
        dtype=torch.float64,
    ).eval()  # fmt: skip
    theirs.load_state_dict(renamed(ours.state_dict(), encoder=True))
    a = x().requires_grad_()
    torch.testing.assert_close(ours(a), theirs(a))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("norms", [nn.RMSNorm, nn.LayerNorm])
def test_a_layer_written_out(norm: Any, norms: Any) -> None:
    heads = MultiHeadAttention(C, H, kv_heads=1, attention=Attention(positions=it.Rotary(4)))
    layer = filled(EncoderLayer(C, heads, GatedFeedForward(C, 20), norm=norm, norms=norms))
    steps = x()
    assert isinstance(layer.self_norm, norms) and layer.self_attention is heads
    if norm == "pre":
        y = steps + heads(layer.self_norm(steps), mask=it.causal())
        y = y + layer.feed_forward(layer.feed_norm(y))
    else:
        y = layer.self_norm(steps + heads(steps, mask=it.causal()))
        y = layer.feed_norm(y + layer.feed_forward(y))
    torch.testing.assert_close(layer(steps, mask=it.causal()), y)


@torch.no_grad()
@pytest.mark.parametrize("make", [KeyValueCache, lambda: WindowCache(3, 1)])
def test_a_decoder_layer_of_values_in_steps(make: Callable[[], Any]) -> None:
    heads = MultiHeadAttention(C, H, kv_heads=1, attention=Attention(positions=it.Rotary(4)))
    cross = MultiHeadAttention(C, 2, context_width=7)
    layer = filled(DecoderLayer(C, heads, GatedFeedForward(C, 20), cross=cross, norms=nn.RMSNorm))
    states, steps, lengths = x(2, 5, 7), x(), it.padding(torch.tensor([5, 2]))
    own = make()
    mask = it.causal()
    near = mask if isinstance(own, KeyValueCache) else mask & (it.window(2, 0) | it.prefix(1))
    whole = layer(steps, states, mask=near, states_mask=lengths)
    cache = (own, FixedCache())
    found = [
        layer(y, states, mask=mask, states_mask=lengths, cache=cache) for y in steps.split(1, 1)
    ]
    torch.testing.assert_close(torch.cat(found, 1), whole)


@torch.no_grad()
def test_rows_share_states() -> None:
    layer = filled(DecoderLayer(C, H, 20))
    states, steps = x(2, 5), x(6)
    found = layer(steps, states, mask=it.causal())
    torch.testing.assert_close(
        found, layer(steps, states.repeat_interleave(3, 0), mask=it.causal())
    )


def test_dropout_only_while_training() -> None:
    layer = EncoderLayer(C, H, FeedForward(C, 20, 0.5), dropout=0.5)
    steps = x().float()
    assert not torch.equal(layer(steps), layer(steps))
    layer.eval()
    assert torch.equal(layer(steps), layer(steps))


CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: EncoderLayer(12, 5, 20), ArgumentError,
     "heads: expected a divisor of width=12; got 5."),
    (
        lambda: EncoderLayer(12, MultiHeadAttention(16, 4), 20), ArgumentError,
        "heads: expected attention from width=12 to width=12; got 16 to 16. Its output is added to "
        "its input.",
    ),
    (
        lambda: EncoderLayer(12, MultiHeadAttention(12, 4, context_width=7), 20), ArgumentError,
        "heads: expected attention from width=12 to width=12; got 12 to 12, context 7.",
    ),
    (
        lambda: EncoderLayer(12, nn.MultiheadAttention(12, 4), 20), KindError,  # type: ignore[arg-type]
        "heads: expected a number of heads, or a MultiHeadAttention; got MultiheadAttention.",
    ),
    (
        lambda: DecoderLayer(12, 4, 20)(x(3).float(), x(2).float()), ArgumentError,
        "states: expected shape (n, s, c) where n divides b=3; got shape (2, 6, 12). Each row of "
        "the states serves m consecutive rows of x.",
    ),
]  # fmt: skip


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("call", "kind", "text"), CASES, ids=[c[2][:40] for c in CASES])
def test_errors(call: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(text), str(caught.value)


@pytest.mark.parametrize("layer", [lambda: EncoderLayer(C, H, 20), lambda: DecoderLayer(C, H, 20)])
def test_a_state_with_missing_or_foreign_tensors_changes_nothing_of_attention(layer: Any) -> None:
    ours, foreign = layer(), EncoderLayer(24, H, 20).state_dict()
    before = ours.self_attention.qkv_weight.clone()
    with pytest.raises(RuntimeError) as caught:
        ours.load_state_dict(foreign)
    assert "expected shape (36, 12); got shape (72, 24)" in str(caught.value)
    assert torch.equal(ours.self_attention.qkv_weight, before)
