"""Llama, Mistral, Qwen2, Qwen3: rotary positions, shared key/value heads, gates, RMS norms.

Source: Touvron et al. 2023, "LLaMA", section 2.2; Ainslie et al. 2023 for shared heads. The
layout of rotary pairs is "half". Qwen2 has biases in q, k and v only; Qwen3 norms q and k in each
head; layers with ``sliding_attention`` see a window.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from intently.interop.stacks import Encoder
from intently.interop.transformers import models, parts
from intently.interop.weights import Weights
from intently.masks import Mask, causal, window
from intently.modules import (
    AttentionOptions,
    EncoderLayer,
    GatedFeedForward,
    MultiHeadAttention,
    Projections,
)
from intently.modules.linear import Linear

BODY = {"embed.tokens.": "embed_tokens", "stack.norm.": "norm"}
LAYER = {
    "self_norm.": "input_layernorm",
    "self_attention.q_": "self_attn.q_proj",
    "self_attention.k_": "self_attn.k_proj",
    "self_attention.v_": "self_attn.v_proj",
    "self_attention.out_": "self_attn.o_proj",
    "feed_norm.": "post_attention_layernorm",
    "feed_forward.gate_up.": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down.": "mlp.down_proj",
}
QK_NORM = {
    "self_attention.q_norm.": "self_attn.q_norm",
    "self_attention.k_norm.": "self_attn.k_norm",
}


def make(config: Any, headed: bool) -> models.TextModel:
    """Return the model of a config of these families, without its weights."""
    c, h = config.hidden_size, config.num_attention_heads
    d = getattr(config, "head_dim", None) or c // h
    norms = partial(nn.RMSNorm, eps=config.rms_norm_eps)
    bias = getattr(config, "attention_bias", False)
    qwen2 = config.model_type == "qwen2"

    def layer(i: int) -> EncoderLayer:
        qk_norm = norms if config.model_type == "qwen3" else None
        own = AttentionOptions(
            mask=_mask(config, i), positions=parts.rotary(config, d), qk_norm=qk_norm
        )
        block = MultiHeadAttention(
            c,
            h,
            kv_heads=config.num_key_value_heads,
            head_widths=(d, d),
            attention=own,
            projections=Projections(bias=qwen2 or bias, out_bias=bias and not qwen2),
            dropout=config.attention_dropout,
        )
        feed = GatedFeedForward(
            c,
            config.intermediate_size,
            activation=parts.activation(config.hidden_act),
            bias=getattr(config, "mlp_bias", False),
        )
        return EncoderLayer(c, block, feed, norms=norms)

    return models.TextModel(
        models.Embeddings(config.vocab_size, c),
        Encoder([layer(i) for i in range(config.num_hidden_layers)], norms(c)),
        Linear(c, config.vocab_size, bias=False) if headed else nn.Identity(),
    )


def _mask(config: Any, i: int) -> Mask:
    """The mask of layer i: causal, or a sliding window."""
    kinds = getattr(config, "layer_types", None)
    width = getattr(config, "sliding_window", None)
    slides = width is not None if kinds is None else kinds[i] == "sliding_attention"
    return window(width - 1, 0) if slides and width is not None else causal()


def read(config: Any, weights: Weights, headed: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    base = "model." if headed else ""
    layer = LAYER | (QK_NORM if config.model_type == "qwen3" else {})
    found = parts.renamed(weights, BODY, base)
    found |= parts.layers(weights, layer, config.num_hidden_layers, f"{base}layers")
    return found | (parts.renamed(weights, parts.HEAD) if headed else {})
