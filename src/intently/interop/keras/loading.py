"""`load`: Keras's attention layers as our block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import intently.masks as masks
from intently.errors import CheckpointError, build
from intently.interop.keras.layer import copied, self_attention
from intently.interop.weights import Weights, check_kind, check_options, fill
from intently.modules import AttentionOptions, MultiHeadAttention, Projections

if TYPE_CHECKING:
    import keras


@torch.inference_mode(False)
def load(foreign: keras.layers.Layer) -> MultiHeadAttention:
    """Return our block with the weights of a Keras layer that was built, on any backend, in eval.

    The layer is a `MultiHeadAttention` or `GroupQueryAttention` of Keras, or our `SelfAttention`.
    Where Keras is called with ``(query, value)``, ours is with ``(query, context=value)``; where
    `SelfAttention` is with ``causal_mask=True``, ours is with ``mask=it.causal()``. Raises
    `KindError` for other layers, `ArgumentError` for options that ours cannot have (more than one
    attention axis, keys and values of different widths) and `CheckpointError` if the layer was not
    built or has weights left over.
    """
    import keras

    kinds = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention, self_attention()
    check_kind(foreign, *kinds, verb="load")
    name = type(foreign).__name__
    if not foreign.built:
        raise build(
            CheckpointError,
            name,
            "a layer with weights",
            "one that was not built",
            fix="call it once, or layer.build(query_shape, value_shape)",
        )
    config = foreign.get_config()
    axes = config.get("attention_axes") or (1,)
    weights = Weights(
        {
            "/".join(v.path.split("/")[-2:]): copied(v).requires_grad_(v.trainable)
            for v in foreign.weights
        },
        name,
    )
    if isinstance(foreign, self_attention()):
        return _fused(config["n_heads"], weights)
    return _filled(name, config, tuple(axes), weights)


def _fused(heads: int, weights: Weights) -> MultiHeadAttention:
    """Return our block of a `SelfAttention`, whose fused projection has our row order."""
    joint, out = (weights.take(f"{name}/kernel") for name in _FUSED)
    bias, out_bias = (weights.optional(f"{name}/bias") for name in _FUSED)
    weights.finish()
    width, out_width = len(joint), len(out.T)
    projections = Projections(
        bias=bias is not None,
        out_bias=out_bias is not None,
        out_width=None if out_width == width else out_width,
    )
    d = out_width // heads
    return fill(
        lambda: MultiHeadAttention(width, heads, head_widths=(d, d), projections=projections),
        {
            "qkv_weight": joint.T.contiguous(),
            "qkv_bias": bias,
            "out_weight": out.T.contiguous(),
            "out_bias": out_bias,
        },
    ).eval()


def _filled(
    name: str, config: dict[str, Any], axes: tuple[int, ...], weights: Weights
) -> MultiHeadAttention:
    q, k, v, out = (weights.take(f"{part}/kernel") for part in (*_INPUTS, "attention_output"))
    one_axis, same, wide = axes == (1,) and q.ndim == 3, len(k) == len(v), tuple(out.shape[2:])
    wants = f"keys as wide as values, {len(v)}"
    check_options(
        name,
        ("attention_axes", one_axis, "(1,), the steps of (b, t, c)", axes, "ours has one axis"),
        ("key", same, wants, len(k), "our block takes both from one context"),
        ("output_shape", len(wide) == 1, "one width", wide, "ours is (b, t, c)"),
    )
    tensors: dict[str, Tensor | None] = {"out_weight": out.flatten(0, 1).T.contiguous()}
    for letter, part, kernel in zip("qkv", _INPUTS, (q, k, v)):
        tensors[f"{letter}_weight"] = kernel.flatten(1).T.contiguous()
        bias = weights.optional(f"{part}/bias")
        tensors[f"{letter}_bias"] = None if bias is None else bias.flatten()
    tensors["out_bias"] = weights.optional("attention_output/bias")
    weights.finish()
    width, heads, d, e = len(q), q.shape[1], q.shape[2], v.shape[2]
    window = config.get("sliding_window")
    own = AttentionOptions(
        mask=None if window is None else masks.window(window - 1, window - 1, offset=0)
    )
    projections = Projections(
        bias=tensors["q_bias"] is not None,
        out_bias=tensors["out_bias"] is not None,
        out_width=None if out.shape[2] == width else out.shape[2],
    )
    return fill(
        lambda: MultiHeadAttention(
            width,
            heads,
            kv_heads=k.shape[1],
            context_width=len(k),
            head_widths=(d, e),
            attention=own,
            projections=projections,
            dropout=config["dropout"],
        ),
        tensors,
    ).eval()


_INPUTS = ("query", "key", "value")
_FUSED = ("in_proj", "out_proj")
