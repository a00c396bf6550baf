"""T5: relative position buckets shared by all layers, unscaled scores, RMS norms, no biases.

Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1. The first
layer of each side holds the table of buckets, which all its layers read; cross-attention has none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from intently.interop.stacks import Decoder, Encoder
from intently.interop.transformers import models, parts
from intently.interop.weights import Weights
from intently.masks import causal
from intently.modules import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    Projections,
    RelativeBias,
)
from intently.modules.linear import Linear

BODY = {
    "source.tokens.": "encoder.embed_tokens",
    "encoder.norm.": "encoder.final_layer_norm",
    "target.tokens.": "decoder.embed_tokens",
    "decoder.norm.": "decoder.final_layer_norm",
}
SELF = {
    "self_attention.q_": "layer.0.SelfAttention.q",
    "self_attention.k_": "layer.0.SelfAttention.k",
    "self_attention.v_": "layer.0.SelfAttention.v",
    "self_attention.out_": "layer.0.SelfAttention.o",
    "self_norm.": "layer.0.layer_norm",
}
CROSS = {
    "cross_attention.q_": "layer.1.EncDecAttention.q",
    "cross_attention.k_": "layer.1.EncDecAttention.k",
    "cross_attention.v_": "layer.1.EncDecAttention.v",
    "cross_attention.out_": "layer.1.EncDecAttention.o",
    "cross_norm.": "layer.1.layer_norm",
}


def make(config: Any, headed: bool) -> models.TextToText:
    """Return the model of a ``T5Config``, without its weights."""
    c, h, d, p = config.d_model, config.num_heads, config.d_kv, config.dropout_rate
    norms = partial(nn.RMSNorm, eps=config.layer_norm_epsilon)
    kind = GatedFeedForward if config.is_gated_act else FeedForward

    def block(**own: Any) -> MultiHeadAttention:
        options, maps = AttentionOptions(scale=1.0, **own), Projections(False, False)
        return MultiHeadAttention(
            c, h, head_widths=(d, d), attention=options, projections=maps, dropout=p
        )

    def feed() -> FeedForward | GatedFeedForward:
        return kind(c, config.d_ff, p, activation=parts.activation(config.dense_act_fn), bias=False)

    def buckets(bidirectional: bool) -> RelativeBias:
        return RelativeBias(
            h,
            buckets=config.relative_attention_num_buckets,
            max_distance=config.relative_attention_max_distance,
            bidirectional=bidirectional,
        )

    both, before = buckets(True), buckets(False)
    encoder = [
        EncoderLayer(c, block(bias=both), feed(), dropout=p, norms=norms)
        for _ in range(config.num_layers)
    ]
    decoder = [
        DecoderLayer(
            c, block(bias=before, mask=causal()), feed(), cross=block(), dropout=p, norms=norms
        )
        for _ in range(config.num_decoder_layers)
    ]
    return models.TextToText(
        models.Embeddings(config.vocab_size, c, dropout=p),
        models.Embeddings(config.vocab_size, c, dropout=p),
        Encoder(encoder, norms(c), dropout=p),
        Decoder(decoder, norms(c), dropout=p),
        Linear(c, config.vocab_size, bias=False) if headed else nn.Identity(),
        scale=c**-0.5 if headed and config.scale_decoder_outputs else 1.0,
    )


def read(config: Any, weights: Weights, headed: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    weights.take("shared.weight")  # the table of both sides
    found = parts.renamed(weights, BODY)
    gated = config.is_gated_act
    for side, count, names in (
        ("encoder", config.num_layers, SELF | _feed_forward(1, gated)),
        ("decoder", config.num_decoder_layers, SELF | CROSS | _feed_forward(2, gated)),
    ):
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table = weights.take(first)
        found |= parts.layers(weights, names, count, f"{side}.block", side)
        found |= {f"{side}.layers.{i}.self_attention.bias.table": table for i in range(count)}
    return found | (parts.renamed(weights, parts.HEAD) if headed else {})


def _feed_forward(at: int, gated: bool) -> dict[str, str | tuple[str, str]]:
    """The names within a layer of its feed-forward part, the last, which is number ``at``."""
    inner = f"layer.{at}.DenseReluDense"
    up = {"feed_forward.gate_up.": (f"{inner}.wi_0", f"{inner}.wi_1")}
    return {
        "feed_norm.": f"layer.{at}.layer_norm",
        "feed_forward.down.": f"{inner}.wo",
        **(up if gated else {"feed_forward.up.": f"{inner}.wi"}),
    }
