"""ViT: patches of a picture behind a class token, learned positions, norms before.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.1.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from intently.interop.transformers.models import VisionModel
from intently.interop.transformers.parts import (
    Activation,
    Tensors,
    activation,
    attention,
    linear,
    norm,
)
from intently.interop.transformers.stack import Layer, Stack
from intently.interop.weights import Weights
from intently.modules import FeedForward, MultiHeadAttention, Projections
from intently.modules.linear import Linear

PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}


def make(config: Any, labels: int | None, pooled: bool) -> VisionModel:
    """Return the model of a ``ViTConfig``, without its weights."""
    c, p = config.hidden_size, config.hidden_dropout_prob
    make_norm = norm(c, config.layer_norm_eps)

    def layer() -> Layer:
        block = MultiHeadAttention(
            c,
            config.num_attention_heads,
            projections=Projections(bias=config.qkv_bias),
            dropout=config.attention_probs_dropout_prob,
        )
        feed = FeedForward(c, config.intermediate_size, activation=activation(config.hidden_act))
        return Layer(block, feed, make_norm, dropout=p)

    stack = Stack([layer() for _ in range(config.num_hidden_layers)], make_norm())
    size = config.pooler_output_size or c
    pooler = nn.Sequential(Linear(c, size), Activation(activation(config.pooler_act)))
    return VisionModel(
        config.num_channels,
        _pair(config.image_size),
        _pair(config.patch_size),
        c,
        stack,
        head=nn.Identity() if labels is None else Linear(c, labels),
        pooler=pooler if pooled else None,
        dropout=p,
    )


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def read(config: Any, weights: Weights, headed: bool, pooled: bool) -> Tensors:
    """Return the tensors of the model by our names."""
    base = "vit." if headed else ""
    found: Tensors = {
        "first": weights.take(f"{base}embeddings.cls_token"),
        "places": weights.take(f"{base}embeddings.position_embeddings"),
        **linear(weights, f"{base}embeddings.patch_embeddings.projection", "patches"),
        **linear(weights, f"{base}layernorm", "stack.norm"),
    }
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{base}layers.{i}", f"stack.layers.{i}"
        found |= attention(weights, f"{theirs}.attention", f"{ours}.attention", PROJECTIONS)
        found |= linear(weights, f"{theirs}.layernorm_before", f"{ours}.attention_norm")
        found |= linear(weights, f"{theirs}.layernorm_after", f"{ours}.feed_norm")
        found |= linear(weights, f"{theirs}.mlp.fc1", f"{ours}.feed_forward.up")
        found |= linear(weights, f"{theirs}.mlp.fc2", f"{ours}.feed_forward.down")
    if headed:
        found |= linear(weights, "classifier", "head")
    if pooled:
        found |= linear(weights, f"{base}pooler.dense", "pooler.0")
    return found
