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

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.core.attention import Attention, attend
from intently.core.masks import Geometry, Mask, allowed, as_mask
from intently.core.masks.mask import OverMask
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.checks import whole_number
from intently.foundation.on_demand import listed
from intently.interop.blocks import Decoder, Encoder, EncoderDecoder
from intently.interop.transfer import (
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
from intently.nn.weights.copying import AllOrNothing

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
    if heads is not None:
        whole_number(heads, "heads", 1)
    for name, theirs in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if theirs is not None and not isinstance(theirs, Tensor):
            raise build(KindError, name, "a tensor", type(theirs).__name__)
    rule: Mask | None = None
    if attn_mask is not None:
        if attn_mask.ndim == 3 and heads is not None and len(attn_mask) % heads == 0:
            attn_mask = attn_mask.unflatten(0, (-1, heads))
        elif attn_mask.ndim != 2:
            expected = "shape (t, s), or (b·h, t, s) with heads=h"
            raise build(ArgumentError, "attn_mask", expected, shape_of(attn_mask))
        rule = allowed(_not_forbidden("attn_mask", attn_mask))
    if key_padding_mask is not None:
        if key_padding_mask.ndim != 2:
            got = shape_of(key_padding_mask)
            raise build(ArgumentError, "key_padding_mask", "shape (b, s)", got)
        padded = allowed(_not_forbidden("key_padding_mask", key_padding_mask)[:, None, None])
        rule = padded if rule is None else rule & padded
    return rule


def _not_forbidden(name: str, theirs: Tensor) -> Tensor:
    if theirs.dtype is torch.bool:
        return ~theirs
    if not theirs.is_floating_point() or not ((theirs == 0) | theirs.isneginf()).all():
        cause, fix = "any other number is added to the scores", "pass them to the block as a bias"
        expected, got = "a boolean tensor, or one of 0 and −inf", f"dtype {theirs.dtype}"
        raise build(ArgumentError, name, expected, got, cause, fix)
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
        options["attention"] = AttentionOptions(sinks=theirs.out_proj.weight.new_zeros(()))
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
    options: Any = {"kdim": kdim, "vdim": vdim, "bias": bias, "add_zero_attn": zero}
    options |= {"add_bias_kv": "learned_key" in state, "batch_first": True, "device": "meta"}
    theirs = nn.MultiheadAttention(ours.width, ours.heads, ours.dropout, **options)
    table = swapped(_names(ours, theirs.in_proj_weight is not None))
    return transfer(theirs, table, state, type(ours).__name__).train(ours.training)


def _plain(ours: MultiHeadAttention) -> bool:
    """Refuse options that PyTorch's layer cannot compute; return whether it needs add_zero_attn."""
    there = "nn.MultiheadAttention"
    check_plain(ours, ("score", "mask", "bias", "positions", "softcap", "qk_norm", "scale"), there)
    sinks, width = ours.sinks, ours.width
    zeros = isinstance(sinks, Tensor) and bool((sinks == 0).all())
    logits = "zeros" if zeros else "other logits" if sinks is not None else None
    check_options(
        "MultiHeadAttention",
        ("head_widths", (ours.d, ours.e), (width // ours.heads,) * 2, f"it is c/h in {there}"),
        ("projections.out_width", len(ours.out_weight), width, f"there is one width in {there}"),
        ("attention.sinks", logits, [None, "zeros"], "add_zero_attn has logit 0"),
    )
    return sinks is not None


class BesideExtra(OverMask):
    """``inner`` over the first keys; the ``extra`` ones after them are attended to by every query.

    >>> from intently import causal
    >>> print(BesideExtra(causal(), 1).draw(3, 4))
    █ · · █
    █ █ · █
    █ █ █ █
    """

    def __init__(self, inner: Mask, extra: int) -> None:
        super().__init__(inner, extra)
        self.extra = extra

    def whole(self, g: Geometry) -> Geometry:
        return g._replace(s=g.s - self.extra)

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        first, last = self.whole(g), cols >= g.s - self.extra
        if first.s == 0:
            return last[None]
        return last | self.inner.allow(first, rows, cols.clamp(max=first.s - 1))

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        first = self.whole(g)
        return (j >= first.s) | self.inner.at(first, lead, i, j.clamp(max=max(0, first.s - 1)))


class KeyValueAttention(AllOrNothing):
    """Multi-head attention whose keys and values may come from sequences of different widths.

    ``extra`` names keys that are appended to those of every sequence and attended by every query:
    "learned" has a key and a value for each head, "zero" is a key and a value of zeros, so that a
    query may attend to nothing. In `nn.MultiheadAttention`, these options are ``bias_k``,
    ``bias_v`` and ``add_zero_attn``. If you need neither, use
    `intently.nn.MultiHeadAttention`.

    >>> layer = KeyValueAttention(8, 2, key_width=3, value_width=5, extra=("learned", "zero"))
    >>> x, keys, values = torch.zeros(1, 4, 8), torch.zeros(1, 6, 3), torch.zeros(1, 6, 5)
    >>> layer(x, keys, values).shape, layer.attend(x, keys).shape
    (torch.Size([1, 4, 8]), (1, 2, 4, 8))
    """

    out_bias: nn.Parameter | None

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        extra: Sequence[Literal["learned", "zero"]] = (),
        projections: Projections | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise build(ArgumentError, "heads", f"a divisor of width={width}", heads)
        extra = tuple(extra)
        if len(set(extra)) < len(extra) or not set(extra) <= {"learned", "zero"}:
            raise build(ArgumentError, "extra", '"learned", "zero" or both', extra)
        self.width, self.heads, self.extra, self.dropout = width, heads, extra, dropout
        self.key_width = width if key_width is None else key_width
        self.value_width = width if value_width is None else value_width
        projections = Projections() if projections is None else projections
        widths = {"q": width, "k": self.key_width, "v": self.value_width, "out": width}
        for name, columns in widths.items():
            bias = projections.out_bias if name == "out" else projections.bias
            weight = nn.init.xavier_uniform_(torch.empty(width, columns))
            self.register_parameter(f"{name}_weight", nn.Parameter(weight))
            zeros = nn.Parameter(torch.zeros(width)) if bias else None
            self.register_parameter(f"{name}_bias", zeros)
        for name in ("learned_key", "learned_value"):
            drawn = nn.init.xavier_normal_(torch.empty(1, width)) if "learned" in extra else None
            self.register_parameter(name, None if drawn is None else nn.Parameter(drawn[0]))

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        keys: Float[Tensor, "b s k"] | None = None,
        values: Float[Tensor, "b s v"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c); ``keys`` (b, s, k) are x and ``values`` (b, s, v) keys unless given.

        ``mask`` applies to the s keys; the extra keys are always visible. Raises `ArgumentError` if
        widths, batch or steps do not fit.
        """
        keys = x if keys is None else keys
        values = keys if values is None else values
        if values.shape[:-1] != keys.shape[:-1] or values.shape[-1] != self.value_width:
            want = f"shape ({', '.join(map(str, keys.shape[:-1]))}, {self.value_width})"
            raise build(ArgumentError, "values", want, f"shape {tuple(values.shape)}")
        v = self._with_extra(self._heads("v", values), "learned_value")
        y = self.attend(x, keys, mask=mask).matmul(v).transpose(1, 2).flatten(2)
        return F.linear(y, self.get_parameter("out_weight"), self.out_bias)

    def attend(
        self,
        x: Float[Tensor, "b t c"],
        keys: Float[Tensor, "b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> Attention:
        """Return the lazy matrix (b, h, t, s + extra); the last columns are the extra keys."""
        keys = x if keys is None else keys
        for name, steps, width in (("x", x, self.width), ("keys", keys, self.key_width)):
            if steps.ndim != 3 or steps.shape[-1] != width or len(steps) != len(x):
                want = f"shape (b={len(x)}, steps, {width})"
                raise build(ArgumentError, name, want, f"shape {tuple(steps.shape)}")
        q = self._heads("q", x)
        k = self._with_extra(self._heads("k", keys), "learned_key")
        rule = None if mask is None else as_mask(mask)
        if rule is not None and self.extra:
            rule = BesideExtra(rule, len(self.extra))
        return attend(q, k, mask=rule, dropout=self.dropout if self.training else 0.0)

    def _heads(self, name: str, x: Tensor) -> Tensor:
        y = F.linear(x, self.get_parameter(f"{name}_weight"), getattr(self, f"{name}_bias"))
        return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _with_extra(self, x: Tensor, learned: str) -> Tensor:
        """Append the extra keys or values to x (b, h, s, d)."""
        b, h, _, d = x.shape
        extra = {"zero": x.new_zeros(1, 1, 1, 1)}
        if "learned" in self.extra:
            extra["learned"] = self.get_parameter(learned).to(x.dtype).view(1, h, 1, d)
        return torch.cat([x, *(extra[name].expand(b, h, 1, d) for name in self.extra)], -2)

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, extra={self.extra}"
