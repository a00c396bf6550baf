"""GPT-2: learned positions, norms before, one fused projection stored the other way round.

Its linear maps are ``Conv1D``: weights (in, out), ours and PyTorch's are (out, in). Source: Radford
et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from typing import Any

from torch import nn

from intently.interop.transformers.models import Embeddings, TextModel
from intently.interop.transformers.parts import Tensors, activation, linear, norm
from intently.interop.transformers.stack import Layer, Stack
from intently.interop.weights import Weights
from intently.masks import causal
from intently.modules import AttentionOptions, FeedForward, MultiHeadAttention
from intently.modules.linear import Linear


def make(config: Any, headed: bool) -> TextModel:
    """Return the model of a ``GPT2Config``, without its weights."""
    c, h = config.hidden_size, config.num_attention_heads
    make_norm = norm(c, config.layer_norm_epsilon)

    def layer(i: int) -> Layer:
        scale = (c // h) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= i + 1
        return Layer(
            MultiHeadAttention(
                c,
                h,
                attention=AttentionOptions(mask=causal(), scale=scale),
                dropout=config.attn_pdrop,
            ),
            FeedForward(
                c, config.n_inner or 4 * c, activation=activation(config.activation_function)
            ),
            make_norm,
            dropout=config.resid_pdrop,
        )

    return TextModel(
        Embeddings(config.vocab_size, c, places=config.n_positions, dropout=config.embd_pdrop),
        Stack([layer(i) for i in range(config.num_hidden_layers)], make_norm()),
        Linear(c, config.vocab_size, bias=False) if headed else nn.Identity(),
    )


def read(config: Any, weights: Weights, headed: bool) -> Tensors:
    """Return the tensors of the model by our names."""
    base = "transformer." if headed else ""
    found: Tensors = {
        "embed.tokens.weight": weights.take(f"{base}wte.weight"),
        "embed.places.weight": weights.take(f"{base}wpe.weight"),
        **linear(weights, f"{base}ln_f", "stack.norm"),
    }
    if headed:
        found["head.weight"] = weights.take("lm_head.weight")
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{base}h.{i}", f"stack.layers.{i}"
        found |= linear(weights, f"{theirs}.ln_1", f"{ours}.attention_norm")
        found |= linear(weights, f"{theirs}.ln_2", f"{ours}.feed_norm")
        for place, name in (("attn.c_attn", "attention.qkv"), ("attn.c_proj", "attention.out")):
            found[f"{ours}.{name}_weight"] = weights.take(
                f"{theirs}.{place}.weight"
            ).mT.contiguous()
            found[f"{ours}.{name}_bias"] = weights.take(f"{theirs}.{place}.bias")
        for place, name in (("mlp.c_fc", "up"), ("mlp.c_proj", "down")):
            name = f"{ours}.feed_forward.{name}"
            found[f"{name}.weight"] = weights.take(f"{theirs}.{place}.weight").mT.contiguous()
            found[f"{name}.bias"] = weights.take(f"{theirs}.{place}.bias")
    return found
