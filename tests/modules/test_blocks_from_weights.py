"""`from_weights` of every block: its own weights, the formula by hand, other people's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently import modules, reference
from intently.errors import ArgumentError, KindError
from intently.modules import (
    AdditiveAttention,
    AttentionalVector,
    AttentionHead,
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    ImageAttention,
    LuongAttention,
    MultiHeadAttention,
    SpatialTransformer,
)

from ..messages import raises

C, K, A, D, E, H, T, S = 8, 6, 5, 4, 3, 2, 7, 9


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng([seed, *shape]).normal(size=shape))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-11)


def drawn(module: Any) -> Any:
    """The module in float64 with every parameter drawn, biases too."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=i))
    return module


def parts(block: Any) -> list[tuple[Tensor, Tensor] | Tensor]:
    """Queries, keys and values of a block that stores them as one."""
    rows = block._split
    weights = block.qkv_weight.split(rows)
    return [*weights] if block.qkv_bias is None else [*zip(weights, block.qkv_bias.split(rows))]


def multi_head(block: Any) -> Any:
    return MultiHeadAttention.from_weights(
        *parts(block),
        (block.out_weight, block.out_bias),
        layout="h d",
        heads=block.heads,
        kv_heads=block.kv_heads,
    )


class Case(NamedTuple):
    """A block by its defaults, the same from its weights, and what it is called with."""

    make: Callable[[], Any]
    again: Callable[[Any], Any]
    inputs: tuple[Tensor, ...]


def recurrent(block: Any, query: Tensor, states: Tensor) -> Tensor:
    return block(query, block.remember(states))


X, PICTURE, WORDS = draw(2, T, C), draw(2, C, 3, 4), draw(2, S, K)
CASES = {
    "head": Case(
        lambda: AttentionHead(C, D, value_width=E),
        lambda b: AttentionHead.from_weights(*parts(b)),
        (X,),
    ),
    "heads": Case(lambda: MultiHeadAttention(C, H), multi_head, (X,)),
    "grouped heads": Case(
        lambda: MultiHeadAttention(C, 4, kv_heads=2, head_widths=(D, E)), multi_head, (X,)
    ),
    "image": Case(
        lambda: ImageAttention(C, H, norm=modules.group_norm(2)),
        lambda b: ImageAttention.from_weights(
            *parts(b.attention),
            (b.attention.out_weight, b.attention.out_bias),
            layout="h d",
            heads=H,
            norm=b.norm,
        ),
        (PICTURE,),
    ),
    "spatial": Case(
        lambda: SpatialTransformer(C, H, D, depth=2, context_width=K, norm=modules.group_norm(2)),
        lambda b: SpatialTransformer.from_weights(
            b.project_in, list(b.layers), b.project_out, norm=b.norm
        ),
        (PICTURE, WORDS),
    ),
    "additive": Case(
        lambda: AdditiveAttention(C, K, A),
        lambda b: AdditiveAttention.from_weights(b.query, b.key, b.energy),
        (X, WORDS),
    ),
    "general": Case(
        lambda: LuongAttention(C, K, "general"),
        lambda b: LuongAttention.from_weights("general", b.key),
        (X, WORDS),
    ),
    "concat": Case(
        lambda: LuongAttention(C, K, "concat", hidden=A),
        lambda b: LuongAttention.from_weights("concat", b.key, query=b.query, energy=b.energy),
        (X, WORDS),
    ),
    "vector": Case(
        lambda: AttentionalVector(C, K),
        lambda b: AttentionalVector.from_weights(b.join, layout="context query"),
        (draw(2, T, K), X),
    ),
    "feed-forward": Case(
        lambda: FeedForward(C, A), lambda b: FeedForward.from_weights(b.up, b.down), (X,)
    ),
    "gated": Case(
        lambda: GatedFeedForward(C, A),
        lambda b: GatedFeedForward.from_weights(b.gate_up, None, b.down, layout="gate up"),
        (X,),
    ),
    "encoder layer": Case(
        lambda: EncoderLayer(C, H, A, norm="post"),
        lambda b: EncoderLayer.from_weights(
            b.self_attention, b.feed_forward, [b.self_norm, b.feed_norm], norm="post"
        ),
        (X,),
    ),
    "decoder layer": Case(
        lambda: DecoderLayer(C, H, A, cross=MultiHeadAttention(C, H, context_width=K)),
        lambda b: DecoderLayer.from_weights(
            b.self_attention,
            b.cross_attention,
            b.feed_forward,
            [b.self_norm, b.cross_norm, b.feed_norm],
        ),
        (X, WORDS),
    ),
}


def call(block: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    return recurrent(block, *inputs) if hasattr(block, "remember") else block(*inputs)


NO_BLOCKS = {
    "AdditiveScore",
    "GeneralScore",
    "RelativeBias",
    "Sinks",  # values that are learned
    "ChannelNorm",
    "ConvolutionAsAttention",  # a norm; made by convolution_as_attention
}


def test_no_block_is_forgotten() -> None:
    kinds = {
        name
        for name in modules.__all__
        if isinstance(found := getattr(modules, name), type) and issubclass(found, nn.Module)
    }
    assert kinds - NO_BLOCKS == {type(case.make()).__name__ for case in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_a_block_of_its_own_weights_is_the_same_and_shares_none(name: str) -> None:
    make, again, inputs = CASES[name]
    block = drawn(make())
    made = again(block)
    assert type(made) is type(block) and made.training
    found, expected = dict(made.named_parameters()), dict(block.named_parameters())
    assert found.keys() == expected.keys()
    for key, p in expected.items():
        assert torch.equal(found[key], p) and found[key].requires_grad
        assert found[key].untyped_storage().data_ptr() != p.untyped_storage().data_ptr()
    y = call(block, inputs)
    assert torch.equal(call(made, inputs), y)
    with torch.no_grad():
        for p in block.parameters():
            p.zero_()
    assert torch.equal(call(made, inputs), y)


ONE_BIAS = {"additive": "key", "concat": "key"}
"""tanh(W q + U k + b): one bias for both maps."""


@pytest.mark.parametrize("name", CASES)
def test_every_linear_map_has_a_bias_by_default(name: str) -> None:
    """But the map of "general", whose bias would change no weight."""
    state = CASES[name].make().state_dict()
    maps = {key.removesuffix("weight") for key, x in state.items() if x.ndim == 2}
    without = {key for key in maps if f"{key}bias" not in state}
    allowed = {"query."} if name in ONE_BIAS else {"key."} if name == "general" else set()
    assert without == allowed


def test_the_state_of_a_head_is_that_of_a_block_of_heads() -> None:
    state = {"qkv_weight": draw(3 * D, C), "qkv_bias": draw(3 * D)}
    head = AttentionHead(C, D).double()
    head.load_state_dict(state)
    block = MultiHeadAttention(C, 1, head_widths=(D, D)).double()
    block.load_state_dict(state | {"out_weight": draw(C, D), "out_bias": draw(C)})
    close(head.attend(X).dense(), block.attend(X)[:, 0].dense())


# By hand


def test_a_head_is_the_reference() -> None:
    """The bare arrays of the article: W (c, d), the transpose of ours."""
    q, k, v = (np.random.default_rng(i).normal(size=(C, n)) for i, n in enumerate((D, D, E)))
    x = X[0].numpy()
    head = AttentionHead.from_weights(q.T, k.T, v.T)
    y = reference.attention(x @ q, x @ k, x @ v)
    close(head(X[:1])[0], torch.tensor(y))
    options = AttentionOptions(mask=it.causal(), scale=1.0)
    head = AttentionHead.from_weights(q.T, k.T, v.T, attention=options)
    z = np.where(np.tri(T, dtype=bool), x @ q @ (x @ k).T, -np.inf)
    weights = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    close(head(X[:1])[0], torch.tensor(weights @ x @ v))


def test_a_head_from_one_map() -> None:
    joint = nn.Linear(C, 3 * D).double()
    head = AttentionHead.from_weights(joint, None, None, layout="3 h d")
    q, k, v = joint(X).chunk(3, -1)
    close(head(X), (q @ k.mT / D**0.5).softmax(-1) @ v)


def test_feed_forwards_are_the_formula() -> None:
    up, gate, down = draw(A, C), draw(A, C, seed=1), draw(C, A)
    b, e = draw(A), draw(C)
    x, relu = X.numpy(), lambda z: np.maximum(z, 0)
    W, V = up.numpy(), down.numpy()
    expected = relu(x @ W.T + b.numpy()) @ V.T + e.numpy()
    close(FeedForward.from_weights((up, b), (down, e))(X), torch.tensor(expected))
    half = FeedForward.from_weights(up, (down, e), activation=F.gelu)
    close(half(X), F.gelu(X @ up.T) @ down.T + e)
    expected = (F.silu(X @ gate.T) * (X @ up.T + b)) @ down.T
    separate = GatedFeedForward.from_weights(gate, (up, b), down)
    close(separate(X), expected)
    for order in ("gate up", "up gate"):
        both = torch.cat([gate, up] if order == "gate up" else [up, gate])
        fused = GatedFeedForward.from_weights(both, None, down, layout=order)
        close(fused(X), (F.silu(X @ gate.T) * (X @ up.T)) @ down.T)


def test_geglu_of_diffusers() -> None:
    net = pytest.importorskip("diffusers.models.activations").GEGLU(C, A).double()
    down = nn.Linear(A, C).double()
    ours = GatedFeedForward.from_weights(net.proj, None, down, layout="up gate", activation=F.gelu)
    close(ours(X), down(net(X)))


def tutorial(hidden: Tensor, states: Tensor, attn: nn.Linear, v: nn.Linear) -> Tensor:
    """Additive attention as tutorials write it: one map of both, side by side."""
    both = torch.cat(
        [hidden.unsqueeze(2).expand(-1, -1, S, -1), states.unsqueeze(1).expand(-1, T, -1, -1)], -1
    )
    return v(torch.tanh(attn(both))).squeeze(-1).softmax(-1) @ states


@pytest.mark.parametrize("kind", ["additive", "concat"])
def test_additive_attention_of_the_tutorials(kind: str) -> None:
    attn, v = nn.Linear(C + K, A).double(), nn.Linear(A, 1).double()
    query, key = attn.weight[:, :C], (attn.weight[:, C:], attn.bias)
    if kind == "additive":
        block: Any = AdditiveAttention.from_weights(query, key, v)
    else:
        block = LuongAttention.from_weights("concat", key, query=query, energy=v)
    close(recurrent(block, X, WORDS), tutorial(X, WORDS, attn, v))


def test_additive_attention_of_two_maps_with_biases() -> None:
    W, U, v = nn.Linear(C, A).double(), nn.Linear(K, A).double(), draw(A)
    z = torch.tanh(W(X)[:, :, None] + U(WORDS)[:, None]) @ v
    block = AdditiveAttention.from_weights(W, U, v)
    close(recurrent(block, X, WORDS), z.softmax(-1) @ WORDS)
    bare = AdditiveAttention.from_weights(W.weight, U.weight, v.numpy())
    z = torch.tanh((X @ W.weight.T)[:, :, None] + (WORDS @ U.weight.T)[:, None]) @ v
    close(recurrent(bare, X, WORDS), z.softmax(-1) @ WORDS)
    assert bare.key.bias is None


def test_general_attention_of_the_tutorials() -> None:
    """A map with a bias, which changes no weight."""
    attn = nn.Linear(K, C).double()
    z = (X[:, :, None] * attn(WORDS)[:, None]).sum(-1)
    block = LuongAttention.from_weights("general", attn)
    close(recurrent(block, X, WORDS), z.softmax(-1) @ WORDS)


def test_the_attentional_vector_of_the_tutorials() -> None:
    concat, context = nn.Linear(C + K, C).double(), draw(2, T, K)
    vector = AttentionalVector.from_weights(concat, layout="query context")
    close(vector(context, X), torch.tanh(concat(torch.cat([X, context], -1))))
    join = draw(C, K + C)
    vector = AttentionalVector.from_weights(join, layout="context query")
    close(vector(context, X), torch.tanh(torch.cat([context, X], -1) @ join.T))


class NonLocal(nn.Module):
    """Attention over pixels as articles write it: a norm, convolutions of single pixels."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, C)
        self.q, self.k, self.v, self.out = (nn.Conv2d(C, C, 1) for _ in range(4))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        y = self.norm(x)
        q, k, v = (f(y).view(b, self.heads, -1, height * width) for f in (self.q, self.k, self.v))
        weights = (q.mT @ k / (c // self.heads) ** 0.5).softmax(-1)
        return x + self.out((v @ weights.mT).reshape(x.shape))


@pytest.mark.parametrize("heads", [1, 2])
def test_image_attention_of_the_articles(heads: int) -> None:
    theirs = drawn(NonLocal(heads))
    maps = theirs.q, theirs.k, theirs.v, theirs.out
    ours = ImageAttention.from_weights(*maps, layout="h d", heads=heads, norm=theirs.norm)
    close(ours(PICTURE), theirs(PICTURE))
    arrays = [(f.weight.detach().numpy(), f.bias.detach().numpy()) for f in maps]
    assert arrays[0][0].shape == (C, C, 1, 1)
    ours = ImageAttention.from_weights(*arrays, layout="h d", heads=heads, norm=theirs.norm)
    close(ours(PICTURE), theirs(PICTURE))
    q, k, v = (torch.tensor(weight) for weight, _ in arrays[:3])
    b = torch.cat([torch.tensor(bias) for _, bias in arrays[:3]])
    joint, out = (torch.cat([q, k, v]), b), arrays[3]
    fused = ImageAttention.from_weights(
        joint, None, None, out, layout="3 h d", heads=heads, norm=theirs.norm
    )
    close(fused(PICTURE), theirs(PICTURE))


def test_image_attention_without_norm_and_residual_may_change_the_channels() -> None:
    q, k, v, out = draw(D, C, 1, 1), draw(D, C, 1, 1), draw(E, C, 1, 1), draw(5, E, 1, 1)
    own = AttentionOptions(scale=1.0)
    block = ImageAttention.from_weights(
        q, k, v, out, layout="h d", heads=1, residual=False, attention=own
    )
    x = PICTURE.flatten(2).mT
    y = ((x @ q.flatten(1).T) @ (x @ k.flatten(1).T).mT).softmax(-1) @ (x @ v.flatten(1).T)
    close(block(PICTURE), (y @ out.flatten(1).T).mT.reshape(2, 5, 3, 4))


def test_the_image_attention_of_diffusers() -> None:
    kind = pytest.importorskip("diffusers.models.attention_processor").Attention
    theirs = kind(
        C, heads=H, dim_head=D, norm_num_groups=2, bias=True, residual_connection=True
    ).double()
    maps = theirs.to_q, theirs.to_k, theirs.to_v, theirs.to_out[0]
    ours = ImageAttention.from_weights(*maps, layout="h d", heads=H, norm=theirs.group_norm)
    close(ours(PICTURE), theirs(PICTURE))


def attention_of(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    joint = theirs.in_proj_weight, theirs.in_proj_bias
    return MultiHeadAttention.from_weights(
        joint, None, None, theirs.out_proj, layout="3 h d", heads=theirs.num_heads
    )


@pytest.mark.parametrize("first", [True, False])
def test_layers_of_pytorch(first: bool) -> None:
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": first}
    norm: Any = "pre" if first else "post"
    theirs = drawn(nn.TransformerEncoderLayer(C, H, A, **options))
    feed = FeedForward.from_weights(theirs.linear1, theirs.linear2)
    ours = EncoderLayer.from_weights(
        attention_of(theirs.self_attn), feed, [theirs.norm1, theirs.norm2], norm=norm
    )
    close(ours(X), theirs(X))
    other = drawn(nn.TransformerDecoderLayer(C, H, A, **options))
    both = attention_of(other.self_attn), attention_of(other.multihead_attn)
    decoder = DecoderLayer.from_weights(
        *both,
        FeedForward.from_weights(other.linear1, other.linear2),
        (other.norm1, other.norm2, other.norm3),
        norm=norm,
    )
    states = draw(2, S, C)
    close(decoder(X, states), other(X, states))


def test_a_spatial_transformer_of_convolutions_without_layers() -> None:
    enter, leave = nn.Conv2d(C, A, 1, bias=False).double(), nn.Conv2d(A, C, 1).double()
    block = SpatialTransformer.from_weights(enter, [], leave)
    close(block(PICTURE), PICTURE + leave(enter(PICTURE)))


def test_linear_maps_that_compute_their_weight() -> None:
    q, k, v = (nn.utils.parametrizations.weight_norm(nn.Linear(C, D).double()) for _ in range(3))
    x, head = X, AttentionHead.from_weights(q, k, v)
    close(head(x), (q(x) @ k(x).mT / D**0.5).softmax(-1) @ v(x))


# Errors

STORED = "Weights are stored (out, in) as in nn.Linear; Keras stores (in, out)."
TURN = " Hand in weight.T if it is transposed."
LAYER = EncoderLayer(C, H, A).double()
NORM = nn.LayerNorm(C).double()
ERRORS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: AttentionHead.from_weights(draw(D, C), None, None),
        ArgumentError,
        'k, v: expected weights of their own in the layout "h d"; got None.',
    ),
    (
        lambda: AttentionHead.from_weights(draw(D, C), draw(C, D), draw(E, C)),
        ArgumentError,
        f"k: expected shape (g·d=4, c) for g=1 and d=4 of q; got shape (8, 4). {STORED}{TURN}",
    ),
    (
        lambda: AttentionHead.from_weights(draw(D + 1, C), None, None, layout="3 h d"),
        ArgumentError,
        "q: expected a multiple of 3·heads = 3 rows, (3·h·d, c); got shape (5, 8).",
    ),
    (
        lambda: FeedForward.from_weights(draw(A, C), draw(A, C)),
        ArgumentError,
        f"down: expected shape (c=8, inner=5); got shape (5, 8). {STORED}{TURN}",
    ),
    (
        lambda: FeedForward.from_weights(draw(A, C), draw(C, A).float()),
        KindError,
        "down: expected torch.float64 on cpu, as the first weight; got torch.float32 on cpu.",
    ),
    (
        lambda: FeedForward.from_weights(draw(A, C), [[1.0]]),
        KindError,
        "down: expected a weight (out, in), a pair (weight, bias) or an nn.Linear; got list.",
    ),
    (
        lambda: FeedForward.from_weights(draw(A, C), np.ones((C, A), int)),
        KindError,
        "down: expected floating-point weights; got dtype int64.",
    ),
    (
        lambda: FeedForward.from_weights((draw(A, C), [1.0]), draw(C, A)),
        KindError,
        "up: expected floating-point weights; got list.",
    ),
    (
        lambda: FeedForward.from_weights(draw(A, C, 3, 3), draw(C, A)),
        ArgumentError,
        "up: expected shape (out, in); got shape (5, 8, 3, 3).",
    ),
    (
        lambda: FeedForward.from_weights(nn.LazyLinear(A), draw(C, A)),
        KindError,
        "up: expected a layer with weights; got one without. Call it once, and it knows its sizes.",
    ),
    (
        lambda: GatedFeedForward.from_weights(draw(A, C), None, draw(C, A)),
        ArgumentError,
        "up: expected a weight of its own (inner, c); got None. A weight of both needs "
        'layout="gate up" or layout="up gate".',
    ),
    (
        lambda: GatedFeedForward.from_weights(draw(A, C), draw(A, C), draw(C, A), layout="gate up"),
        ArgumentError,
        "up: expected None: in the layout 'gate up' gate holds both; got a weight of "
        'its own. Separate weights need layout="separate".',
    ),
    (
        lambda: GatedFeedForward.from_weights(draw(A, C), None, draw(C, A), layout="up gate"),
        ArgumentError,
        "gate: expected an even number of rows, (2·inner, c); got shape (5, 8).",
    ),
    (
        lambda: GatedFeedForward.from_weights(draw(A, C), None, draw(C, A), layout="up, gate"),
        ArgumentError,
        "layout: expected one of 'separate', 'gate up', 'up gate'; got 'up, gate'.",
    ),
    (
        lambda: AdditiveAttention.from_weights(draw(A, C), draw(A + 1, K), draw(A)),
        ArgumentError,
        f"key: expected shape (a=5, k); got shape (6, 6). {STORED}{TURN}",
    ),
    (
        lambda: AdditiveAttention.from_weights(draw(A, C), draw(A, K), draw(A + 1)),
        ArgumentError,
        "energy: expected shape (1, a=5); got shape (1, 6).",
    ),
    (
        lambda: AdditiveAttention.from_weights(draw(A, C), draw(A, K), draw(A, 2)),
        ArgumentError,
        "energy: expected shape (a,) or (1, a); got shape (5, 2).",
    ),
    (
        lambda: LuongAttention.from_weights("concat", draw(A, K)),
        ArgumentError,
        'query: expected a weight, for the score "concat"; got None.',
    ),
    (
        lambda: LuongAttention.from_weights("general", draw(C, K), energy=draw(A)),
        ArgumentError,
        'energy: expected None: it is for the score "concat"; got a weight.',
    ),
    (
        lambda: LuongAttention.from_weights("dot", draw(C, K)),
        ArgumentError,  # type: ignore
        'score: expected "general" or "concat"; got \'dot\'. It has no weights: write',
    ),
    (
        lambda: AttentionalVector.from_weights(draw(C, K + C), layout="k c"),
        ArgumentError,
        "layout: expected one of 'context query', 'query context'; got 'k c'.",
    ),
    (
        lambda: AttentionalVector.from_weights(draw(C, C), layout="context query"),
        ArgumentError,
        f"join: expected shape (c, k + c); got shape (8, 8). {STORED}{TURN}",
    ),
    (
        lambda: ImageAttention.from_weights(
            nn.Conv2d(C, D, 3), draw(D, C), draw(E, C), draw(C, E), layout="h d", heads=1
        ),
        ArgumentError,
        "q: expected a convolution of single pixels, kernel_size=1; got kernel_size=(3, 3). "
        "Only such "
        "a convolution is a linear map of each pixel.",
    ),
    (
        lambda: ImageAttention.from_weights(
            nn.Conv2d(C, C, 1, groups=2), draw(D, C), draw(E, C), draw(C, E), layout="h d", heads=1
        ),
        ArgumentError,
        "q: expected a convolution of single pixels, groups=1; got groups=2.",
    ),
    (
        lambda: ImageAttention.from_weights(
            draw(D, C), draw(D, C), draw(E, C), draw(C + 1, E), layout="h d", heads=1
        ),
        ArgumentError,
        "out: expected shape (c=8, h·e); got shape (9, 3). The outcome is added to the "
        "image. Write",
    ),
    (
        lambda: ImageAttention.from_weights(
            draw(D, C),
            draw(D, C),
            draw(E, C),
            draw(C, E),
            layout="h d",
            heads=1,
            norm=nn.GroupNorm(2, 4).double(),
        ),
        ArgumentError,
        "norm: expected a norm with weights (c=8,); got shape (4,).",
    ),
    (
        lambda: ImageAttention.from_weights(
            draw(D, C),
            draw(D, C),
            draw(E, C),
            draw(C, E),
            layout="h d",
            heads=1,
            norm=nn.GroupNorm(2, C),
        ),
        KindError,
        "norm: expected torch.float64 on cpu, as the first weight; got torch.float32",
    ),
    (
        lambda: ImageAttention.from_weights(
            draw(D, C), draw(D, C), draw(E, C), draw(C, E), layout="h d", heads=1, norm=draw(C)
        ),  # type: ignore
        KindError,
        "norm: expected the module itself, with its weights; got Tensor.",
    ),
    (
        lambda: EncoderLayer.from_weights(LAYER, FeedForward(C, A), [NORM, NORM]),  # type: ignore
        KindError,
        "attention: expected a MultiHeadAttention, with its weights; got EncoderLayer.",
    ),
    (
        lambda: EncoderLayer.from_weights(LAYER.self_attention, LAYER.feed_forward, [NORM]),
        ArgumentError,
        "norms: expected a list of 2 norms; got 1.",
    ),
    (
        lambda: EncoderLayer.from_weights(
            LAYER.self_attention, FeedForward(K, A).double(), [NORM, NORM]
        ),
        ArgumentError,
        "feed_forward: expected one of width c=8, as the attention; got width 6.",
    ),
    (
        lambda: SpatialTransformer.from_weights(draw(K, C), [LAYER], draw(C, K)),
        ArgumentError,
        "layers[0]: expected a layer of width 6, as project_in makes; got width 8.",
    ),
    (
        lambda: SpatialTransformer.from_weights(draw(C, K), [LAYER], draw(C, K)),
        ArgumentError,
        f"project_out: expected shape (c=6, w=8); got shape (8, 6). {STORED}{TURN}",
    ),
    (
        lambda: SpatialTransformer.from_weights(
            draw(C, K), [LAYER, DecoderLayer(C, H, A).double()], draw(K, C)
        ),
        ArgumentError,
        "layers: expected layers that attend contexts of one width; got [None, 8].",
    ),
]


test_errors = raises(ERRORS)
