"""BERT: learned positions and segments, norms after, attention in both directions.

Source: Devlin et al. 2019, "BERT", section 3.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from intently.interop.stacks import Encoder
from intently.interop.transformers import models, parts
from intently.interop.weights import Weights, refuse
from intently.modules import EncoderLayer, FeedForward, MultiHeadAttention
from intently.modules.linear import Linear

PROJECTIONS = {"q": "self.query", "k": "self.key", "v": "self.value", "out": "output.dense"}
LAYER = {
    "self_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_norm": "output.LayerNorm",
}
HEAD = {"0": "transform.dense", "2": "transform.LayerNorm", "3": "decoder"}


def make(config: Any, headed: bool, pooled: bool) -> models.TextModel:
    """Return the model of a ``BertConfig``, without its weights; decoders are refused."""
    if config.is_decoder or config.add_cross_attention:
        refuse("config", "is_decoder", "False", True, "BERT is read as an encoder only")
    c, p = config.hidden_size, config.hidden_dropout_prob
    norms = partial(nn.LayerNorm, eps=config.layer_norm_eps)
    function = parts.activation(config.hidden_act)

    def layer() -> EncoderLayer:
        block = MultiHeadAttention(
            c, config.num_attention_heads, dropout=config.attention_probs_dropout_prob
        )
        feed = FeedForward(c, config.intermediate_size, activation=function)
        return EncoderLayer(c, block, feed, norm="post", dropout=p, norms=norms)

    head = nn.Sequential(
        Linear(c, c), parts.Activation(function), norms(c), Linear(c, config.vocab_size)
    )
    return models.TextModel(
        models.Embeddings(
            config.vocab_size,
            c,
            places=config.max_position_embeddings,
            types=config.type_vocab_size,
            norm=norms(c),
            dropout=p,
        ),
        Encoder([layer() for _ in range(config.num_hidden_layers)]),
        head if headed else nn.Identity(),
        nn.Sequential(Linear(c, c), nn.Tanh()) if pooled else None,
    )


def read(config: Any, weights: Weights, headed: bool, pooled: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    base = "bert." if headed else ""
    there = f"{base}embeddings"
    found: parts.Tensors = {
        "embed.tokens.weight": weights.take(f"{there}.word_embeddings.weight"),
        "embed.places.weight": weights.take(f"{there}.position_embeddings.weight"),
        "embed.types.weight": weights.take(f"{there}.token_type_embeddings.weight"),
        **parts.linear(weights, f"{there}.LayerNorm", "embed.norm"),
    }
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{base}encoder.layer.{i}", f"stack.layers.{i}"
        found |= parts.attention(
            weights, f"{theirs}.attention", f"{ours}.self_attention", PROJECTIONS
        )
        found |= parts.linears(weights, theirs, ours, LAYER)
    if headed:
        there = "cls.predictions"
        found |= parts.linears(weights, there, "head", HEAD)
        weights.take(f"{there}.bias")
    if pooled:
        found |= parts.linear(weights, f"{base}pooler.dense", "pooler.0")
    return found
