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
from intently import nn as modules
from intently import reference

from ..core.formula import random
from ..tensors import close, drawn

C, K, A, D, E, H, T, S = 8, 6, 5, 4, 3, 2, 7, 9


def parts(block: Any) -> list[tuple[Tensor, Tensor] | Tensor]:
    """Queries, keys and values of a block that stores them as one."""
    h, g = block.heads, block.kv_heads
    rows = [h * block.d, g * block.d, g * block.e]
    weights = block.qkv_weight.split(rows)
    return [*weights] if block.qkv_bias is None else [*zip(weights, block.qkv_bias.split(rows))]


def multi_head(block: Any) -> Any:
    return modules.MultiHeadAttention.from_weights(
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


X, PICTURE, WORDS = random(2, T, C), random(2, C, 3, 4), random(2, S, K)
CASES = {
    "head": Case(
        lambda: modules.AttentionHead(C, D, value_width=E),
        lambda b: modules.AttentionHead.from_weights(*parts(b)),
        (X,),
    ),
    "heads": Case(lambda: modules.MultiHeadAttention(C, H), multi_head, (X,)),
    "grouped heads": Case(
        lambda: modules.MultiHeadAttention(C, 4, kv_heads=2, head_widths=(D, E)), multi_head, (X,)
    ),
    "image": Case(
        lambda: modules.ImageAttention(C, H, norm=modules.group_norm(2)),
        lambda b: modules.ImageAttention.from_weights(
            *parts(b.attention),
            (b.attention.out_weight, b.attention.out_bias),
            layout="h d",
            heads=H,
            norm=b.norm,
        ),
        (PICTURE,),
    ),
    "spatial": Case(
        lambda: modules.SpatialTransformer(
            C, H, D, depth=2, context_width=K, norm=modules.group_norm(2)
        ),
        lambda b: modules.SpatialTransformer.from_weights(
            b.project_in, list(b.layers), b.project_out, norm=b.norm
        ),
        (PICTURE, WORDS),
    ),
    "additive": Case(
        lambda: modules.AdditiveAttention(C, K, A),
        lambda b: modules.AdditiveAttention.from_weights(b.query, b.key, b.energy),
        (X, WORDS),
    ),
    "general": Case(
        lambda: modules.LuongAttention(C, K, "general"),
        lambda b: modules.LuongAttention.from_weights("general", b.key),
        (X, WORDS),
    ),
    "concat": Case(
        lambda: modules.LuongAttention(C, K, "concat", hidden=A),
        lambda b: modules.LuongAttention.from_weights(
            "concat", b.key, query=b.query, energy=b.energy
        ),
        (X, WORDS),
    ),
    "vector": Case(
        lambda: modules.AttentionalVector(C, K),
        lambda b: modules.AttentionalVector.from_weights(b.join, layout="context query"),
        (random(2, T, K), X),
    ),
    "feed-forward": Case(
        lambda: modules.FeedForward(C, A),
        lambda b: modules.FeedForward.from_weights(b.up, b.down),
        (X,),
    ),
    "gated": Case(
        lambda: modules.GatedFeedForward(C, A),
        lambda b: modules.GatedFeedForward.from_weights(b.gate_up, None, b.down, layout="gate up"),
        (X,),
    ),
    "encoder layer": Case(
        lambda: modules.EncoderLayer(C, H, A, norm="post"),
        lambda b: modules.EncoderLayer.from_weights(
            b.self_attention, b.feed_forward, [b.self_norm, b.feed_norm], norm="post"
        ),
        (X,),
    ),
    "decoder layer": Case(
        lambda: modules.DecoderLayer(
            C, H, A, cross=modules.MultiHeadAttention(C, H, context_width=K)
        ),
        lambda b: modules.DecoderLayer.from_weights(
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
    state = {"qkv_weight": random(3 * D, C), "qkv_bias": random(3 * D)}
    head = modules.AttentionHead(C, D).double()
    head.load_state_dict(state)
    block = modules.MultiHeadAttention(C, 1, head_widths=(D, D)).double()
    block.load_state_dict(state | {"out_weight": random(C, D), "out_bias": random(C)})
    close(head.attend(X).dense(), block.attend(X)[:, 0].dense())


def test_a_head_is_the_reference() -> None:
    """The bare arrays of the article: W (c, d), the transpose of ours."""
    q, k, v = (np.random.default_rng(i).normal(size=(C, n)) for i, n in enumerate((D, D, E)))
    x = X[0].numpy()
    head = modules.AttentionHead.from_weights(q.T, k.T, v.T)
    y = reference.attention(x @ q, x @ k, x @ v)
    close(head(X[:1])[0], torch.tensor(y))
    options = modules.AttentionOptions(mask=it.causal(), scale=1.0)
    head = modules.AttentionHead.from_weights(q.T, k.T, v.T, attention=options)
    z = np.where(np.tri(T, dtype=bool), x @ q @ (x @ k).T, -np.inf)
    weights = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    close(head(X[:1])[0], torch.tensor(weights @ x @ v))


def test_a_head_from_one_map() -> None:
    joint = nn.Linear(C, 3 * D).double()
    head = modules.AttentionHead.from_weights(joint, None, None, layout="3 h d")
    q, k, v = joint(X).chunk(3, -1)
    close(head(X), (q @ k.mT / D**0.5).softmax(-1) @ v)


def test_feed_forwards_are_the_formula() -> None:
    up, gate, down = random(A, C), random(A, C, seed=1), random(C, A)
    b, e = random(A), random(C)
    x, relu = X.numpy(), lambda z: np.maximum(z, 0)
    W, V = up.numpy(), down.numpy()
    expected = relu(x @ W.T + b.numpy()) @ V.T + e.numpy()
    close(modules.FeedForward.from_weights((up, b), (down, e))(X), torch.tensor(expected))
    half = modules.FeedForward.from_weights(up, (down, e), activation=F.gelu)
    close(half(X), F.gelu(X @ up.T) @ down.T + e)
    expected = (F.silu(X @ gate.T) * (X @ up.T + b)) @ down.T
    separate = modules.GatedFeedForward.from_weights(gate, (up, b), down)
    close(separate(X), expected)
    for order in ("gate up", "up gate"):
        both = torch.cat([gate, up] if order == "gate up" else [up, gate])
        fused = modules.GatedFeedForward.from_weights(both, None, down, layout=order)
        close(fused(X), (F.silu(X @ gate.T) * (X @ up.T)) @ down.T)


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
        block: Any = modules.AdditiveAttention.from_weights(query, key, v)
    else:
        block = modules.LuongAttention.from_weights("concat", key, query=query, energy=v)
    close(recurrent(block, X, WORDS), tutorial(X, WORDS, attn, v))


def test_additive_attention_of_two_maps_with_biases() -> None:
    W, U, v = nn.Linear(C, A).double(), nn.Linear(K, A).double(), random(A)
    z = torch.tanh(W(X)[:, :, None] + U(WORDS)[:, None]) @ v
    block = modules.AdditiveAttention.from_weights(W, U, v)
    close(recurrent(block, X, WORDS), z.softmax(-1) @ WORDS)
    bare = modules.AdditiveAttention.from_weights(W.weight, U.weight, v.numpy())
    z = torch.tanh((X @ W.weight.T)[:, :, None] + (WORDS @ U.weight.T)[:, None]) @ v
    close(recurrent(bare, X, WORDS), z.softmax(-1) @ WORDS)
    assert bare.key.bias is None


def test_general_attention_of_the_tutorials() -> None:
    """A map with a bias, which changes no weight."""
    attn = nn.Linear(K, C).double()
    z = (X[:, :, None] * attn(WORDS)[:, None]).sum(-1)
    block = modules.LuongAttention.from_weights("general", attn)
    close(recurrent(block, X, WORDS), z.softmax(-1) @ WORDS)


def test_the_attentional_vector_of_the_tutorials() -> None:
    concat, context = nn.Linear(C + K, C).double(), random(2, T, K)
    vector = modules.AttentionalVector.from_weights(concat, layout="query context")
    close(vector(context, X), torch.tanh(concat(torch.cat([X, context], -1))))
    join = random(C, K + C)
    vector = modules.AttentionalVector.from_weights(join, layout="context query")
    close(vector(context, X), torch.tanh(torch.cat([context, X], -1) @ join.T))


def test_linear_maps_that_compute_their_weight() -> None:
    q, k, v = (nn.utils.parametrizations.weight_norm(nn.Linear(C, D).double()) for _ in range(3))
    x, head = X, modules.AttentionHead.from_weights(q, k, v)
    close(head(x), (q(x) @ k(x).mT / D**0.5).softmax(-1) @ v(x))
