"""`load` and `dump` of diffusers' blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.errors import ArgumentError, build
from intently.interop.blocks import ResidualAttention
from intently.interop.diffusers.processor import PLAIN, WITH_QK_NORM, scale_of
from intently.interop.transfer import (
    Rows,
    assemble,
    check_kind,
    check_options,
    check_plain,
    like_norm,
    rows,
    swapped,
    tensors_of,
    transfer,
    under,
)
from intently.nn import (
    AttentionOptions,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
    Projections,
)
from intently.nn.image.attention import ImageAttention, SpatialTransformer
from intently.nn.linear import Linear

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
    theirs, source = tensors_of(foreign), type(foreign).__name__
    read: Any = _attention
    if isinstance(foreign, BasicTransformerBlock | Transformer2DModel):
        read = _spatial if isinstance(foreign, Transformer2DModel) else _layer
    with torch.device("meta"):
        ours, table = read(foreign, source)
    return transfer(ours, table, theirs, source, _gate_first).train(foreign.training)


def _attention(theirs: Any, source: str) -> tuple[nn.Module, Rows]:
    """The counterpart of an `Attention` with its norms and its residual."""
    processor, spatial = type(theirs.processor).__name__, theirs.spatial_norm
    check_options(
        type(theirs).__name__,
        ("processor", processor, PLAIN, "what it computes is not in the module's parameters"),
        ("spatial_norm", spatial and type(spatial).__name__, None, ANOTHER),
        ("pre_only", theirs.to_out is None, False, "our block has an output projection"),
        ("only_cross_attention", theirs.to_k is None, False, "our block projects its own context"),
    )
    norm, context_norm = (_norm(theirs, name, source) for name in ("group_norm", "norm_cross"))
    inner, residual = _multi_head(theirs), theirs.residual_connection
    dropout, divisor = theirs.to_out[1].p, theirs.rescale_output_factor
    inside = context_norm is None and dropout == 0 and divisor == 1
    if inside and norm is None and not residual:
        return inner, INNER
    if inside and norm is not None:
        block = ImageAttention(inner.width, inner.heads, head_width=inner.d)
        block.norm, block.attention, block.residual = norm, inner, residual
    else:
        block = ResidualAttention(
            inner,
            norm=norm,
            context_norm=context_norm,
            dropout=dropout,
            residual=residual,
            divisor=divisor,
        )
    return block, AROUND


ANOTHER = "it needs another input on every call"
INNER = rows("{q,k,v}_ to_{q,k,v}.\n out_ to_out.0.\n {q,k}_norm. norm_{q,k}.")
AROUND = rows("{norm,context_norm}. {group_norm,norm_cross}.") + under("attention.", "", INNER)
"""Our names and theirs, of attention alone and with what is around it."""


def _multi_head(theirs: Any) -> MultiHeadAttention:
    d, maps = theirs.to_q.out_features // theirs.heads, (theirs.to_q, theirs.to_k, theirs.to_v)
    options: dict[str, Any] = {}
    if (scale := scale_of(theirs)) not in (None, d**-0.5):
        options["scale"] = scale
    if theirs.norm_q is not None or theirs.norm_k is not None:
        options["qk_norm"] = _qk_norm(theirs, d)
    out = theirs.to_out[0]
    return MultiHeadAttention(
        theirs.to_q.in_features,
        theirs.heads,
        kv_heads=theirs.to_k.out_features // d,
        context_width=theirs.to_k.in_features,
        head_widths=(d, d),
        attention=AttentionOptions(**options),
        projections=Projections(
            bias=any(x.bias is not None for x in maps),
            out_bias=out.bias is not None,
            out_width=out.out_features,
        ),
    )


def _norm(theirs: Any, name: str, source: str) -> nn.Module | None:
    """A copy of the norm of this name; None if there is none."""
    norm = getattr(theirs, name)
    return norm and like_norm(norm, f"{source}.{name}", nn.GroupNorm, nn.LayerNorm)


def _qk_norm(theirs: Any, d: int) -> Callable[[int], nn.Module]:
    """Return the norm of queries and keys, applied to each head."""
    from diffusers.models.normalization import RMSNorm

    name, processor = type(theirs).__name__, type(theirs.processor).__name__
    check_options(name, ("processor", processor, WITH_QK_NORM, "it passes over norm_q and norm_k"))
    q, k = theirs.norm_q, theirs.norm_k
    kinds = {(type(norm), _width(norm), getattr(norm, "eps", None)) for norm in (q, k)}
    kind, width, eps = kinds.pop()
    if kinds or kind not in (nn.LayerNorm, RMSNorm) or width != d or eps is None:
        expected = f"the same layer or RMS norm of each head, d={d}"
        got = f"{type(q).__name__} of {_width(q)} and {type(k).__name__} of {_width(k)}"
        cause = "our block has no norms across heads"
        raise build(ArgumentError, f"{name}.qk_norm", expected, got, cause)
    affine = q.weight is not None
    if kind is RMSNorm:
        return partial(nn.RMSNorm, eps=eps, elementwise_affine=affine)
    return partial(nn.LayerNorm, eps=eps, elementwise_affine=affine, bias=q.bias is not None)


def _width(norm: Any) -> int | None:
    shape = getattr(norm, "normalized_shape", None) or getattr(norm, "dim", None)
    return shape[0] if isinstance(shape, tuple) else None


def _layer(theirs: Any, source: str) -> tuple[nn.Module, Rows]:
    """The counterpart of a `BasicTransformerBlock`: attentions, norms and feed-forward."""
    net, order = theirs.ff.net, "our layers attend to themselves, then to a context"
    kind = "a fuser (GLIGEN)" if hasattr(theirs, "fuser") else "default"
    positions, chunk = theirs.positional_embeddings, theirs._chunk_size
    check_options(
        type(theirs).__name__,
        ("norm_type", theirs.norm_type, "layer_norm", ANOTHER),
        ("only_cross_attention", theirs.only_cross_attention, False, order),
        ("double_self_attention", theirs.double_self_attention, False, order),
        ("positional_embeddings", positions, None, "our layers add no positions"),
        ("attention_type", kind, "default", "it needs objects as another input"),
        ("set_chunk_feed_forward", chunk, None, "ours computes the feed-forward in one piece"),
        ("final_dropout", net[3].p if len(net) > 3 else 0, 0, "there is none in our layer"),
    )
    parts, table = {}, Rows()
    for ours, name, norm in (("self", "attn1", "norm1"), ("cross", "attn2", "norm2")):
        attention = getattr(theirs, name)
        if attention is not None:
            parts[f"{ours}_attention"], names = _attention(attention, f"{source}.{name}")
            parts[f"{ours}_norm"] = _norm(theirs, norm, source)
            table += under(f"{ours}_attention.", f"{name}.", names)
            table += rows(f"{ours}_norm. {norm}.")
    parts["feed_norm"], parts["feed_forward"] = _norm(theirs, "norm3", source), _feed_forward(net)
    table += rows("""
        feed_norm.                norm3.
        feed_forward.up.          ff.net.0.proj.
        feed_forward.gate_up.     ff.net.0.proj.
        feed_forward.down.        ff.net.2.
    """)
    return assemble(theirs.dim, parts), table


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


def _feed_forward(net: Any) -> FeedForward | GatedFeedForward:
    first, last = net[0], net[2]
    name = type(first).__name__
    if name == "LinearActivation":
        name += f" of {type(first.activation).__name__}"
    cause = "what it computes is not known"
    check_options("BasicTransformerBlock", ("activation_fn", name, [*_ACTIVATIONS], cause))
    kind, activation = _ACTIVATIONS[name]
    if name == "GELU":
        activation = partial(F.gelu, approximate=first.approximate)
    width, inner, bias = last.out_features, last.in_features, last.bias is not None
    return kind(width, inner, net[1].p, activation=activation, bias=bias)


def _gate_first(name: str, x: Tensor) -> Tensor:
    """Diffusers stores up before gate, we store gate before up."""
    return torch.cat(x.chunk(2)[::-1]) if ".gate_up." in name else x


def _spatial(theirs: Any, source: str) -> tuple[nn.Module, Rows]:
    """The counterpart of a `Transformer2DModel` of images: norm, projections, layers."""
    from diffusers.models.attention import BasicTransformerBlock

    c, width, config = theirs.in_channels, theirs.inner_dim, theirs.config
    as_is = "our block takes images as they are"
    check_options(
        type(theirs).__name__,
        ("patch_size", config.patch_size if theirs.is_input_patches else None, None, as_is),
        ("num_vector_embeds", config.num_vector_embeds, None, as_is),
        ("out_channels", theirs.out_channels, c, "the image is added to the output"),
    )
    layers, context_width = [], None
    table = rows("norm. norm.\n project_{in,out}. proj_{in,out}.")
    for i, block in enumerate(theirs.transformer_blocks):
        name = f"transformer_blocks.{i}"
        check_kind(block, BasicTransformerBlock, verb=f"load({source}.{name})")
        layer, names = _layer(block, f"{source}.{name}")
        layers.append(layer)
        table += under(f"layers.{i}.", f"{name}.", names)
        context_width = None if block.attn2 is None else block.attn2.to_k.in_features
    ours = SpatialTransformer(c, 1, 1, context_width=context_width)
    ours.norm = like_norm(theirs.norm, f"{source}.norm", nn.GroupNorm, nn.LayerNorm)
    ours.layers = nn.ModuleList(layers)
    for side, widths in (("in", (c, width)), ("out", (width, c))):
        linear = getattr(theirs, f"proj_{side}")
        check_kind(linear, nn.Linear, nn.Conv2d, verb=f"load({source}.proj_{side})")
        setattr(ours, f"project_{side}", Linear(*widths, linear.bias is not None))
    return ours, table


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
    inner, state = around.attention, tensors_of(around, "ours")
    options = _options(inner) | _norm_options(around)
    table = rows("attention.qkv_ to_q.+to_k.+to_v.") if inner.fused else []
    with torch.device("meta"):
        theirs = TheirAttention(**options)
    theirs = transfer(theirs, swapped(table + AROUND), state, type(ours).__name__)
    norms = (around.norm, around.context_norm, inner.q_norm, inner.k_norm)
    for name, norm in zip(("group_norm", "norm_cross", "norm_q", "norm_k"), norms):
        if norm is not None:
            getattr(theirs, name).eps = norm.eps
    return theirs.train(ours.training)


def _options(inner: MultiHeadAttention) -> dict[str, Any]:
    """The options of our block in diffusers' terms."""
    scale, d, width = inner.attention.scale, inner.d, inner.width
    check_plain(
        inner, ("score", "mask", "bias", "positions", "softcap", "sinks"), "diffusers' Attention"
    )
    check_options(
        "MultiHeadAttention",
        (
            "projections.out_width",
            len(inner.out_weight),
            width,
            "diffusers ties it to the width of the heads",
        ),
        ("head_widths", (d, inner.e), (d, d), "diffusers has one width, d = e"),
        ("dropout", inner.dropout, 0, "diffusers drops outputs, not weights"),
        ("attention.scale", scale, [None, 1.0, d**-0.5], "diffusers has no other"),
    )
    if scale == 1 and inner.q_norm is not None:
        cause = "diffusers' processor without scale passes over norms"
        raise build(
            ArgumentError, "MultiHeadAttention.attention.scale", "1/√d beside qk_norm", 1, cause
        )
    return {
        "query_dim": width,
        "cross_attention_dim": None if inner.context_width == width else inner.context_width,
        "heads": inner.heads,
        "dim_head": d,
        "scale_qk": scale != 1 or d == 1,
        "bias": inner.projections.bias,
        "out_bias": inner.projections.out_bias,
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
