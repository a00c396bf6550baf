"""`load` and `dump` between Keras's attention layers and our block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import intently.masks as masks
from intently.errors import CheckpointError, build
from intently.interop.keras.layer import copied, self_attention
from intently.interop.weights import (
    Weights,
    check_kind,
    check_options,
    check_plain,
    fill,
    learns,
    separate,
)
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


@torch.inference_mode(False)
def dump(ours: MultiHeadAttention) -> Any:
    """Return `SelfAttention`, built, with the weights of our block, on the backend of Keras.

    Frozen parameters are not ``trainable`` there. Raises `KindError` for other modules and
    `ArgumentError` for what that layer cannot compute: attention to a context, shared key heads,
    widths of its own, dropout, and any score, mask, bias, positions, norms, softcap or sinks.
    """
    check_kind(ours, MultiHeadAttention, verb="dump")
    _check_plain(ours)
    weights = Weights.of(ours, "ours")
    parts = separate(ours, weights)
    tensors: dict[str, Tensor] = {}
    for kind, theirs in (("weight", "kernel"), ("bias", "bias")):
        names = [f"{letter}_{kind}" for letter in "qkv"]
        own = {name: x for name in names if (x := parts[name]) is not None}
        if own:
            joint = torch.cat(list(own.values())).detach()
            name = f"in_proj/{theirs}"
            tensors[name] = joint.requires_grad_(learns(f"dump: {name}", own))
        if (out := weights.optional(f"out_{kind}")) is not None:
            tensors[f"out_proj/{theirs}"] = out
    weights.finish()
    layer = self_attention()(
        ours.heads,
        len(ours.out_weight),
        "in_proj/bias" in tensors,
        "out_proj/bias" in tensors,
        dtype=str(ours.out_weight.dtype).removeprefix("torch."),
    )
    layer.build((None, None, ours.width))
    for variable in layer.weights:
        x = tensors.pop("/".join(variable.path.split("/")[-2:]))
        array = (x.float() if x.dtype is torch.bfloat16 else x).detach().cpu().numpy()
        variable.assign(array.T)
        variable.trainable = x.requires_grad
    return layer


def _check_plain(ours: MultiHeadAttention) -> None:
    """Refuse options that `SelfAttention` cannot compute."""
    own = ours.attention
    options = ("score", "mask", "bias", "positions", "softcap", "qk_norm", "sinks")
    check_plain(ours, options, "SelfAttention")
    scales, out_width = (None, ours.d**-0.5), len(ours.out_weight)
    check_options(
        "MultiHeadAttention",
        ("attention.scale", own.scale in scales, "1/√d", own.scale, "SelfAttention has no other"),
        ("dropout", not ours.dropout, "0", ours.dropout, "there is none in SelfAttention"),
        (
            "context_width",
            ours.context_width == ours.width,
            f"width={ours.width}",
            ours.context_width,
            "SelfAttention has one input",
        ),
        (
            "head_widths",
            (ours.d * ours.heads, ours.e) == (out_width, ours.d),
            "d = e = out_width/heads",
            f"d={ours.d}, e={ours.e}, out_width={out_width}",
            "SelfAttention has one width, d_embd",
        ),
    )


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
