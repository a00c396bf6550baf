"""ViT: patches of a picture behind a class token, learned positions, norms before.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.1.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from intently.interop.stacks import Encoder
from intently.interop.transformers import bert, models, parts
from intently.interop.weights import Weights
from intently.modules.linear import Linear

BODY = {
    "first": "embeddings.cls_token",
    "places": "embeddings.position_embeddings",
    "patches.": "embeddings.patch_embeddings.projection",
    "stack.norm.": "layernorm",
}
LAYER = {
    "self_attention.q_": "attention.q_proj",
    "self_attention.k_": "attention.k_proj",
    "self_attention.v_": "attention.v_proj",
    "self_attention.out_": "attention.o_proj",
    "self_norm.": "layernorm_before",
    "feed_norm.": "layernorm_after",
    "feed_forward.up.": "mlp.fc1",
    "feed_forward.down.": "mlp.fc2",
}
HEAD = {"head.": "classifier"}


def make(config: Any, headed: bool, pooled: bool) -> models.VisionModel:
    """Return the model of a ``ViTConfig``, without its weights."""
    c = config.hidden_size
    layers = [bert.layer(config, "pre", config.qkv_bias) for _ in range(config.num_hidden_layers)]
    size = config.pooler_output_size or c
    pooler = nn.Sequential(Linear(c, size), parts.Activation(parts.activation(config.pooler_act)))
    return models.VisionModel(
        config.num_channels,
        _pair(config.image_size),
        _pair(config.patch_size),
        c,
        Encoder(layers, nn.LayerNorm(c, config.layer_norm_eps)),
        head=Linear(c, config.num_labels) if headed else nn.Identity(),
        pooler=pooler if pooled else None,
        dropout=config.hidden_dropout_prob,
    )


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def read(config: Any, weights: Weights, headed: bool, pooled: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    base = "vit." if headed else ""
    found = parts.renamed(weights, BODY, base)
    found |= parts.layers(weights, LAYER, config.num_hidden_layers, f"{base}layers")
    if headed:
        found |= parts.renamed(weights, HEAD)
    if pooled:
        found |= parts.renamed(weights, bert.POOLER, base)
    return found
