"""Layers of the models that transformers holds: one form for all of them, on our attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.attention_matrix import Attention
from intently.masks import Mask, as_mask
from intently.models.transformer import DecoderCache
from intently.modules import FeedForward, GatedFeedForward, MultiHeadAttention
from intently.modules.weights.loading import AllOrNothing

Keep = Callable[[str, Attention], None]
"""What is told the name and the lazy matrix of every attention that runs."""


class Layer(AllOrNothing):
    """Self-attention, attention to a context where there is one, feed-forward; each a residual.

    ``norm`` makes the norm of each, which stands before it ("pre") or after the sum ("post").
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward | GatedFeedForward,
        norm: Callable[[], nn.Module],
        *,
        cross: MultiHeadAttention | None = None,
        order: Literal["pre", "post"] = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.attention_norm = attention, norm()
        self.cross, self.cross_norm = cross, None if cross is None else norm()
        self.feed_forward, self.feed_norm = feed_forward, norm()
        self.order, self.dropout = order, dropout

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        context: Float[Tensor, "b s c"] | None = None,
        *,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        cache: DecoderCache | None = None,
        at: int = 0,
        keep: Keep | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c); ``at`` is this layer's place in the cache and in what it keeps."""
        own, fixed = (None, None) if cache is None else cache.layers[at]

        def look(y: Tensor) -> Tensor:
            if keep is not None:
                keep(f"layers.{at}.self", self.attention.attend(y, mask=mask))
            return self.attention(y, mask=mask, cache=own)

        def read(y: Tensor) -> Tensor:
            assert self.cross is not None
            if keep is not None:
                keep(f"layers.{at}.cross", self.cross.attend(y, context, mask=context_mask))
            return self.cross(y, context, mask=context_mask, cache=fixed)

        x = self._step(x, self.attention_norm, look)
        if self.cross is not None and self.cross_norm is not None:
            x = self._step(x, self.cross_norm, read)
        return self._step(x, self.feed_norm, self.feed_forward)

    def _step(self, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.order == "pre":
            return x + self._dropped(f(norm(x)))
        return norm(x + self._dropped(f(x)))

    def _dropped(self, y: Tensor) -> Tensor:
        return F.dropout(y, self.dropout) if self.training and self.dropout else y


class Stack(AllOrNothing):
    """Layers one after another, then a norm and dropout (Identity and 0 where there are none)."""

    def __init__(self, layers: Sequence[Layer], norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm, self.dropout = norm, dropout

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        context: Float[Tensor, "b s c"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        cache: DecoderCache | None = None,
        keep: Keep | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return the states (b, t, c) of embedded steps x (b, t, c), which may read a context."""
        own = None if mask is None else as_mask(mask)
        other = None if context_mask is None else as_mask(context_mask)
        for at, layer in enumerate(self.layers):
            x = layer(x, context, mask=own, context_mask=other, cache=cache, at=at, keep=keep)
        return F.dropout(self.norm(x), self.dropout, self.training)
