"""The layers of a Transformer: attention, feed-forward, residuals and norms.

Source: Vaswani et al. 2017, section 3.1; the order "pre" after Xiong et al. 2020, "On Layer
Normalization in the Transformer Architecture", figure 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.core.masks import Geometry, Mask, as_mask
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.checks import check_kind, check_word, probability, whole_number
from intently.foundation.field_names import answered
from intently.nn.caches.key_value import FixedCache, KeyValueCache
from intently.nn.caches.masks import side_by_side
from intently.nn.caches.window import WindowCache
from intently.nn.checks import check_steps, check_tokens, forgiving
from intently.nn.feed_forward import FeedForward
from intently.nn.multi_head import MultiHeadAttention
from intently.nn.weights.copying import AllOrNothing, copied, copied_norm

Norm = Literal["pre", "post"]
Caches = tuple[KeyValueCache | WindowCache | None, FixedCache | None]
"""The caches of a decoder layer: for its own steps, and for the encoder's states."""


class _Residual(AllOrNothing):
    """x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        check_word(norm, "norm", ("pre", "post"))
        self.norm, self.dropout = norm, probability(dropout, "dropout")

    def _step(
        self, x: Tensor, norm: Callable[[Tensor], Tensor], f: Callable[[Tensor], Tensor]
    ) -> Tensor:
        pre = self.norm == "pre"
        y = f(norm(x) if pre else x)
        if self.training and self.dropout:
            y = F.dropout(y, self.dropout)
        return x + y if pre else norm(x + y)


@answered
class EncoderLayer(_Residual):
    """Self-attention, then feed-forward, each with a residual, a norm and dropout.

    ``heads`` is the number of heads, or the attention module; ``inner`` is the width of a ReLU
    feed-forward, or a module (b, t, c) → (b, t, c) instead; ``norms`` makes a norm from the width.
    With a causal mask, it is the layer of a decoder-only model, here like Llama's. Raises
    `KindError` and `ArgumentError` for parts of other types or that do not fit ``width``.

    >>> import torch, intently as it
    >>> from intently.nn import AttentionOptions, GatedFeedForward
    >>> options = AttentionOptions(mask=it.causal(), positions=it.Rotary(4))
    >>> heads = MultiHeadAttention(16, 4, kv_heads=2, attention=options)
    >>> layer = EncoderLayer(16, heads, GatedFeedForward(16, 40), norms=nn.RMSNorm)
    >>> layer(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int | MultiHeadAttention,
        inner: int | nn.Module,
        *,
        norm: Norm = "pre",
        dropout: float = 0.0,
        norms: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__(norm, dropout)
        self.self_attention = _attention(heads, width, width, "heads")
        self.feed_forward = _feed_forward(width, inner)
        self.self_norm = made_norm(norms, width, "norms")
        self.feed_norm = made_norm(norms, width, "norms")

    @classmethod
    def from_weights(
        cls,
        attention: MultiHeadAttention,
        feed_forward: nn.Module,
        norms: Sequence[nn.Module],
        *,
        norm: Norm = "pre",
    ) -> EncoderLayer:
        """Return a layer with copies of these parts, which hold the weights of other code.

        Make the parts with their own ``from_weights``. ``norms`` are the norms of the attention and
        of the feed-forward with their weights, such as ``nn.LayerNorm``. Raises `ArgumentError` if
        widths do not fit and `KindError` for other parts and mixed dtypes.

        >>> parts = MultiHeadAttention(16, 4), FeedForward(16, 64)
        >>> layer = EncoderLayer.from_weights(*parts, [nn.LayerNorm(16), nn.LayerNorm(16)])
        """
        own = copied(attention, "attention", MultiHeadAttention)
        feed, made = _parts(own, feed_forward, norms, 2)
        return cls(own.width, own, feed, norm=norm, norms=lambda width: next(made))

    @forgiving(2)
    def forward(
        self,
        x: Float[Tensor, "*b s c"],
        *,
        mask: Mask | Tensor | None = None,
        cache: KeyValueCache | WindowCache | None = None,
    ) -> Float[Tensor, "*b s c"]:
        """Return the states (b, s, c) after this layer; ``cache`` may keep keys and values.

        x may be one item (s, c); so is the result then. Raises `ArgumentError` for x of a different
        shape, and `KindError` for another dtype or cache.
        """
        _check_growing(cache, "cache")
        _check_steps(_inside(self.self_attention), x)
        x = self._step(x, self.self_norm, lambda y: self.self_attention(y, mask=mask, cache=cache))
        return self._step(x, self.feed_norm, self.feed_forward)


@answered
class DecoderLayer(_Residual):
    """Masked self-attention, attention to the encoder's states, feed-forward.

    Its parts are chosen as those of `EncoderLayer`; ``cross`` is the attention to the states, made
    like ``heads`` unless given.

    A row of the states may serve m consecutive rows of x, the beams of a sentence: their queries
    are concatenated along the axis t of the cross-attention, which treats each query independently,
    q (n, h, m·t, d) against k (n, h, s, d), so nothing is repeated. Masks keep their meaning: the
    queries of each row keep their positions.
    """

    def __init__(
        self,
        width: int,
        heads: int | MultiHeadAttention,
        inner: int | nn.Module,
        *,
        cross: int | MultiHeadAttention | None = None,
        norm: Norm = "pre",
        dropout: float = 0.0,
        norms: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__(norm, dropout)
        self.self_attention = _attention(heads, width, width, "heads")
        if cross is None:
            cross = self.self_attention.heads
        self.cross_attention = _attention(cross, width, None, "cross")
        self.feed_forward = _feed_forward(width, inner)
        self.self_norm = made_norm(norms, width, "norms")
        self.cross_norm = made_norm(norms, width, "norms")
        self.feed_norm = made_norm(norms, width, "norms")

    @classmethod
    def from_weights(
        cls,
        attention: MultiHeadAttention,
        cross: MultiHeadAttention,
        feed_forward: nn.Module,
        norms: Sequence[nn.Module],
        *,
        norm: Norm = "pre",
    ) -> DecoderLayer:
        """Return a layer with copies of these parts, which hold the weights of other code.

        They are those of `EncoderLayer.from_weights` and the attention to the encoder's states;
        ``norms`` are the norms of attention, cross-attention and feed-forward. Raises what that
        does.

        >>> own, cross = MultiHeadAttention(16, 4), MultiHeadAttention(16, 4, context_width=24)
        >>> norms = [nn.LayerNorm(16) for _ in range(3)]
        >>> layer = DecoderLayer.from_weights(own, cross, FeedForward(16, 64), norms)
        """
        own = copied(attention, "attention", MultiHeadAttention)
        states = copied(cross, "cross", MultiHeadAttention, own.out_weight)
        feed, made = _parts(own, feed_forward, norms, 3)
        return cls(own.width, own, feed, cross=states, norm=norm, norms=lambda width: next(made))

    @forgiving(2, "states")
    def forward(
        self,
        x: Float[Tensor, "*b t c"],
        states: Float[Tensor, "*n s k"],
        *,
        mask: Mask | Tensor | None = None,
        states_mask: Mask | Tensor | None = None,
        cache: Caches = (None, None),
    ) -> Float[Tensor, "*b t c"]:
        """Return y (b, t, c): x after attending to itself (``mask``) and the encoder's ``states``.

        Both may be one item: x (t, c) and states (s, k) give y (t, c).
        ``states_mask`` has a row for each row of the states, or for each of x. ``cache`` keeps the
        keys and values of x and those of the states. Raises `ArgumentError` for other shapes, if
        the rows of x are not a multiple of the rows of the states, or if they are m times as many
        and the cross-attention has its own mask or bias, which may depend on query positions;
        `KindError` for other dtypes and caches. The caches are then unchanged.
        """
        _check_pair(cache)
        own, cross = cache
        _check_steps(_inside(self.self_attention), x)
        attention, rule = _inside(self.cross_attention), states_mask
        beams = _beams(x, states, attention)
        if rule is not None:
            heads = 1 if attention is None else attention.heads
            g = Geometry((len(states), heads), x.shape[1], states.shape[1], x.device)
            rule = side_by_side(as_mask(rule), beams, g)

        def read(y: Tensor) -> Tensor:
            folded = y if beams == 1 else y.reshape(len(states), -1, y.shape[2])
            return self.cross_attention(folded, states, mask=rule, cache=cross).view(y.shape)

        x = self._step(x, self.self_norm, lambda y: self.self_attention(y, mask=mask, cache=own))
        x = self._step(x, self.cross_norm, read)
        return self._step(x, self.feed_norm, self.feed_forward)


def _attention(
    heads: int | MultiHeadAttention, width: int, context_width: int | None, name: str
) -> MultiHeadAttention:
    """The attention module itself, or a new one with this many heads; it must fit the residual."""
    if isinstance(heads, int):
        return MultiHeadAttention(width, heads)
    check_kind(heads, MultiHeadAttention, name, "a number of heads, or a MultiHeadAttention")
    sizes = heads.width, len(heads.out_weight)
    if sizes != (width, width) or context_width not in (None, heads.context_width):
        other = "" if heads.context_width == heads.width else f", context {heads.context_width}"
        raise build(
            ArgumentError,
            name,
            f"attention from width={width} to width={width}",
            f"{sizes[0]} to {sizes[1]}{other}",
            "its output is added to its input",
        )
    return heads


def _parts(
    attention: MultiHeadAttention, feed_forward: nn.Module, norms: Sequence[nn.Module], n: int
) -> tuple[nn.Module, Iterator[nn.Module]]:
    """Copies of the feed-forward and of n norms, in the layer's order."""
    if not isinstance(norms, (list, tuple)) or len(norms) != n:
        got = f"{len(norms)}" if isinstance(norms, (list, tuple)) else type(norms).__name__
        raise build(ArgumentError, "norms", f"a list of {n} norms", got)
    width, like = attention.width, attention.out_weight
    feed = copied(feed_forward, "feed_forward", nn.Module, like)
    if getattr(feed, "width", width) != width:
        raise build(
            ArgumentError,
            "feed_forward",
            f"one of width c={width}, as the attention",
            f"width {feed.width}",
        )
    return feed, iter([copied_norm(x, f"norms[{i}]", width, like) for i, x in enumerate(norms)])


def _feed_forward(width: int, inner: int | nn.Module) -> nn.Module:
    if isinstance(inner, nn.Module):
        return inner
    if not isinstance(inner, int):
        raise build(
            KindError, "inner", "a width, or an nn.Module (b, t, c) → (b, t, c)", repr(inner)
        )
    return FeedForward(width, whole_number(inner, "inner", 1))


def made_norm(
    make: Callable[[int], nn.Module], width: int, name: str, example: str = "nn.RMSNorm"
) -> nn.Module:
    """Return ``make(width)``; raise `KindError` unless it is a function that makes a module."""
    expected, fix = "a function that makes a norm from a width", f"write {name}={example}, say"
    if isinstance(make, nn.Module):
        raise build(KindError, name, expected, f"a norm, {type(make).__name__}", fix=fix)
    if not callable(make):
        raise build(KindError, name, expected, repr(make), fix=fix)
    made = make(width)
    if not isinstance(made, nn.Module):
        raise build(KindError, name, expected, f"one that makes {type(made).__name__}", fix=fix)
    return made


def _inside(attention: nn.Module) -> MultiHeadAttention | None:
    """The attention itself, or the one inside a wrapper, as `intently.interop` makes them."""
    if isinstance(attention, MultiHeadAttention):
        return attention
    return next((m for m in attention.modules() if isinstance(m, MultiHeadAttention)), None)


def _check_steps(attention: MultiHeadAttention | None, x: Tensor) -> None:
    """Raise the attention's own error before a norm raises a less helpful one."""
    if attention is not None:
        check_tokens(attention, x, attention.out_weight)


def _beams(x: Tensor, states: Tensor, attention: MultiHeadAttention | None) -> int:
    """The number of rows of x per row of the states; raise if they do not fit."""
    if attention is None:
        return len(x) // max(1, len(states))
    rows, width = len(x), attention.context_width
    check_steps(states, "states", attention.out_weight)
    n = len(states) if states.ndim == 3 and states.shape[2] == width else -1
    if n == rows:
        return 1
    if n < 1 or rows % n:
        raise build(
            ArgumentError,
            "states",
            f"shape (n, s, {width}) where n divides b={rows}",
            shape_of(states),
            "each row of the states serves m consecutive rows of x",
        )
    mask, bias = attention.mask, attention.bias
    if bias is not None or (mask is not None and not mask.per_key):
        raise build(
            ArgumentError,
            "states",
            f"as many rows as x, b={rows}",
            shape_of(states),
            "the cross-attention has a mask or bias of its own, which may look at where a query "
            "stands",
            f"repeat them: states.repeat_interleave({rows // n}, 0), and rows of their mask",
        )
    return rows // n


def _check_growing(cache: object, name: str) -> None:
    check_kind(cache, KeyValueCache | WindowCache | None, name, "a KeyValueCache or WindowCache")


def _check_pair(cache: Caches) -> None:
    """Raise unless these are the cache of x and that of the states."""
    expected = "a pair: a KeyValueCache or WindowCache for x, and a FixedCache for the states"
    if not isinstance(cache, tuple) or len(cache) != 2:
        raise build(KindError, "cache", expected, type(cache).__name__)
    _check_growing(cache[0], "cache[0]")
    check_kind(cache[1], FixedCache | None, "cache[1]", "a FixedCache")
