"""Marian, the OPUS translators: sinusoidal positions, norms after, a fixed bias on the logits.

Its sinusoids stand sines first, then cosines. Source: Junczys-Dowmunt et al. 2018, "Marian";
Vaswani et al. 2017 for the model.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from intently.interop.stacks import Decoder, Encoder
from intently.interop.transformers import models, parts
from intently.interop.weights import Weights, refuse
from intently.masks import Mask, causal
from intently.modules import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
)
from intently.modules.linear import Linear

BODY = {
    "source.tokens.": "encoder.embed_tokens",
    "source.places.": "encoder.embed_positions",
    "target.tokens.": "decoder.embed_tokens",
    "target.places.": "decoder.embed_positions",
}
ENCODER_LAYER = {
    "self_attention.q_": "self_attn.q_proj",
    "self_attention.k_": "self_attn.k_proj",
    "self_attention.v_": "self_attn.v_proj",
    "self_attention.out_": "self_attn.out_proj",
    "self_norm.": "self_attn_layer_norm",
    "feed_forward.up.": "fc1",
    "feed_forward.down.": "fc2",
    "feed_norm.": "final_layer_norm",
}
DECODER_LAYER = ENCODER_LAYER | {
    "cross_attention.q_": "encoder_attn.q_proj",
    "cross_attention.k_": "encoder_attn.k_proj",
    "cross_attention.v_": "encoder_attn.v_proj",
    "cross_attention.out_": "encoder_attn.out_proj",
    "cross_norm.": "encoder_attn_layer_norm",
}


def make(config: Any, headed: bool) -> models.TextToText:
    """Return the model of a ``MarianConfig``, without its weights; layer drop is refused."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name):
            refuse("config", name, "0", getattr(config, name), "layers are never skipped here")
    c, p = config.d_model, config.dropout
    options: dict[str, Any] = {
        "norm": "post",
        "dropout": p,
        "norms": partial(nn.LayerNorm, eps=1e-5),
    }

    def block(heads: int, mask: Mask | None = None) -> MultiHeadAttention:
        return MultiHeadAttention(
            c, heads, attention=AttentionOptions(mask=mask), dropout=config.attention_dropout
        )

    def feed(inner: int) -> FeedForward:
        function = parts.activation(config.activation_function)
        return FeedForward(c, inner, config.activation_dropout, activation=function)

    def encoder_layer() -> EncoderLayer:
        own, inner = block(config.encoder_attention_heads), feed(config.encoder_ffn_dim)
        return EncoderLayer(c, own, inner, **options)

    def decoder_layer() -> DecoderLayer:
        heads, inner = config.decoder_attention_heads, feed(config.decoder_ffn_dim)
        return DecoderLayer(c, block(heads, causal()), inner, cross=block(heads), **options)

    def embed(tokens: int) -> models.Embeddings:
        scale = c**0.5 if config.scale_embedding else 1.0
        table = models.Embeddings(
            tokens, c, places=config.max_position_embeddings, scale=scale, dropout=p
        )
        if table.places is not None:
            table.places.requires_grad_(False)
        return table

    head = Linear(c, config.decoder_vocab_size)
    head.bias.requires_grad_(False)
    return models.TextToText(
        embed(config.vocab_size),
        embed(config.decoder_vocab_size),
        Encoder([encoder_layer() for _ in range(config.encoder_layers)]),
        Decoder([decoder_layer() for _ in range(config.decoder_layers)]),
        head if headed else nn.Identity(),
    )


def read(config: Any, weights: Weights, headed: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    base = "model." if headed else ""
    weights.optional(f"{base}shared.weight")  # the table of the encoder, or of both sides
    found = parts.renamed(weights, BODY, base)
    for side, count, layer in (
        ("encoder", config.encoder_layers, ENCODER_LAYER),
        ("decoder", config.decoder_layers, DECODER_LAYER),
    ):
        found |= parts.layers(weights, layer, count, f"{base}{side}.layers", side)
    if headed:
        found |= parts.renamed(weights, parts.HEAD)
        found["head.bias"] = weights.take("final_logits_bias")[0]
    return found
