"""`load` and `dump` of diffusers' blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.interop.blocks import ResidualAttention
from intently.interop.diffusers.processor import PLAIN, WITHOUT_QK_NORM, scale_of
from intently.interop.foreign import (
    assemble,
    check_kind,
    check_options,
    check_plain,
    multi_head,
    read_norm,
    refuse,
    separate,
    tensors_of,
)
from intently.nn import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
)
from intently.nn.image.attention import ImageAttention, SpatialTransformer
from intently.nn.linear import Linear
from intently.nn.weights.loading import Map, NamedTensors, fill, tensors

if TYPE_CHECKING:
    from diffusers.models.attention import BasicTransformerBlock
    from diffusers.models.attention_processor import Attention as TheirAttention
    from diffusers.models.transformers.transformer_2d import Transformer2DModel


@torch.inference_mode(False)
def load(foreign: TheirAttention | BasicTransformerBlock | Transformer2DModel) -> nn.Module:
    """Return our block with the weights of diffusers', in the same train or eval mode.

    An `Attention` becomes a `MultiHeadAttention`; with a group norm before it, as for images, an
    `ImageAttention`; with a norm of the context, dropout, a residual or a divisor, a
    `ResidualAttention`. A `BasicTransformerBlock` becomes an `EncoderLayer`, or a `DecoderLayer`
    whose states are the context; a `Transformer2DModel` of images, as U-Nets hold many, a
    `SpatialTransformer`. The module itself is not changed. Raises `KindError` for other modules,
    `ArgumentError` for options that ours cannot have, `CheckpointError` naming parameters left
    over.

    >>> import torch
    >>> from diffusers.models.attention_processor import Attention
    >>> theirs, x = Attention(8, heads=2, dim_head=4), torch.randn(1, 5, 8)
    >>> bool(torch.allclose(load(theirs)(x), theirs(x), atol=1e-6))
    True
    """
    from diffusers.models.attention import BasicTransformerBlock
    from diffusers.models.attention_processor import Attention as TheirAttention
    from diffusers.models.transformers.transformer_2d import Transformer2DModel

    check_kind(foreign, TheirAttention, BasicTransformerBlock, Transformer2DModel, verb="load")
    weights = tensors_of(foreign)
    if isinstance(foreign, Transformer2DModel):
        made = _spatial(foreign, weights)
    elif isinstance(foreign, BasicTransformerBlock):
        made = _layer(foreign, weights)
    else:
        made = _attention(foreign, weights)
    weights.finish()
    return made.train(foreign.training)


def _attention(
    theirs: Any, weights: NamedTensors
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


def _multi_head(theirs: Any, weights: NamedTensors) -> MultiHeadAttention:
    maps = {letter: weights.map(f"to_{letter}") for letter in "qkv"}
    maps["out"] = weights.map("to_out.0")
    d = theirs.to_q.out_features // theirs.heads
    options: dict[str, Any] = {}
    norms: dict[str, Tensor | None] = {}
    scale = scale_of(theirs)
    if scale not in (None, d**-0.5):
        options["scale"] = scale
    if theirs.norm_q is not None or theirs.norm_k is not None:
        options["qk_norm"] = _qk_norm(theirs, d)
        for letter in "qk":
            for kind in ("weight", "bias"):
                norms[f"{letter}_norm.{kind}"] = weights.optional(f"norm_{letter}.{kind}")
    return multi_head(
        maps,
        theirs.heads,
        (d, d),
        kv_heads=theirs.to_k.out_features // d,
        norms=norms,
        attention=AttentionOptions(**options),
    )


def _norm(theirs: Any, weights: NamedTensors, name: str) -> nn.Module | None:
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


def _layer(theirs: BasicTransformerBlock, weights: NamedTensors) -> EncoderLayer | DecoderLayer:
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
        "self_attention": _attention(theirs.attn1, weights.within("attn1")),
        "self_norm": _norm(theirs, weights, "norm1"),
    }
    if theirs.attn2 is not None:
        parts["cross_attention"] = _attention(theirs.attn2, weights.within("attn2"))
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


def _feed_forward(net: Any, weights: NamedTensors) -> FeedForward | GatedFeedForward:
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
    up, down = weights.map("0.proj"), weights.map("2")
    weights.finish()
    gated = kind is GatedFeedForward
    if gated:  # diffusers stores up before gate, we store gate before up
        up = Map(*(None if x is None else torch.cat(x.chunk(2)[::-1]) for x in up))  # pyright: ignore
    p, bias = net[1].p, down.bias is not None
    return fill(
        lambda: kind(last.out_features, last.in_features, p, activation=activation, bias=bias),
        tensors({"gate_up" if gated else "up": up, "down": down}),
    )


def _spatial(theirs: Any, weights: NamedTensors) -> SpatialTransformer:
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
        layers.append(_layer(block, part))
        part.finish()
        context_width = None if block.attn2 is None else block.attn2.to_k.in_features
    project_out = _projection(theirs.proj_out, (width, c), weights.within("proj_out"))
    with torch.device("meta"):
        made = SpatialTransformer(c, 1, 1, context_width=context_width)
    assert norm is not None
    made.norm, made.layers = norm, nn.ModuleList(layers)
    made.project_in, made.project_out = project_in, project_out
    return made


def _projection(theirs: nn.Module, widths: tuple[int, int], weights: NamedTensors) -> Linear:
    """Read a linear map, which may be a 1 × 1 convolution in diffusers."""
    check_kind(theirs, nn.Linear, nn.Conv2d, verb=f"load({weights.source})")
    weight, bias = weights.take("weight").flatten(1), weights.optional("bias")
    weights.finish()
    return fill(lambda: Linear(*widths, bias is not None), Map(weight, bias)._asdict())


@torch.inference_mode(False)
def dump(ours: MultiHeadAttention | ImageAttention | ResidualAttention) -> TheirAttention:
    """Return diffusers' `Attention` with the weights of our block, in the same train or eval mode.

    Raises `KindError` for other modules, `ArgumentError` for what diffusers cannot compute (shared
    key heads, values of a different width, dropout of weights, the mask, bias or positions of a
    block).

    >>> theirs = dump(MultiHeadAttention(8, 2))
    >>> theirs.to_q.bias.shape, theirs.heads
    (torch.Size([8]), 2)
    """
    from diffusers.models.attention_processor import Attention as TheirAttention

    check_kind(ours, MultiHeadAttention, ImageAttention, ResidualAttention, verb="dump")
    if isinstance(ours, ImageAttention):
        norm = None if type(ours.norm) is nn.Identity else ours.norm
        around = ResidualAttention(ours.attention, norm=norm, residual=ours.residual)
    else:
        around = ours if isinstance(ours, ResidualAttention) else ResidualAttention(ours)
    inner, weights = around.attention, tensors_of(around, "ours")
    norms = {
        "group_norm": (around.norm, "norm"),
        "norm_cross": (around.context_norm, "context_norm"),
        "norm_q": (inner.q_norm, "attention.q_norm"),
        "norm_k": (inner.k_norm, "attention.k_norm"),
    }
    options = _options(inner) | _norm_options(around)
    found = {
        f"to_{name[0]}.{name[2:]}": x for name, x in separate(inner, weights, "attention.").items()
    }
    for kind in ("weight", "bias"):
        found[f"to_out.0.{kind}"] = weights.optional(f"attention.out_{kind}")
        for theirs, (_, name) in norms.items():
            found[f"{theirs}.{kind}"] = weights.optional(f"{name}.{kind}")
    options |= {
        "bias": found["to_q.bias"] is not None,
        "out_bias": found["to_out.0.bias"] is not None,
    }
    weights.finish()

    def make() -> TheirAttention:
        made = TheirAttention(**options)
        for name, (norm, _) in norms.items():
            if norm is not None:
                getattr(made, name).eps = norm.eps
        return made

    return fill(make, found).train(ours.training)


def _options(inner: MultiHeadAttention) -> dict[str, Any]:
    """Return the options of our block in diffusers' terms."""
    own = inner.attention
    options = ("score", "mask", "bias", "positions", "softcap", "sinks")
    check_plain(inner, options, "diffusers' Attention")
    out_width, scales = len(inner.out_weight), (None, 1.0, inner.d**-0.5)
    check_options(
        "MultiHeadAttention",
        (
            "projections.out_width",
            out_width == inner.width,
            f"width={inner.width}",
            out_width,
            "diffusers ties it to the width of the heads",
        ),
        ("head_widths", inner.d == inner.e, "d = e", (inner.d, inner.e), "diffusers has one width"),
        ("dropout", not inner.dropout, "0", inner.dropout, "diffusers drops outputs, not weights"),
        ("attention.scale", own.scale in scales, "1 or 1/√d", own.scale, "diffusers has no other"),
        (
            "attention.scale",
            own.scale != 1 or inner.q_norm is None,
            "1/√d beside qk_norm",
            1,
            "diffusers' processor without scale passes over norms",
        ),
    )
    return {
        "query_dim": inner.width,
        "cross_attention_dim": None if inner.context_width == inner.width else inner.context_width,
        "heads": inner.heads,
        "dim_head": inner.d,
        "scale_qk": own.scale != 1 or inner.d == 1,
    }


def _norm_options(around: ResidualAttention) -> dict[str, Any]:
    """Return the options of the norms, the residual and dropout in diffusers' terms."""
    options: dict[str, Any] = {
        "dropout": around.dropout,
        "residual_connection": around.residual,
        "rescale_output_factor": around.divisor,
    }
    if around.norm is not None:
        check_kind(around.norm, nn.GroupNorm, verb="dump(….norm)")
        options["norm_num_groups"] = around.norm.num_groups
    if isinstance(around.context_norm, nn.GroupNorm):
        options["cross_attention_norm"] = "group_norm"
        options["cross_attention_norm_num_groups"] = around.context_norm.num_groups
    elif around.context_norm is not None:
        check_kind(around.context_norm, nn.LayerNorm, verb="dump(….context_norm)")
        options["cross_attention_norm"] = "layer_norm"
    q_norm = around.attention.q_norm
    if q_norm is not None:
        check_kind(q_norm, nn.LayerNorm, nn.RMSNorm, verb="dump(….qk_norm)")
        options["qk_norm"] = "rms_norm" if isinstance(q_norm, nn.RMSNorm) else "layer_norm"
        options["elementwise_affine"] = q_norm.weight is not None
    return options
