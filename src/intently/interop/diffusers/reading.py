"""Reads diffusers' modules into our blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.interop.diffusers.processor import PLAIN, WITHOUT_QK_NORM, scale_of
from intently.interop.residual_attention import ResidualAttention
from intently.interop.weights import (
    Weights,
    assemble,
    check_kind,
    check_options,
    fill,
    read_norm,
    refuse,
)
from intently.modules import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    Projections,
)
from intently.modules.image.attention import ImageAttention, SpatialTransformer
from intently.modules.linear import Linear

if TYPE_CHECKING:
    from diffusers.models.attention import BasicTransformerBlock


def attention(
    theirs: Any, weights: Weights
) -> MultiHeadAttention | ImageAttention | ResidualAttention:
    """Read an `Attention` with its norms and its residual."""
    name, processor = type(theirs).__name__, type(theirs.processor).__name__
    out, k = theirs.to_out is not None, theirs.to_k is not None
    check_options(
        name,
        (
            "processor",
            processor in PLAIN,
            f"one of {', '.join(PLAIN)}",
            processor,
            "what it computes is not in the module's parameters",
        ),
        (
            "spatial_norm",
            theirs.spatial_norm is None,
            "None",
            "a norm",
            "it needs another input on every call",
        ),
        ("pre_only", out, "an output projection", "none", "our block has one"),
        ("only_cross_attention", k, "False", True, "our block projects its own context"),
    )
    norm, context_norm = (_norm(theirs, weights, name) for name in ("group_norm", "norm_cross"))
    inner = _multi_head(theirs, weights)
    weights.finish()
    dropout, divisor = theirs.to_out[1].p, theirs.rescale_output_factor
    inside = context_norm is None and dropout == 0 and divisor == 1
    if inside and norm is None and not theirs.residual_connection:
        return inner
    if inside and norm is not None:
        with torch.device("meta"):
            image = ImageAttention(inner.width, inner.heads, head_width=inner.d)
        image.norm, image.attention = norm, inner
        image.residual = theirs.residual_connection
        return image
    return ResidualAttention(
        inner,
        norm=norm,
        context_norm=context_norm,
        dropout=dropout,
        residual=theirs.residual_connection,
        divisor=divisor,
    )


def _multi_head(theirs: Any, weights: Weights) -> MultiHeadAttention:
    width, heads = theirs.to_q.in_features, theirs.heads
    d = theirs.to_q.out_features // heads
    tensors: dict[str, Any] = {
        "out_weight": weights.take("to_out.0.weight"),
        "out_bias": weights.optional("to_out.0.bias"),
    }
    for letter in "qkv":
        tensors[f"{letter}_weight"] = weights.take(f"to_{letter}.weight")
        tensors[f"{letter}_bias"] = weights.optional(f"to_{letter}.bias")
    bias = any(tensors[f"{letter}_bias"] is not None for letter in "qkv")
    for letter in "qkv":
        if bias and tensors[f"{letter}_bias"] is None:
            weight = tensors[f"{letter}_weight"]
            zeros = weight.new_zeros(len(weight))
            tensors[f"{letter}_bias"] = zeros.requires_grad_(weight.requires_grad)
    out = len(tensors["out_weight"])
    projections = Projections(
        bias=bias, out_bias=tensors["out_bias"] is not None, out_width=None if out == width else out
    )
    options: dict[str, Any] = {}
    scale = scale_of(theirs)
    if scale not in (None, d**-0.5):
        options["scale"] = scale
    if theirs.norm_q is not None or theirs.norm_k is not None:
        options["qk_norm"] = _qk_norm(theirs, d)
        for ours, their in (("q_norm", "norm_q"), ("k_norm", "norm_k")):
            for kind in ("weight", "bias"):
                tensors[f"{ours}.{kind}"] = weights.optional(f"{their}.{kind}")
    return fill(
        lambda: MultiHeadAttention(
            width,
            heads,
            kv_heads=theirs.to_k.out_features // d,
            context_width=theirs.to_k.in_features,
            head_widths=None if d * heads == width else (d, d),
            attention=AttentionOptions(**options),
            projections=projections,
        ),
        tensors,
    )


def _norm(theirs: Any, weights: Weights, name: str) -> nn.Module | None:
    """Read the norm of this name; None if there is none."""
    norm, own = getattr(theirs, name), weights.within(name)
    return norm and read_norm(norm, own, nn.GroupNorm, nn.LayerNorm)


def _qk_norm(theirs: Any, d: int) -> Callable[[int], nn.Module]:
    """Return the norm of queries and keys, applied to each head."""
    from diffusers.models.normalization import RMSNorm

    name = type(theirs).__name__
    q, k = theirs.norm_q, theirs.norm_k
    if type(theirs.processor).__name__ in WITHOUT_QK_NORM:
        expected, got = "one that applies norm_q and norm_k", type(theirs.processor).__name__
        refuse(name, "processor", expected, got, "it passes over them")
    kinds = {(type(norm), _width(norm), getattr(norm, "eps", None)) for norm in (q, k)}
    kind, width, eps = kinds.pop()
    if kinds or kind not in (nn.LayerNorm, RMSNorm) or width != d or eps is None:
        expected = f"the same layer or RMS norm of each head, d={d}"
        got = f"{type(q).__name__} of {_width(q)} and {type(k).__name__} of {_width(k)}"
        refuse(name, "qk_norm", expected, got, "our block has no norms across heads")
    affine = q.weight is not None
    if kind is RMSNorm:
        return partial(nn.RMSNorm, eps=eps, elementwise_affine=affine)
    bias = q.bias is not None
    return partial(nn.LayerNorm, eps=eps, elementwise_affine=affine, bias=bias)


def _width(norm: Any) -> int | None:
    shape = getattr(norm, "normalized_shape", None) or getattr(norm, "dim", None)
    return shape[0] if isinstance(shape, tuple) else None


def layer(theirs: BasicTransformerBlock, weights: Weights) -> EncoderLayer | DecoderLayer:
    """Read a `BasicTransformerBlock`: its attentions, its feed-forward, its norms."""
    name = type(theirs).__name__
    net, chunk = theirs.ff.net, theirs._chunk_size
    final = net[3].p if len(net) > 3 else 0
    check_options(
        name,
        (
            "norm_type",
            theirs.norm_type == "layer_norm",
            '"layer_norm"',
            repr(theirs.norm_type),
            "adaptive norms need another input on every call",
        ),
        *(
            (
                option,
                not getattr(theirs, option),
                "False",
                True,
                "our layers attend to themselves, then to a context",
            )
            for option in ("only_cross_attention", "double_self_attention")
        ),
        (
            "positional_embeddings",
            theirs.pos_embed is None,
            "None",
            repr(theirs.positional_embeddings),
            "our layers add no positions",
        ),
        (
            "attention_type",
            not hasattr(theirs, "fuser"),
            '"default"',
            "a fuser (GLIGEN)",
            "it needs objects as another input",
        ),
        (
            "set_chunk_feed_forward",
            chunk is None,
            "None",
            chunk,
            "ours computes the feed-forward in one piece",
        ),
        ("final_dropout", not final, "False, or dropout 0", final, "there is none in our layer"),
    )
    parts: dict[str, nn.Module | None] = {
        "self_attention": attention(theirs.attn1, weights.within("attn1")),
        "self_norm": _norm(theirs, weights, "norm1"),
    }
    if theirs.attn2 is not None:
        parts["cross_attention"] = attention(theirs.attn2, weights.within("attn2"))
        parts["cross_norm"] = _norm(theirs, weights, "norm2")
    parts["feed_norm"] = _norm(theirs, weights, "norm3")
    parts["feed_forward"] = _feed_forward(net, weights.within("ff.net"))
    return assemble(theirs.dim, parts)


def approximate_gelu(x: Tensor) -> Tensor:
    """Return x · σ(1.702 x). Source: Hendrycks & Gimpel 2016, section 2."""
    return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS: dict[str, tuple[type[FeedForward | GatedFeedForward], Any]] = {
    "GELU": (FeedForward, F.gelu),
    "ApproximateGELU": (FeedForward, approximate_gelu),
    "GEGLU": (GatedFeedForward, F.gelu),
    "SwiGLU": (GatedFeedForward, F.silu),
    "LinearActivation of SiLU": (FeedForward, F.silu),
}


def _feed_forward(net: Any, weights: Weights) -> FeedForward | GatedFeedForward:
    first, last = net[0], net[2]
    name = type(first).__name__
    if name == "LinearActivation":
        name += f" of {type(first.activation).__name__}"
    if name not in _ACTIVATIONS:
        expected, cause = f"one of {', '.join(_ACTIVATIONS)}", "what it computes is not known"
        refuse("BasicTransformerBlock", "activation_fn", expected, name, cause)
    kind, activation = _ACTIVATIONS[name]
    if name == "GELU":
        activation = partial(F.gelu, approximate=first.approximate)
    up = {part: weights.optional(f"0.proj.{part}") for part in ("weight", "bias")}
    gated = kind is GatedFeedForward
    if gated:  # diffusers stores up before gate, we store gate before up
        up = {part: None if x is None else torch.cat(x.chunk(2)[::-1]) for part, x in up.items()}
    tensors = {f"{'gate_up' if gated else 'up'}.{part}": x for part, x in up.items()}
    tensors |= {f"down.{part}": weights.optional(f"2.{part}") for part in ("weight", "bias")}
    weights.finish()
    bias = tensors["down.bias"] is not None
    return fill(
        lambda: kind(
            last.out_features, last.in_features, net[1].p, activation=activation, bias=bias
        ),
        tensors,
    )


def spatial(theirs: Any, weights: Weights) -> SpatialTransformer:
    """Read a `Transformer2DModel` of images: its norm, its projections, its layers."""
    from diffusers.models.attention import BasicTransformerBlock

    name = type(theirs).__name__
    c, width, out = theirs.in_channels, theirs.inner_dim, theirs.out_channels
    inputs = (("patch_size", "patches"), ("num_vector_embeds", "vectorized"))
    check_options(
        name,
        *(
            (
                option,
                not getattr(theirs, f"is_input_{kind}"),
                "None",
                theirs.config.get(option),
                "our block takes images as they are",
            )
            for option, kind in inputs
        ),
        ("out_channels", out == c, f"in_channels={c}", out, "the image is added to the output"),
    )
    norm = _norm(theirs, weights, "norm")
    project_in = _projection(theirs.proj_in, (c, width), weights.within("proj_in"))
    layers, context_width = [], None
    for i, block in enumerate(theirs.transformer_blocks):
        part = weights.within(f"transformer_blocks.{i}")
        check_kind(block, BasicTransformerBlock, verb=f"load({part.source})")
        layers.append(layer(block, part))
        part.finish()
        context_width = None if block.attn2 is None else block.attn2.to_k.in_features
    project_out = _projection(theirs.proj_out, (width, c), weights.within("proj_out"))
    with torch.device("meta"):
        made = SpatialTransformer(c, 1, 1, context_width=context_width)
    assert norm is not None
    made.norm, made.layers = norm, nn.ModuleList(layers)
    made.project_in, made.project_out = project_in, project_out
    return made


def _projection(theirs: nn.Module, widths: tuple[int, int], weights: Weights) -> Linear:
    """Read a linear map, which may be a 1 × 1 convolution in diffusers."""
    check_kind(theirs, nn.Linear, nn.Conv2d, verb=f"load({weights.source})")
    weight, bias = weights.take("weight").flatten(1), weights.optional("bias")
    weights.finish()
    return fill(lambda: Linear(*widths, bias is not None), {"weight": weight, "bias": bias})
