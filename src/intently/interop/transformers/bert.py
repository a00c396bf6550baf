"""BERT: learned positions and segments, norms after, attention in both directions.

Source: Devlin et al. 2019, "BERT", section 3.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from intently.interop.transformers.models import Embeddings, TextModel
from intently.interop.transformers.parts import (
    Activation,
    Tensors,
    activation,
    attention,
    linear,
    norm,
)
from intently.interop.transformers.stack import Layer, Stack
from intently.interop.weights import Weights, refuse
from intently.modules import FeedForward, MultiHeadAttention
from intently.modules.linear import Linear

PROJECTIONS = {"q": "self.query", "k": "self.key", "v": "self.value", "out": "output.dense"}


def make(config: Any, headed: bool, pooled: bool) -> TextModel:
    """Return the model of a ``BertConfig``, without its weights; decoders are refused."""
    if config.is_decoder or config.add_cross_attention:
        refuse("config", "is_decoder", "False", True, "BERT is read as an encoder only")
    c, p = config.hidden_size, config.hidden_dropout_prob
    make_norm = norm(c, config.layer_norm_eps)
    function = activation(config.hidden_act)

    def layer() -> Layer:
        block = MultiHeadAttention(
            c, config.num_attention_heads, dropout=config.attention_probs_dropout_prob
        )
        feed = FeedForward(c, config.intermediate_size, activation=function)
        return Layer(block, feed, make_norm, order="post", dropout=p)

    head = nn.Sequential(
        Linear(c, c), Activation(function), make_norm(), Linear(c, config.vocab_size)
    )
    return TextModel(
        Embeddings(
            config.vocab_size,
            c,
            places=config.max_position_embeddings,
            types=config.type_vocab_size,
            norm=make_norm(),
            dropout=p,
        ),
        Stack([layer() for _ in range(config.num_hidden_layers)], nn.Identity()),
        head if headed else nn.Identity(),
        Linear(c, c) if pooled else None,
    )


def read(config: Any, weights: Weights, headed: bool, pooled: bool) -> Tensors:
    """Return the tensors of the model by our names."""
    base = "bert." if headed else ""
    there = f"{base}embeddings"
    found: Tensors = {
        "embed.tokens.weight": weights.take(f"{there}.word_embeddings.weight"),
        "embed.places.weight": weights.take(f"{there}.position_embeddings.weight"),
        "embed.types.weight": weights.take(f"{there}.token_type_embeddings.weight"),
        **linear(weights, f"{there}.LayerNorm", "embed.norm"),
    }
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{base}encoder.layer.{i}", f"stack.layers.{i}"
        found |= attention(weights, f"{theirs}.attention", f"{ours}.attention", PROJECTIONS)
        found |= linear(weights, f"{theirs}.attention.output.LayerNorm", f"{ours}.attention_norm")
        found |= linear(weights, f"{theirs}.intermediate.dense", f"{ours}.feed_forward.up")
        found |= linear(weights, f"{theirs}.output.dense", f"{ours}.feed_forward.down")
        found |= linear(weights, f"{theirs}.output.LayerNorm", f"{ours}.feed_norm")
    if headed:
        there = "cls.predictions"
        found |= linear(weights, f"{there}.transform.dense", "head.0")
        found |= linear(weights, f"{there}.transform.LayerNorm", "head.2")
        found |= linear(weights, f"{there}.decoder", "head.3")
        weights.take(f"{there}.bias")
    if pooled:
        found |= linear(weights, f"{base}pooler.dense", "pooler")
    return found
