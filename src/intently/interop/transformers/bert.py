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

BODY = {
    "embed.tokens.": "embeddings.word_embeddings",
    "embed.places.": "embeddings.position_embeddings",
    "embed.types.": "embeddings.token_type_embeddings",
    "embed.norm.": "embeddings.LayerNorm",
}
LAYER = {
    "self_attention.q_": "attention.self.query",
    "self_attention.k_": "attention.self.key",
    "self_attention.v_": "attention.self.value",
    "self_attention.out_": "attention.output.dense",
    "self_norm.": "attention.output.LayerNorm",
    "feed_forward.up.": "intermediate.dense",
    "feed_forward.down.": "output.dense",
    "feed_norm.": "output.LayerNorm",
}
HEAD = {"head.0.": "transform.dense", "head.2.": "transform.LayerNorm", "head.3.": "decoder"}
POOLER = {"pooler.0.": "pooler.dense"}


def layer(config: Any) -> EncoderLayer:
    """Return a layer of BERT."""
    c, h = config.hidden_size, config.num_attention_heads
    block = MultiHeadAttention(c, h, dropout=config.attention_probs_dropout_prob)
    feed = FeedForward(c, config.intermediate_size, activation=parts.activation(config.hidden_act))
    norms = partial(nn.LayerNorm, eps=config.layer_norm_eps)
    p = config.hidden_dropout_prob
    return EncoderLayer(c, block, feed, norm="post", dropout=p, norms=norms)


def make(config: Any, headed: bool, pooled: bool) -> models.TextModel:
    """Return the model of a ``BertConfig``, without its weights; decoders are refused."""
    if config.is_decoder or config.add_cross_attention:
        refuse("config", "is_decoder", "False", True, "BERT is read as an encoder only")
    c = config.hidden_size
    norms = partial(nn.LayerNorm, eps=config.layer_norm_eps)
    function = parts.activation(config.hidden_act)
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
            dropout=config.hidden_dropout_prob,
        ),
        Encoder([layer(config) for _ in range(config.num_hidden_layers)]),
        head if headed else nn.Identity(),
        nn.Sequential(Linear(c, c), nn.Tanh()) if pooled else None,
    )


def read(config: Any, weights: Weights, headed: bool, pooled: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    base = "bert." if headed else ""
    found = parts.renamed(weights, BODY, base)
    found |= parts.layers(weights, LAYER, config.num_hidden_layers, f"{base}encoder.layer")
    if headed:
        found |= parts.renamed(weights, HEAD, "cls.predictions.")
        weights.take("cls.predictions.bias")  # the decoder's own
    if pooled:
        found |= parts.renamed(weights, POOLER, base)
    return found
