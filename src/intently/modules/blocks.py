"""The layers of a Transformer: attention, feed-forward, residuals and norms.

Source: Vaswani et al. 2017, section 3.1; the order "pre" after Xiong et al. 2020, "On Layer
Normalization in the Transformer Architecture", figure 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.masks import Mask
from intently.modules.caches import FixedCache, KeyValueCache, WindowCache
from intently.modules.feed_forward import FeedForward
from intently.modules.loading import AllOrNothing
from intently.modules.multi_head import MultiHeadAttention

Norm = Literal["pre", "post"]


class _Residual(AllOrNothing):
    """x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise build(ArgumentError, "norm", '"pre" or "post"', repr(norm))
        self.norm, self.dropout = norm, dropout

    def _step(self, x: Tensor, layer_norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm == "pre":
            return x + self._dropped(f(layer_norm(x)))
        return layer_norm(x + self._dropped(f(x)))

    def _dropped(self, y: Tensor) -> Tensor:
        return F.dropout(y, self.dropout) if self.training and self.dropout else y


class EncoderLayer(_Residual):
    """Self-attention, then feed-forward, each with a residual, a norm and dropout.

    ``heads`` is their number, or the attention itself; ``inner`` the width of a ReLU feed-forward,
    or a module (b, t, c) → (b, t, c) in its place; ``norms`` makes a norm from the width. With a
    causal mask it is the layer of a decoder-only model, here one like Llama's:

    >>> import torch, intently as it
    >>> from intently.modules import Attention, GatedFeedForward
    >>> options = Attention(mask=it.causal(), positions=it.Rotary(4))
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
        self.feed_forward = FeedForward(width, inner) if isinstance(inner, int) else inner
        self.self_norm = norms(width)
        self.feed_norm = norms(width)

    def forward(
        self,
        x: Float[Tensor, "b s c"],
        *,
        mask: Mask | Tensor | None = None,
        cache: KeyValueCache | WindowCache | None = None,
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) after this layer; ``cache`` may keep what was attended."""
        x = self._step(x, self.self_norm, lambda y: self.self_attention(y, mask=mask, cache=cache))
        return self._step(x, self.feed_norm, self.feed_forward)


class DecoderLayer(_Residual):
    """Masked self-attention, attention to the encoder's states, feed-forward.

    Its parts are chosen as those of `EncoderLayer`; ``cross`` is the attention to the states, made
    like ``heads`` unless given.

    A row of the states may serve m consecutive rows of x, the beams of a sentence: their queries
    lie side by side on the axis t of the cross-attention, which treats each query on its own,
    q (n, h, m·t, d) against k (n, h, s, d), and nothing is repeated.
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
        self.feed_forward = FeedForward(width, inner) if isinstance(inner, int) else inner
        self.self_norm = norms(width)
        self.cross_norm = norms(width)
        self.feed_norm = norms(width)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        states: Float[Tensor, "n s k"],
        *,
        mask: Mask | Tensor | None = None,
        states_mask: Mask | Tensor | None = None,
        cache: tuple[KeyValueCache | WindowCache, FixedCache] | tuple[None, None] = (None, None),
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c): x after attending itself (``mask``) and the encoder's ``states``.

        Raises `ArgumentError` where the rows of x are no multiple of those of the states.
        """
        own, cross = cache
        n, rows = len(states), len(x)
        if rows % max(1, n):
            raise build(
                ArgumentError, "states", f"shape (n, s, c) where n divides b={rows}",
                shape_of(states), "each row of the states serves m consecutive rows of x",
            )  # fmt: skip

        def read(y: Tensor) -> Tensor:
            if n == rows:
                return self.cross_attention(y, states, mask=states_mask, cache=cross)
            folded = y.reshape(n, rows // max(1, n) * y.shape[1], y.shape[2])
            return self.cross_attention(folded, states, mask=states_mask, cache=cross).view_as(y)

        x = self._step(x, self.self_norm, lambda y: self.self_attention(y, mask=mask, cache=own))
        x = self._step(x, self.cross_norm, read)
        return self._step(x, self.feed_norm, self.feed_forward)


def _attention(
    heads: int | MultiHeadAttention, width: int, context_width: int | None, name: str
) -> MultiHeadAttention:
    """The attention itself, or one of so many heads; it must fit the residual."""
    if isinstance(heads, int):
        return MultiHeadAttention(width, heads)
    if not isinstance(heads, MultiHeadAttention):
        raise build(
            KindError, name, "a number of heads, or a MultiHeadAttention", type(heads).__name__
        )
    sizes = heads.width, len(heads.out_weight)
    own = context_width in (None, heads.context_width)
    if sizes != (width, width) or not own:
        other = "" if heads.context_width == heads.width else f", context {heads.context_width}"
        raise build(
            ArgumentError, name, f"attention from width={width} to width={width}",
            f"{sizes[0]} to {sizes[1]}{other}", "its output is added to its input",
        )  # fmt: skip
    return heads
