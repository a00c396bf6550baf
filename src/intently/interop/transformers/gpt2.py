"""GPT-2: learned positions, norms before, one fused projection stored the other way round.

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

CONV1D = {
    "self_attention.qkv_": "attn.c_attn",
    "self_attention.out_": "attn.c_proj",
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
    found: parts.Tensors = {
        "embed.tokens.weight": weights.take(f"{base}wte.weight"),
        "embed.places.weight": weights.take(f"{base}wpe.weight"),
        **parts.linear(weights, f"{base}ln_f", "stack.norm"),
    }
    if headed:
        found["head.weight"] = weights.take("lm_head.weight")
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{base}h.{i}", f"stack.layers.{i}"
        found |= parts.linears(weights, theirs, ours, {"self_norm": "ln_1", "feed_norm": "ln_2"})
        for name, place in CONV1D.items():
            weight = weights.take(f"{theirs}.{place}.weight")
            found[f"{ours}.{name}weight"] = weight.mT.contiguous()
            found[f"{ours}.{name}bias"] = weights.take(f"{theirs}.{place}.bias")
    return found
