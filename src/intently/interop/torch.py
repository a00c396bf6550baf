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
    Rows,
    assemble,
    check_hooks,
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
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Projections,
)

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
    kinds = (
        nn.MultiheadAttention,
        nn.TransformerEncoderLayer,
        nn.TransformerDecoderLayer,
        nn.TransformerEncoder,
        nn.TransformerDecoder,
        nn.Transformer,
    )
    check_kind(foreign, *kinds, verb="load")
    theirs, source = tensors_of(foreign), type(foreign).__name__
    with torch.device("meta"):
        ours, table = _counterpart(foreign, source)
    return transfer(ours, table, theirs, source).train(foreign.training)


def _counterpart(theirs: Any, source: str) -> tuple[Any, Rows]:
    """Our module without its weights, and the names of its tensors."""
    if isinstance(theirs, nn.MultiheadAttention):
        ours = _attention(theirs)
        return ours, _names(ours, theirs.in_proj_weight is not None)
    if isinstance(theirs, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return _layer(theirs, source)
    if isinstance(theirs, nn.Transformer):
        sides = {"encoder": nn.TransformerEncoder, "decoder": nn.TransformerDecoder}
        parts = [_part(theirs, source, side, kind) for side, kind in sides.items()]
        return EncoderDecoder(*(part for part, _ in parts)), parts[0][1] + parts[1][1]
    encodes = isinstance(theirs, nn.TransformerEncoder)
    kind = nn.TransformerEncoderLayer if encodes else nn.TransformerDecoderLayer
    layers = [_part(theirs, source, f"layers.{i}", kind) for i in range(len(theirs.layers))]
    norm = theirs.norm and like_norm(theirs.norm, f"{source}.norm", nn.LayerNorm)
    stack = (Encoder if encodes else Decoder)([layer for layer, _ in layers], norm)
    return stack, [row for _, table in layers for row in table] + rows("norm. norm.")


def _part(theirs: nn.Module, source: str, name: str, kind: type, ours: str = "") -> Any:
    """The counterpart of a part, and its names in the whole; ours are theirs unless given."""
    module, source = theirs.get_submodule(name), f"{source}.{name}"
    check_kind(module, kind, verb=f"load({source})")
    part, table = _counterpart(module, source)
    return part, under(f"{ours or name}.", f"{name}.", table)


def _names(ours: MultiHeadAttention | KeyValueAttention, joint: bool) -> Rows:
    """Our names and theirs; ``joint`` where they store queries, keys and values in one weight."""
    table = "out_ out_proj.\n learned_{key,value} bias_{k,v}\n"
    if joint:
        fused = isinstance(ours, MultiHeadAttention) and ours.fused
        return rows(table + ("qkv_" if fused else "q_+k_+v_") + " in_proj_")
    return rows(table + "{q,k,v}_weight {q,k,v}_proj_weight\n q_bias+k_bias+v_bias in_proj_bias")


def _attention(theirs: nn.MultiheadAttention) -> MultiHeadAttention | KeyValueAttention:
    options: dict[str, Any] = {
        "projections": Projections(
            bias=theirs.in_proj_bias is not None, out_bias=theirs.out_proj.bias is not None
        ),
        "dropout": theirs.dropout,
    }
    has = {"learned": theirs.bias_k is not None, "zero": theirs.add_zero_attn}
    if has["learned"] or theirs.kdim != theirs.vdim:
        options |= {"key_width": theirs.kdim, "value_width": theirs.vdim}
        options["extra"] = [name for name, there in has.items() if there]
        return KeyValueAttention(theirs.embed_dim, theirs.num_heads, **options)
    if has["zero"]:
        sinks = theirs.out_proj.weight.new_zeros(())
        options["attention"] = AttentionOptions(sinks=sinks)
    return MultiHeadAttention(
        theirs.embed_dim, theirs.num_heads, context_width=theirs.kdim, **options
    )


def _layer(
    theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, source: str
) -> tuple[nn.Module, Rows]:
    heads = {"self_attention": "self_attn"}
    norms = ["self_norm", "feed_norm"]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        heads["cross_attention"] = "multihead_attn"
        norms.insert(1, "cross_norm")
    rates = tuple(getattr(theirs, f"dropout{i}").p for i in range(1, len(norms) + 1))
    one = rates[:1] * len(rates)
    check_options(source, ("dropout", rates, one, "our layer has one rate after each part"))
    up, down, activation = theirs.linear1, theirs.linear2, deepcopy(theirs.activation)
    for name in ("linear1", "linear2"):
        check_kind(getattr(theirs, name), nn.Linear, verb=f"load({source}.{name})")
    bias = up.bias is not None or down.bias is not None
    width, inner, dropout = up.in_features, up.out_features, theirs.dropout.p
    feed = FeedForward(width, inner, dropout, activation=activation, bias=bias)
    parts: dict[str, nn.Module] = {"feed_forward": feed}
    table = rows("feed_forward.{up,down}. linear{1,2}.")
    if isinstance(activation, nn.Module):
        table += [
            ([f"feed_forward.activation.{x}"], [f"activation.{x}"]) for x in activation.state_dict()
        ]
    for ours, name in heads.items():
        parts[ours], names = _part(theirs, source, name, nn.MultiheadAttention, ours)
        table += names
    for i, ours in enumerate(norms, 1):
        parts[ours] = like_norm(getattr(theirs, f"norm{i}"), f"{source}.norm{i}", nn.LayerNorm)
        table += rows(f"{ours}. norm{i}.")
    order = "pre" if theirs.norm_first else "post"
    return assemble(width, parts, norm=order, dropout=rates[0]), table


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
    check_hooks(ours, "ours")
    if isinstance(ours, MultiHeadAttention):
        zero, kdim, vdim = _plain(ours), ours.context_width, ours.context_width
    else:
        zero, kdim, vdim = "zero" in ours.extra, ours.key_width, ours.value_width
    state = ours.state_dict(keep_vars=True)
    bias = any(name.endswith("_bias") for name in state)
    if bias:
        zeros = {f"{name[:-6]}bias": x for name, x in state.items() if name.endswith("_weight")}
        state = {name: x.new_zeros(len(x)) for name, x in zeros.items()} | state
    with torch.device("meta"):
        theirs = nn.MultiheadAttention(
            ours.width,
            ours.heads,
            ours.dropout,
            bias=bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=True,
            add_bias_kv="learned_key" in state,
            add_zero_attn=zero,
        )
    table = swapped(_names(ours, theirs.in_proj_weight is not None))
    return transfer(theirs, table, state, type(ours).__name__).train(ours.training)


def _plain(ours: MultiHeadAttention) -> bool:
    """Refuse options that PyTorch's layer cannot compute; return whether it needs add_zero_attn."""
    there = "nn.MultiheadAttention"
    options = ("score", "mask", "bias", "positions", "softcap", "qk_norm", "scale")
    check_plain(ours, options, there)
    sinks, width = ours.sinks, ours.width
    zeros = sinks is None or (isinstance(sinks, Tensor) and bool((sinks == 0).all()))
    check_options(
        "MultiHeadAttention",
        ("head_widths", (ours.d, ours.e), (width // ours.heads,) * 2, f"it is c/h in {there}"),
        ("projections.out_width", len(ours.out_weight), width, f"there is one width in {there}"),
        ("attention.sinks", None if zeros else sinks, [None, 0], "add_zero_attn has logit 0"),
    )
    return sinks is not None
