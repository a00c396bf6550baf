"""Blocks that only other libraries have: stacks, attention with a residual, extra keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.core.attention import Attention, attend
from intently.core.masks import Geometry, Mask, as_mask
from intently.core.masks.mask import OverMask
from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, build, shape_of
from intently.nn import DecoderLayer, EncoderLayer, MultiHeadAttention, Projections
from intently.nn.models.transformer import DecoderCache
from intently.nn.weights.loading import AllOrNothing


class _Stack(AllOrNothing):
    """Layers, then an optional norm, then dropout."""

    def __init__(
        self,
        layers: Sequence[EncoderLayer | DecoderLayer],
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm, self.dropout = norm or nn.Identity(), dropout

    def _finish(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(x), self.dropout, self.training)

    def new_cache(self) -> DecoderCache:
        """Return an empty cache."""
        return DecoderCache(len(self.layers))


class Encoder(_Stack):
    """Layers that attend to their own steps: `nn.TransformerEncoder`, BERT; GPT-2 where causal."""

    def forward(
        self,
        x: Float[Tensor, "b s c"],
        *,
        mask: Mask | Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) of embedded steps x; with `new_cache`, x holds new ones."""
        for i, layer in enumerate(self.layers):
            x = layer(x, mask=mask, cache=None if cache is None else cache.layers[i][0])
        return self._finish(x)


class Decoder(_Stack):
    """Layers that attend to their own steps, then to an encoder's: `nn.TransformerDecoder`."""

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        states: Float[Tensor, "n s c"],
        *,
        mask: Mask | Tensor | None = None,
        states_mask: Mask | Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c) of embedded steps x; with `new_cache`, x holds only the new ones."""
        for i, layer in enumerate(self.layers):
            own = (None, None) if cache is None else cache.layers[i]
            x = layer(x, states, mask=mask, states_mask=states_mask, cache=own)
        return self._finish(x)


class EncoderDecoder(AllOrNothing):
    """An encoder and a decoder of embedded inputs: `nn.Transformer`.

    >>> import torch
    >>> from intently.interop.torch import load
    >>> model = load(nn.Transformer(8, 2, 1, 1, 16))
    >>> model(torch.zeros(1, 5, 8), torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def encode(
        self, source: Float[Tensor, "b s c"], *, mask: Mask | Tensor | None = None
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) of the embedded source."""
        return self.encoder(source, mask=mask)

    def decode(
        self, target: Float[Tensor, "b t c"], states: Float[Tensor, "n s c"], **options: Any
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c) of the embedded target; the options are those of `Decoder`."""
        return self.decoder(target, states, **options)

    def forward(
        self,
        source: Float[Tensor, "b s c"],
        target: Float[Tensor, "b t c"],
        *,
        source_mask: Mask | Tensor | None = None,
        target_mask: Mask | Tensor | None = None,
        states_mask: Mask | Tensor | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Encode, then decode. As in `nn.Transformer`, no mask is implied by another."""
        states = self.encoder(source, mask=source_mask)
        return self.decoder(target, states, mask=target_mask, states_mask=states_mask)


class ResidualAttention(AllOrNothing):
    """Attention with the norms and the residual of diffusers, for steps (b, t, c) or an image.

    y = (x + dropout(attention(norm(x), context_norm(context)))) / divisor, without x where
    ``residual`` is False. Group norms see (b, c, t), layer norms (b, t, c).

    >>> import torch
    >>> block = ResidualAttention(MultiHeadAttention(8, 2), norm=nn.GroupNorm(4, 8), residual=True)
    >>> block(torch.zeros(1, 8, 3, 3)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        *,
        norm: nn.Module | None = None,
        context_norm: nn.Module | None = None,
        dropout: float = 0.0,
        residual: bool = False,
        divisor: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm, self.context_norm, self.attention = norm, context_norm, attention
        self.dropout, self.residual, self.divisor = dropout, residual, divisor

    def forward(
        self,
        x: Float[Tensor, "b t c"] | Float[Tensor, "b c height width"],
        context: Float[Tensor, "b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: Any = None,
    ) -> Float[Tensor, "b t c"] | Float[Tensor, "b c height width"]:
        """Return y in the shape of x; the pixels of an image are read row by row.

        ``mask`` and ``cache`` are those of the attention.
        """
        normed, context = self._operands(x, context)
        y = self.attention(normed, context, mask=mask, cache=cache)
        y = F.dropout(y, self.dropout, self.training)
        y = y.transpose(-2, -1).unflatten(-1, x.shape[2:]) if x.ndim == 4 else y
        y = y + x if self.residual else y
        return y if self.divisor == 1 else y / self.divisor

    def attend(
        self,
        x: Float[Tensor, "b t c"] | Float[Tensor, "b c height width"],
        context: Float[Tensor, "b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: Any = None,
    ) -> LazyMatrix:
        """Return the lazy matrix (b, h, t, s) of `forward` of the same arguments."""
        return self.attention.attend(*self._operands(x, context), mask=mask, cache=cache)

    def _operands(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if x.ndim not in (3, 4):
            raise build(ArgumentError, "x", "shape (b, t, c) or (b, c, height, width)", shape_of(x))
        steps = x.flatten(2).transpose(-2, -1) if x.ndim == 4 else x
        context = None if context is None else _normed(self.context_norm, context)
        return _normed(self.norm, steps), context


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    return (
        norm(x.transpose(-2, -1)).transpose(-2, -1) if isinstance(norm, nn.GroupNorm) else norm(x)
    )


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
        own = {"zero": x.new_zeros(1, 1, 1, 1)}
        if "learned" in self.extra:
            own["learned"] = self.get_parameter(learned).to(x.dtype).view(1, h, 1, d)
        return torch.cat([x, *(own[name].expand(b, h, 1, d) for name in self.extra)], -2)

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, extra={self.extra}"
