"""PyTorch's attention layers: `load` converts them to our blocks, `dump` converts back.

Where PyTorch's layers differ from ours in use:

* in its masks, True means *forbidden*; in ours, True means attend, and `mask` converts;
* their ``is_causal`` starts at the first key (top-left); `it.causal()` lets the last query see the
  last key, as a cache needs. The two agree where t = s; elsewhere write `it.causal(offset=0)`;
* a row that may attend to nothing is zero before the output bias here. There it is NaN; with
  ``need_weights=False`` it is the output bias as here, but NaN in eval mode under ``no_grad``. In
  that mode ``nn.TransformerEncoderLayer`` gives NaN, too, and ``nn.TransformerEncoder`` zeros;
* ``nn.TransformerEncoder`` in eval mode runs a nested-tensor fast path with
  ``src_key_padding_mask``, which writes zeros at padded steps; ours computes the outputs of padded
  queries, as theirs does in train mode;
* its inputs are (t, b, c) unless ``batch_first``; ours, and those of modules from `dump`, are
  always (b, t, c).

Weights are copied with dtype and device; dropout, train or eval mode and ``requires_grad`` are
kept.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, overload

import torch
from torch import Tensor, nn

from intently.core.masks import Mask, allowed
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.on_demand import listed
from intently.interop.blocks import Decoder, Encoder, EncoderDecoder, KeyValueAttention
from intently.interop.foreign import (
    assemble,
    check_hooks,
    check_kind,
    check_options,
    check_plain,
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
    MultiHeadAttention,
    Projections,
)
from intently.nn.weights.loading import NamedTensors, fill, learns

__all__ = ["dump", "load", "mask"]

__dir__ = listed(__name__)


def mask(
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    *,
    heads: int | None = None,
) -> Mask | None:
    """Return our mask, True where PyTorch's masks are False; None if both are None.

    ``attn_mask`` (t, s), or (b·h, t, s) together with ``heads``; ``key_padding_mask`` (b, s). Float
    masks may hold 0 and −∞ only: anything else is a bias. Raises `ArgumentError` otherwise.

    >>> print(mask(nn.Transformer.generate_square_subsequent_mask(3)).draw(3))
    █ · ·
    █ █ ·
    █ █ █
    """
    found: Mask | None = None
    if attn_mask is not None:
        if attn_mask.ndim == 3 and heads is not None and len(attn_mask) % heads == 0:
            attn_mask = attn_mask.unflatten(0, (-1, heads))
        elif attn_mask.ndim != 2:
            expected = "shape (t, s), or (b·h, t, s) with heads=h"
            raise build(ArgumentError, "attn_mask", expected, shape_of(attn_mask))
        found = allowed(_not_forbidden("attn_mask", attn_mask))
    if key_padding_mask is not None:
        if key_padding_mask.ndim != 2:
            raise build(
                ArgumentError, "key_padding_mask", "shape (b, s)", shape_of(key_padding_mask)
            )
        padded = allowed(_not_forbidden("key_padding_mask", key_padding_mask)[:, None, None])
        found = padded if found is None else found & padded
    return found


def _not_forbidden(name: str, theirs: Tensor) -> Tensor:
    if theirs.dtype is torch.bool:
        return ~theirs
    if not theirs.is_floating_point() or not ((theirs == 0) | theirs.isneginf()).all():
        raise build(
            ArgumentError,
            name,
            "a boolean tensor, or one of 0 and −inf",
            f"dtype {theirs.dtype}",
            "any other number is added to the scores",
            "pass them to the block as a bias",
        )
    return theirs == 0


@overload
def load(foreign: nn.MultiheadAttention) -> MultiHeadAttention | KeyValueAttention: ...
@overload
def load(foreign: nn.TransformerEncoderLayer) -> EncoderLayer: ...
@overload
def load(foreign: nn.TransformerDecoderLayer) -> DecoderLayer: ...
@overload
def load(foreign: nn.TransformerEncoder) -> Encoder: ...
@overload
def load(foreign: nn.TransformerDecoder) -> Decoder: ...
@overload
def load(foreign: nn.Transformer) -> EncoderDecoder: ...


@torch.inference_mode(False)
def load(foreign: nn.Module) -> nn.Module:
    """Return our block with the weights of PyTorch's, in the same train or eval mode.

    `nn.MultiheadAttention` becomes a `MultiHeadAttention`, whose keys and values come from one
    context; add_zero_attn, a key and a value of zeros, is a sink of logit 0. With bias_k and bias_v
    or kdim ≠ vdim it becomes a `KeyValueAttention`.
    Raises `KindError` for other modules, `ArgumentError` for options that ours cannot have and
    `CheckpointError` naming parameters that are missing or left over.

    >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> expected, _ = theirs(x, x, x)
    >>> bool(torch.allclose(load(theirs)(x), expected, atol=1e-6))
    True
    """
    check_kind(
        foreign,
        nn.MultiheadAttention,
        nn.TransformerEncoderLayer,
        nn.TransformerDecoderLayer,
        nn.TransformerEncoder,
        nn.TransformerDecoder,
        nn.Transformer,
        verb="load",
    )
    if isinstance(foreign, nn.Transformer):
        check_hooks(foreign)
        return EncoderDecoder(load(foreign.encoder), load(foreign.decoder)).train(foreign.training)
    if isinstance(foreign, nn.TransformerEncoder | nn.TransformerDecoder):
        return _stack(foreign).train(foreign.training)
    weights = tensors_of(foreign)
    if isinstance(foreign, nn.MultiheadAttention):
        made = _attention(foreign, weights)
    else:
        assert isinstance(foreign, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
        made = _layer(foreign, weights)
    weights.finish()
    return made.train(foreign.training)


def _stack(foreign: nn.TransformerEncoder | nn.TransformerDecoder) -> Encoder | Decoder:
    weights = tensors_of(foreign)
    for i in range(len(foreign.layers)):
        weights.within(f"layers.{i}")  # `load` of the layer checks them
    norm = foreign.norm and read_norm(foreign.norm, weights.within("norm"), nn.LayerNorm)
    weights.finish()
    layers: list[Any] = [load(layer) for layer in foreign.layers]  # pyright: ignore
    return (Encoder if isinstance(foreign, nn.TransformerEncoder) else Decoder)(layers, norm)


def _attention(
    theirs: nn.MultiheadAttention, weights: NamedTensors
) -> MultiHeadAttention | KeyValueAttention:
    width, heads = theirs.embed_dim, theirs.num_heads
    bias, joint = weights.optional("in_proj_bias"), weights.optional("in_proj_weight")
    out_weight, out_bias = weights.take("out_proj.weight"), weights.optional("out_proj.bias")
    tensors: dict[str, Tensor | None] = {"out_weight": out_weight, "out_bias": out_bias}
    options: dict[str, Any] = {
        "projections": Projections(bias=bias is not None, out_bias=out_bias is not None),
        "dropout": theirs.dropout,
    }
    learned = {f"learned_{name}": weights.optional(f"bias_{name[0]}") for name in ("key", "value")}
    has = {"learned": learned["learned_key"] is not None, "zero": theirs.add_zero_attn}
    plain = not has["learned"] and theirs.kdim == theirs.vdim
    if plain and joint is not None:
        tensors |= {"qkv_weight": joint, "qkv_bias": bias}
    else:
        for i, letter in enumerate("qkv"):
            own = None if joint is None else joint.chunk(3)[i].clone()
            own = weights.take(f"{letter}_proj_weight") if own is None else own
            tensors[f"{letter}_weight"] = own
            tensors[f"{letter}_bias"] = None if bias is None else bias.chunk(3)[i].clone()
    weights.finish()
    if plain:
        if has["zero"]:
            options["attention"] = AttentionOptions(sinks=out_weight.new_zeros(()))
        if joint is None:
            options["context_width"] = theirs.kdim
        return fill(lambda: MultiHeadAttention(width, heads, **options), tensors)
    tensors |= {name: None if x is None else x.flatten() for name, x in learned.items()}
    options |= {"key_width": theirs.kdim, "value_width": theirs.vdim}
    options["extra"] = [name for name, there in has.items() if there]
    return fill(lambda: KeyValueAttention(width, heads, **options), tensors)


def _layer(
    theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, weights: NamedTensors
) -> EncoderLayer | DecoderLayer:
    """The layer, from parts under our names."""
    heads = {"self_attention": "self_attn"}
    norms = ["self_norm", "feed_norm"]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        heads["cross_attention"] = "multihead_attn"
        norms.insert(1, "cross_norm")
    rates = {getattr(theirs, f"dropout{i}").p for i in range(1, len(norms) + 1)}
    if len(rates) > 1:
        expected = "one rate after each part"
        refuse(type(theirs).__name__, "dropout", expected, sorted(rates), "ours has one")
    parts: dict[str, nn.Module] = {"feed_forward": _feed_forward(theirs, weights)}
    for ours, name in heads.items():
        attention, part = getattr(theirs, name), weights.within(name)
        check_kind(attention, nn.MultiheadAttention, verb=f"load({part.source})")
        parts[ours] = _attention(attention, part)
    for i, ours in enumerate(norms, 1):
        norm = getattr(theirs, f"norm{i}")
        parts[ours] = read_norm(norm, weights.within(f"norm{i}"), nn.LayerNorm)
    order = "pre" if theirs.norm_first else "post"
    return assemble(theirs.self_attn.embed_dim, parts, norm=order, dropout=theirs.dropout1.p)


def _feed_forward(
    theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, weights: NamedTensors
) -> FeedForward:
    tensors: dict[str, Tensor | None] = {}
    for ours, name in (("up", "linear1"), ("down", "linear2")):
        check_kind(getattr(theirs, name), nn.Linear, verb=f"load({weights.source}.{name})")
        for kind in ("weight", "bias"):
            tensors[f"{ours}.{kind}"] = weights.optional(f"{name}.{kind}")
    activation = theirs.activation
    if isinstance(activation, nn.Module):
        for name in activation.state_dict():
            tensors[f"activation.{name}"] = weights.take(f"activation.{name}")
    inner, width = theirs.linear1.out_features, theirs.linear1.in_features

    def make() -> FeedForward:
        made = FeedForward(width, inner, theirs.dropout.p, activation=deepcopy(activation))
        for linear, name in ((made.up, "up"), (made.down, "down")):
            if tensors[f"{name}.bias"] is None:
                linear.register_parameter("bias", None)
        return made

    return fill(make, tensors)


@torch.inference_mode(False)
def dump(ours: MultiHeadAttention | KeyValueAttention) -> nn.MultiheadAttention:
    """Return `nn.MultiheadAttention` (batch first) with our weights, in the same mode.

    PyTorch has biases everywhere or nowhere: if our block has only some, the missing ones become
    frozen zeros. Frozen parameters stay frozen. Raises `KindError` for other modules and
    `ArgumentError` for
    what PyTorch's cannot compute (shared key heads, head widths other than c/h, a mask, bias,
    score, positions or norms of the block).

    >>> theirs = dump(MultiHeadAttention(8, 2))
    >>> x = torch.randn(1, 5, 8)
    >>> theirs(x, x, x)[0].shape
    torch.Size([1, 5, 8])
    """
    check_kind(ours, MultiHeadAttention, KeyValueAttention, verb="dump")
    weights = tensors_of(ours, "ours")
    if isinstance(ours, KeyValueAttention):
        kdim, vdim, zero = ours.key_width, ours.value_width, "zero" in ours.extra
        parts = {
            f"{letter}_{kind}": weights.optional(f"{letter}_{kind}")
            for letter in "qkv"
            for kind in ("weight", "bias")
        }
    else:
        zero = _plain(ours)
        kdim = vdim = ours.context_width
        parts = separate(ours, weights)
    learned = [weights.optional(f"learned_{name}") for name in ("key", "value")]
    out_weight, out_bias = weights.take("out_weight"), weights.optional("out_bias")
    weights.finish()
    bias = out_bias is not None or parts["q_bias"] is not None
    zeros = out_weight.new_zeros(ours.width)
    tensors: dict[str, Tensor | None] = {"out_proj.weight": out_weight}
    if bias:
        tensors["in_proj_bias"] = _joint(parts, "bias", zeros)
        tensors["out_proj.bias"] = zeros if out_bias is None else out_bias
    for name, x in zip(("bias_k", "bias_v"), learned):
        tensors[name] = None if x is None else x.view(1, 1, -1)
    own = {f"{letter}_proj_weight": parts[f"{letter}_weight"] for letter in "qkv"}
    if kdim == vdim == ours.width:
        own = {"in_proj_weight": _joint(parts, "weight", zeros)}
    return fill(
        lambda: nn.MultiheadAttention(
            ours.width,
            ours.heads,
            ours.dropout,
            bias=bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=True,
            add_bias_kv=learned[0] is not None,
            add_zero_attn=zero,
        ),
        tensors | own,
    ).train(ours.training)


def _joint(parts: dict[str, Tensor | None], kind: str, zeros: Tensor) -> Tensor:
    """Concatenate queries, keys and values; zeros stand for missing ones."""
    given = {f"{letter}_{kind}": parts[f"{letter}_{kind}"] for letter in "qkv"}
    learns(f"dump: in_proj_{kind}", {name: x for name, x in given.items() if x is not None})
    return torch.cat([zeros if x is None else x for x in given.values()])


def _plain(ours: MultiHeadAttention) -> bool:
    """Refuse options that PyTorch's layer cannot compute; return whether it needs add_zero_attn."""
    there = "nn.MultiheadAttention"
    options = ("score", "mask", "bias", "positions", "softcap", "qk_norm", "scale")
    check_plain(ours, options, there)
    widths = (ours.d * ours.heads, ours.e * ours.heads, len(ours.out_weight))
    sinks = ours.sinks
    zeros = sinks is None or (isinstance(sinks, Tensor) and bool((sinks == 0).all()))
    check_options(
        "MultiHeadAttention",
        (
            "head_widths",
            widths == (ours.width,) * 3,
            f"d = e = width/heads and out_width=width={ours.width}",
            f"d={ours.d}, e={ours.e}, out_width={widths[2]}",
            f"there is one width in {there}",
        ),
        ("attention.sinks", zeros, "None or zeros", "other logits", "add_zero_attn has logit 0"),
    )
    return sinks is not None
