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

PROJECTIONS = {"q": "q", "k": "k", "v": "v", "out": "o"}


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
    found: parts.Tensors = {
        "source.tokens.weight": weights.take("encoder.embed_tokens.weight"),
        "target.tokens.weight": weights.take("decoder.embed_tokens.weight"),
    }
    weights.take("shared.weight")
    if headed:
        found["head.weight"] = weights.take("lm_head.weight")
    for side, layers in (("encoder", config.num_layers), ("decoder", config.num_decoder_layers)):
        found[f"{side}.norm.weight"] = weights.take(f"{side}.final_layer_norm.weight")
        there = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table = weights.take(there)
        for i in range(layers):
            theirs, ours = f"{side}.block.{i}.layer", f"{side}.layers.{i}"
            found[f"{ours}.self_attention.bias.table"] = table
            found |= _attention(weights, f"{theirs}.0", "SelfAttention", f"{ours}.self")
            last = 1
            if side == "decoder":
                found |= _attention(weights, f"{theirs}.1", "EncDecAttention", f"{ours}.cross")
                last = 2
            found[f"{ours}.feed_norm.weight"] = weights.take(f"{theirs}.{last}.layer_norm.weight")
            inner = f"{theirs}.{last}.DenseReluDense"
            if config.is_gated_act:
                both = f"{inner}.wi_0", f"{inner}.wi_1"
                found |= parts.gate_up(weights, *both, f"{ours}.feed_forward")
            else:
                found |= parts.linear(weights, f"{inner}.wi", f"{ours}.feed_forward.up")
            found |= parts.linear(weights, f"{inner}.wo", f"{ours}.feed_forward.down")
    return found


def _attention(weights: Weights, theirs: str, name: str, ours: str) -> parts.Tensors:
    found = parts.attention(weights, f"{theirs}.{name}", f"{ours}_attention", PROJECTIONS)
    found[f"{ours}_norm.weight"] = weights.take(f"{theirs}.layer_norm.weight")
    return found
