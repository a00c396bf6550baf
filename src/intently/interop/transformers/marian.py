"""Marian, the OPUS translators: sinusoidal positions, norms after, a fixed bias on the logits.

Its sinusoids stand sines first, then cosines. Source: Junczys-Dowmunt et al. 2018, "Marian";
Vaswani et al. 2017 for the model.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from intently.interop.transformers.models import Embeddings, TextToText
from intently.interop.transformers.parts import Tensors, activation, attention, linear, norm
from intently.interop.transformers.stack import Layer, Stack
from intently.interop.weights import Weights, refuse
from intently.masks import causal
from intently.modules import AttentionOptions, FeedForward, MultiHeadAttention
from intently.modules.linear import Linear

PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}


def make(config: Any, headed: bool) -> TextToText:
    """Return the model of a ``MarianConfig``, without its weights; layer drop is refused."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name):
            refuse("config", name, "0", getattr(config, name), "layers are never skipped here")
    c, p = config.d_model, config.dropout
    make_norm = norm(c, 1e-5)

    def block(heads: int, how: AttentionOptions) -> MultiHeadAttention:
        return MultiHeadAttention(c, heads, attention=how, dropout=config.attention_dropout)

    def side(layers: int, heads: int, inner: int, decodes: bool) -> Stack:
        found = [
            Layer(
                block(heads, AttentionOptions(mask=causal() if decodes else None)),
                FeedForward(
                    c,
                    inner,
                    config.activation_dropout,
                    activation=activation(config.activation_function),
                ),
                make_norm,
                cross=block(heads, AttentionOptions()) if decodes else None,
                order="post",
                dropout=p,
            )
            for _ in range(layers)
        ]
        return Stack(found, nn.Identity())

    def embed(tokens: int) -> Embeddings:
        scale = c**0.5 if config.scale_embedding else 1.0
        table = Embeddings(tokens, c, places=config.max_position_embeddings, scale=scale, dropout=p)
        if table.places is not None:
            table.places.requires_grad_(False)
        return table

    head = Linear(c, config.decoder_vocab_size)
    head.bias.requires_grad_(False)
    return TextToText(
        embed(config.vocab_size),
        embed(config.decoder_vocab_size),
        side(config.encoder_layers, config.encoder_attention_heads, config.encoder_ffn_dim, False),
        side(config.decoder_layers, config.decoder_attention_heads, config.decoder_ffn_dim, True),
        head if headed else nn.Identity(),
    )


def read(config: Any, weights: Weights, headed: bool) -> Tensors:
    """Return the tensors of the model by our names."""
    base = "model." if headed else ""
    found: Tensors = {}
    weights.optional(f"{base}shared.weight")
    if headed:
        found["head.weight"] = weights.take("lm_head.weight")
        found["head.bias"] = weights.take("final_logits_bias")[0]
    for side, name, layers in (
        ("encoder", "source", config.encoder_layers),
        ("decoder", "target", config.decoder_layers),
    ):
        there = f"{base}{side}"
        found[f"{name}.tokens.weight"] = weights.take(f"{there}.embed_tokens.weight")
        found[f"{name}.places.weight"] = weights.take(f"{there}.embed_positions.weight")
        for i in range(layers):
            theirs, ours = f"{there}.layers.{i}", f"{side}.layers.{i}"
            found |= attention(weights, f"{theirs}.self_attn", f"{ours}.attention", PROJECTIONS)
            found |= linear(weights, f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norm")
            if side == "decoder":
                found |= attention(weights, f"{theirs}.encoder_attn", f"{ours}.cross", PROJECTIONS)
                found |= linear(weights, f"{theirs}.encoder_attn_layer_norm", f"{ours}.cross_norm")
            found |= linear(weights, f"{theirs}.fc1", f"{ours}.feed_forward.up")
            found |= linear(weights, f"{theirs}.fc2", f"{ours}.feed_forward.down")
            found |= linear(weights, f"{theirs}.final_layer_norm", f"{ours}.feed_norm")
    return found
