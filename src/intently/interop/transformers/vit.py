"""ViT: patches of a picture behind a class token, learned positions, norms before.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from intently.interop.stacks import Encoder
from intently.interop.transformers import models, parts
from intently.interop.weights import Weights
from intently.modules import EncoderLayer, FeedForward, MultiHeadAttention, Projections
from intently.modules.linear import Linear

PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}
LAYER = {
    "self_norm": "layernorm_before",
    "feed_norm": "layernorm_after",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
}


def make(config: Any, labels: int | None, pooled: bool) -> models.VisionModel:
    """Return the model of a ``ViTConfig``, without its weights."""
    c, p = config.hidden_size, config.hidden_dropout_prob
    norms = partial(nn.LayerNorm, eps=config.layer_norm_eps)

    def layer() -> EncoderLayer:
        block = MultiHeadAttention(
            c,
            config.num_attention_heads,
            projections=Projections(bias=config.qkv_bias),
            dropout=config.attention_probs_dropout_prob,
        )
        feed = FeedForward(
            c, config.intermediate_size, activation=parts.activation(config.hidden_act)
        )
        return EncoderLayer(c, block, feed, dropout=p, norms=norms)

    stack = Encoder([layer() for _ in range(config.num_hidden_layers)], norms(c))
    size = config.pooler_output_size or c
    pooler = nn.Sequential(Linear(c, size), parts.Activation(parts.activation(config.pooler_act)))
    return models.VisionModel(
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


def read(config: Any, weights: Weights, headed: bool, pooled: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    base = "vit." if headed else ""
    found: parts.Tensors = {
        "first": weights.take(f"{base}embeddings.cls_token"),
        "places": weights.take(f"{base}embeddings.position_embeddings"),
        **parts.linear(weights, f"{base}embeddings.patch_embeddings.projection", "patches"),
        **parts.linear(weights, f"{base}layernorm", "stack.norm"),
    }
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{base}layers.{i}", f"stack.layers.{i}"
        found |= parts.attention(
            weights, f"{theirs}.attention", f"{ours}.self_attention", PROJECTIONS
        )
        found |= parts.linears(weights, theirs, ours, LAYER)
    if headed:
        found |= parts.linear(weights, "classifier", "head")
    if pooled:
        found |= parts.linear(weights, f"{base}pooler.dense", "pooler.0")
    return found
