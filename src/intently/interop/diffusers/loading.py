"""`load` and `dump` of diffusers' blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from intently.interop.diffusers.reading import attention, layer, spatial
from intently.interop.residual_attention import ResidualAttention
from intently.interop.weights import Weights, check_kind, check_options, check_plain, fill, separate
from intently.modules import MultiHeadAttention
from intently.modules.image.attention import ImageAttention

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
    weights = Weights.of(foreign)
    if isinstance(foreign, Transformer2DModel):
        made = spatial(foreign, weights)
    elif isinstance(foreign, BasicTransformerBlock):
        made = layer(foreign, weights)
    else:
        made = attention(foreign, weights)
    weights.finish()
    return made.train(foreign.training)


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
    inner, weights = around.attention, Weights.of(around, "ours")
    norms = {
        "group_norm": (around.norm, "norm"),
        "norm_cross": (around.context_norm, "context_norm"),
        "norm_q": (inner.q_norm, "attention.q_norm"),
        "norm_k": (inner.k_norm, "attention.k_norm"),
    }
    options = _options(inner) | _norm_options(around)
    tensors = {
        f"to_{name[0]}.{name[2:]}": x for name, x in separate(inner, weights, "attention.").items()
    }
    for kind in ("weight", "bias"):
        tensors[f"to_out.0.{kind}"] = weights.optional(f"attention.out_{kind}")
        for theirs, (_, name) in norms.items():
            tensors[f"{theirs}.{kind}"] = weights.optional(f"{name}.{kind}")
    options |= {
        "bias": tensors["to_q.bias"] is not None,
        "out_bias": tensors["to_out.0.bias"] is not None,
    }
    weights.finish()

    def make() -> TheirAttention:
        made = TheirAttention(**options)
        for name, (norm, _) in norms.items():
            if norm is not None:
                getattr(made, name).eps = norm.eps
        return made

    return fill(make, tensors).train(ours.training)


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
