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
from intently.nn import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    FixedCache,
    GatedFeedForward,
    KeyValueCache,
    MultiHeadAttention,
    WindowCache,
)

from ..messages import raises, refused
from ..tensors import close, drawn, renamed

C, H, T = 12, 3, 6


def x(b: int = 2, t: int = T, c: int = C) -> Tensor:
    return torch.randn(b, t, c).double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [F.relu, F.gelu, F.silu, torch.relu_])
def test_feed_forward(activation: Callable[[Tensor], Tensor], bias: bool) -> None:
    plain = drawn(FeedForward(C, 20, activation=activation, bias=bias))
    steps = x()
    up = steps @ plain.up.weight.T + (plain.up.bias if bias else 0)
    y = activation(up) @ plain.down.weight.T + (plain.down.bias if bias else 0)
    torch.testing.assert_close(plain(steps), y)
    activation = F.relu if activation is torch.relu_ else activation
    gated = drawn(GatedFeedForward(C, 20, activation=activation, bias=bias))
    gate, up = (
        steps @ w.T + (b if bias else 0)
        for w, b in zip(
            gated.gate_up.weight.split(20), gated.gate_up.bias.split(20) if bias else (None, None)
        )
    )
    y = (activation(gate) * up) @ gated.down.weight.T + (gated.down.bias if bias else 0)
    torch.testing.assert_close(gated(steps), y)
    plain(steps).sum().backward()
    gated(steps).sum().backward()


WORDS = {
    "self_attention": "self_attn",
    "cross_attention": "multihead_attn",
    "feed_forward.up": "linear1",
    "feed_forward.down": "linear2",
    "qkv_weight": "in_proj_weight",
    "qkv_bias": "in_proj_bias",
    "out_weight": "out_proj.weight",
    "out_bias": "out_proj.bias",
    "self_norm": "norm1",
}
TORCHS: dict[type, dict[str, str]] = {
    EncoderLayer: {**WORDS, "feed_norm": "norm2"},
    DecoderLayer: {**WORDS, "cross_norm": "norm2", "feed_norm": "norm3"},
}
"""Our names of a layer in PyTorch's words."""

LENGTHS = torch.tensor([4, T])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_layers_are_torchs(kind: Any, norm: str, activation: str) -> None:
    ours = drawn(kind(C, H, FeedForward(C, 20, activation=getattr(F, activation)), norm=norm))
    theirs: Any = getattr(nn, f"Transformer{kind.__name__}")(
        C,
        H,
        20,
        dropout=0.0,
        batch_first=True,
        norm_first=norm == "pre",
        activation=activation,
        dtype=torch.float64,
    )
    theirs.load_state_dict(renamed(ours.state_dict(), TORCHS[kind]))
    steps, states = x().requires_grad_(), x().requires_grad_()
    hidden = torch.arange(T) >= LENGTHS[:, None]
    if kind is EncoderLayer:
        inputs = [steps]
        y, expected = ours(steps), theirs(steps)
        close(ours(steps, mask=it.padding(LENGTHS)), theirs(steps, src_key_padding_mask=hidden))
    else:
        inputs = [steps, states]
        y = ours(*inputs, mask=it.causal(), states_mask=it.padding(LENGTHS))
        causal = ~torch.ones(T, T, dtype=torch.bool).tril()
        expected = theirs(*inputs, tgt_mask=causal, memory_key_padding_mask=hidden)
    close(y, expected)
    close(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        1e-11,
        1e-10,
    )


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("norms", [nn.RMSNorm, nn.LayerNorm])
def test_a_layer_written_out(norm: Any, norms: Any) -> None:
    heads = MultiHeadAttention(C, H, kv_heads=1, attention=AttentionOptions(positions=it.Rotary(4)))
    layer = drawn(EncoderLayer(C, heads, GatedFeedForward(C, 20), norm=norm, norms=norms))
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
    heads = MultiHeadAttention(C, H, kv_heads=1, attention=AttentionOptions(positions=it.Rotary(4)))
    cross = MultiHeadAttention(C, 2, context_width=7)
    layer = drawn(DecoderLayer(C, heads, GatedFeedForward(C, 20), cross=cross, norms=nn.RMSNorm))
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


def test_dropout_only_while_training() -> None:
    layer = EncoderLayer(C, H, FeedForward(C, 20, 0.5), dropout=0.5)
    steps = x().float()
    assert not torch.equal(layer(steps), layer(steps))
    layer.eval()
    assert torch.equal(layer(steps), layer(steps))


Encoder: Any = EncoderLayer
Decoder: Any = DecoderLayer
CASES: list[tuple[Callable[[], Any], Any, Any]] = [
    (
        lambda: Encoder(12, 3, 20, norm="first"),
        ArgumentError,
        'norm: expected "pre" or "post"; got \'first\'',
    ),
    (lambda: Encoder(12, 5, 20), ArgumentError, "heads: expected a divisor of width=12; got 5."),
    (
        lambda: Encoder(12, MultiHeadAttention(16, 4), 20),
        ArgumentError,
        "heads: expected attention from width=12 to width=12; got 16 to 16. Its output is added to "
        "its input.",
    ),
    (
        lambda: Encoder(12, MultiHeadAttention(12, 4, context_width=7), 20),
        ArgumentError,
        "heads: expected attention from width=12 to width=12; got 12 to 12, context 7.",
    ),
    (
        lambda: Encoder(12, nn.MultiheadAttention(12, 4), 20),
        KindError,
        "heads: expected a number of heads, or a MultiHeadAttention; got MultiheadAttention.",
    ),
    (
        lambda: Encoder(12, 4, "a"),
        KindError,
        "inner: expected a width, or an nn.Module (b, t, c) → (b, t, c); got 'a'.",
    ),
    (lambda: Encoder(12, 4, FeedForward), KindError, "inner: expected a width, or an nn.Mod"),
    (lambda: Decoder(12, 4, 0), ArgumentError, "inner: expected an int ≥ 1; got 0."),
    (lambda: Decoder(12, 4, True), KindError, "inner: expected an int ≥ 1; got True."),
    (
        lambda: Encoder(12, 4, 20, dropout=1.5),
        ArgumentError,
        "dropout: expected a probability in [0, 1); got 1.5.",
    ),
    (
        lambda: Decoder(12, 4, 20, dropout="a"),
        ArgumentError,
        "dropout: expected a probability in [0, 1); got 'a'.",
    ),
    (
        lambda: Encoder(12, 4, 20, norms=nn.LayerNorm(12)),
        KindError,
        "norms: expected a function that makes a norm from a width; got a norm, LayerNorm. Write "
        "norms=nn.RMSNorm, say.",
    ),
    (
        lambda: Decoder(12, 4, 20, norms=None),
        KindError,
        "norms: expected a function that makes a norm from a width; got None. Write "
        "norms=nn.RMSNorm",
    ),
    (
        lambda: Decoder(12, 4, 20, norms=lambda c: c),
        KindError,
        "norms: expected a function that makes a norm from a width; got one that makes int.",
    ),
    *(
        (lambda norm=norm, given=given: Encoder(12, 4, 20, norm=norm)(given), kind, text)
        for norm in ("pre", "post")
        for given, kind, text in (
            (
                torch.zeros(2, 6, 17),
                ArgumentError,
                "x: expected shape (b, t, c=12), or (t, c); got shape (2, 6, 17).",
            ),
            (
                torch.zeros(12),
                ArgumentError,
                "x: expected shape (b, t, c=12), or (t, c); got shape (12,).",
            ),
            (
                torch.zeros(2, 6, 12).double(),
                KindError,
                "x: expected torch.float32 on cpu, as the layer's weights; got "
                "torch.float64 on cpu.",
            ),
            (torch.zeros(2, 6, 12).half(), KindError, "x: expected torch.float32 on cpu, as the l"),
            (
                torch.zeros(2, 6, 12).long(),
                KindError,
                "x: expected a floating-point tensor (b, steps, width); got dtype torch.int64.",
            ),
            (None, KindError, "x: expected a floating-point tensor (b, steps, width); got NoneTyp"),
            (
                torch.zeros(2, 6, 12, device="meta"),
                KindError,
                "x: expected torch.float32 on cpu, as the layer's weights; got "
                "torch.float32 on met",
            ),
        )
    ),
    (
        lambda: Encoder(12, 4, 20)(x().float(), cache="a"),
        KindError,
        "cache: expected a KeyValueCache or WindowCache; got str.",
    ),
    (
        lambda: Encoder(12, 4, 20)(x().float(), cache=FixedCache()),
        KindError,
        "cache: expected a KeyValueCache or WindowCache; got FixedCache.",
    ),
    *(
        (lambda given=given, norm=norm: Decoder(12, 4, 20, norm=norm)(*given), kind, text)
        for norm in ("pre", "post")
        for given, kind, text in (
            (
                (torch.zeros(2, 6, 17), torch.zeros(2, 6, 12)),
                ArgumentError,
                "x: expected shape (b, t, c=12), or (t, c); got shape (2, 6, 17).",
            ),
            ((x(), torch.zeros(2, 6, 12)), KindError, "x: expected torch.float32 on cpu, as the l"),
            (
                (x().float(), None),
                KindError,
                "states: expected a floating-point tensor (b, steps, width); got NoneType.",
            ),
            ((x().float(), x()), KindError, "states: expected torch.float32 on cpu, as the layer"),
            (
                (x(3).float(), x(2).float()),
                ArgumentError,
                "states: expected shape (n, s, 12) where n divides b=3; got shape (2, 6, 12). Each "
                "row of the states serves m consecutive rows of x.",
            ),
            (
                (x(3).float(), x(0).float()),
                ArgumentError,
                "states: expected shape (n, s, 12) where n divides b=3; got shape (0, 6, 12).",
            ),
            (
                (x().float(), x(2, 6, 13).float()),
                ArgumentError,
                "states: expected shape (n, s, 12) where n divides b=2; got shape (2, 6, 13).",
            ),
            (
                (x().float(), torch.tensor(1.0)),
                ArgumentError,
                "states: expected shape (n, s, 12) where n divides b=2; got shape ().",
            ),
        )
    ),
    *(
        (lambda cache=cache: Decoder(12, 4, 20)(x().float(), x().float(), cache=cache), kind, text)
        for cache, kind, text in (
            (
                KeyValueCache(),
                KindError,
                "cache: expected a pair: a KeyValueCache or WindowCache for x, and a "
                "FixedCache for "
                "the states; got KeyValueCache.",
            ),
            (None, KindError, "cache: expected a pair: a KeyValueCache or WindowCache for x, and"),
            (
                (FixedCache(), FixedCache()),
                KindError,
                "cache[0]: expected a KeyValueCache or WindowCache; got FixedCache.",
            ),
            (
                (KeyValueCache(), KeyValueCache()),
                KindError,
                "cache[1]: expected a FixedCache; got KeyValueCache.",
            ),
        )
    ),
]


test_errors = raises(CASES)


class Around(nn.Module):
    """What someone puts in the place of an attention."""

    def __init__(self, attention: nn.Module | None = None) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, y: Tensor, *given: Any, **options: Any) -> Tensor:
        return 0 * y if self.attention is None else self.attention(y, *given, **options)


@pytest.mark.usefixtures("as_users_call")
def test_attention_with_something_around_it_or_none_at_all() -> None:
    layer = drawn(DecoderLayer(C, H, 20))
    steps, states, mask = x(4), x(2), it.causal(offset=0)
    want = layer(steps, states, states_mask=mask)
    layer.self_attention, layer.cross_attention = (
        Around(layer.self_attention),
        Around(layer.cross_attention),
    )
    torch.testing.assert_close(layer(steps, states, states_mask=mask), want)
    refused(
        lambda: layer(x(4, T, 13), states),
        ArgumentError,
        "x: expected shape (b, t, c=12), or (t, c); got shape (4, 6, 13",
    )
    refused(
        lambda: layer(steps, x(3)),
        ArgumentError,
        "states: expected shape (n, s, 12) where n divides b=4",
    )
    layer.self_attention, layer.cross_attention = Around(), Around()
    found = layer(steps, states, states_mask=mask)
    torch.testing.assert_close(found, steps + layer.feed_forward(layer.feed_norm(steps)))


@torch.no_grad()
@pytest.mark.usefixtures("as_users_call")
def test_a_refused_call_leaves_both_caches_alone() -> None:
    layer = drawn(DecoderLayer(C, H, 20))
    own, fixed = KeyValueCache(), FixedCache()
    layer(x(4, 2), x(), mask=it.causal(), cache=(own, fixed))
    before = fixed.kv
    wrong: list[tuple[Any, Any]] = [
        (x(2, 5, 13), None),
        (x().float(), None),
        (x(4), None),
        (x(), it.padding(torch.tensor([1, 2, 3]))),
        (x(), torch.ones(3, 1, 1, T, dtype=torch.bool)),
        (x(), torch.ones(1, T)),
        (None, None),
    ]
    for states, mask in wrong:
        with pytest.raises((ArgumentError, KindError)):
            layer(x(4, 1), states, states_mask=mask, cache=(own, fixed))
        assert own.length == 2 and fixed.kv is before
    for states, mask in [(x(1), None), (x(), it.padding(torch.tensor([1, 2, 3])))]:
        own = KeyValueCache()
        with pytest.raises(ArgumentError):
            layer(x(), states, states_mask=mask, cache=(own, fixed))
        assert own.length == 0
