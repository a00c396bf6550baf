"""GPT-2: learned positions, norms before, one fused projection, stored transposed.

Its linear maps are ``Conv1D``: weights (in, out), ours and PyTorch's are (out, in). Source: Radford
et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from intently.interop.stacks import Encoder
from intently.interop.transformers import models, parts
from intently.interop.weights import Weights
from intently.masks import causal
from intently.modules import AttentionOptions, EncoderLayer, FeedForward, MultiHeadAttention
from intently.modules.linear import Linear

BODY = {"embed.tokens.": "wte", "embed.places.": "wpe", "stack.norm.": "ln_f"}
LAYER = {
    "self_norm.": "ln_1",
    "self_attention.qkv_": "attn.c_attn",
    "self_attention.out_": "attn.c_proj",
    "feed_norm.": "ln_2",
    "feed_forward.up.": "mlp.c_fc",
    "feed_forward.down.": "mlp.c_proj",
}


def make(config: Any, headed: bool) -> models.TextModel:
    """Return the model of a ``GPT2Config``, without its weights."""
    c, h = config.hidden_size, config.num_attention_heads
    norms = partial(nn.LayerNorm, eps=config.layer_norm_epsilon)

    def layer(i: int) -> EncoderLayer:
        scale = (c // h) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= i + 1
        own = AttentionOptions(mask=causal(), scale=scale)
        block = MultiHeadAttention(c, h, attention=own, dropout=config.attn_pdrop)
        function = parts.activation(config.activation_function)
        feed = FeedForward(c, config.n_inner or 4 * c, activation=function)
        return EncoderLayer(c, block, feed, dropout=config.resid_pdrop, norms=norms)

    return models.TextModel(
        models.Embeddings(
            config.vocab_size, c, places=config.n_positions, dropout=config.embd_pdrop
        ),
        Encoder([layer(i) for i in range(config.num_hidden_layers)], norms(c)),
        Linear(c, config.vocab_size, bias=False) if headed else nn.Identity(),
    )


def read(config: Any, weights: Weights, headed: bool) -> parts.Tensors:
    """Return the tensors of the model by our names."""
    base = "transformer." if headed else ""
    layers = parts.layers(weights, LAYER, config.num_hidden_layers, f"{base}h")
    turned = {
        name: x.mT.contiguous() if x is not None and x.ndim == 2 else x
        for name, x in layers.items()
    }
    head = parts.renamed(weights, parts.HEAD) if headed else {}
    return parts.renamed(weights, BODY, base) | turned | head
