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

from intently.errors import ArgumentError, build
from intently.masks import Mask
from intently.modules.caches import FixedCache, KeyValueCache
from intently.modules.multi_head import MultiHeadAttention

Norm = Literal["pre", "post"]


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between, each position on its own: (b, t, c) → (b, t, c).

    Source: Vaswani et al. 2017, section 3.3, equation 2.
    """

    def __init__(self, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.dropout = dropout
        for linear in (self.up, self.down):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        """Return down(relu(up(x)))."""
        inner = F.relu(self.up(x), inplace=True)
        return self.down(F.dropout(inner, self.dropout, self.training))


class _Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise build(ArgumentError, "norm", '"pre" or "post"', repr(norm))
        self.norm, self.dropout = norm, dropout

    def _step(self, x: Tensor, layer_norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm == "pre":
            return x + F.dropout(f(layer_norm(x)), self.dropout, self.training)
        return layer_norm(x + F.dropout(f(x), self.dropout, self.training))


class EncoderLayer(_Residual):
    """Self-attention, then feed-forward, each with a residual, a norm and dropout."""

    def __init__(
        self, width: int, heads: int, inner: int, *, norm: Norm = "pre", dropout: float = 0.0
    ) -> None:
        super().__init__(norm, dropout)
        self.self_attention = MultiHeadAttention(width, heads)
        self.feed_forward = FeedForward(width, inner)
        self.self_norm = nn.LayerNorm(width)
        self.feed_norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Float[Tensor, "b s c"],
        *,
        mask: Mask | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) after this layer; ``cache`` may keep what was attended."""
        x = self._step(x, self.self_norm, lambda y: self.self_attention(y, mask=mask, cache=cache))
        return self._step(x, self.feed_norm, self.feed_forward)


class DecoderLayer(_Residual):
    """Masked self-attention, attention to the encoder's states, feed-forward.

    A row of the states may serve m consecutive rows of x, the beams of a sentence: their queries
    lie side by side on the axis t of the cross-attention, which treats each query on its own,
    q (n, h, m·t, d) against k (n, h, s, d), and nothing is repeated.
    """

    def __init__(
        self, width: int, heads: int, inner: int, *, norm: Norm = "pre", dropout: float = 0.0
    ) -> None:
        super().__init__(norm, dropout)
        self.self_attention = MultiHeadAttention(width, heads)
        self.cross_attention = MultiHeadAttention(width, heads)
        self.feed_forward = FeedForward(width, inner)
        self.self_norm = nn.LayerNorm(width)
        self.cross_norm = nn.LayerNorm(width)
        self.feed_norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        states: Float[Tensor, "n s c"],
        *,
        mask: Mask | None = None,
        states_mask: Mask | None = None,
        cache: tuple[KeyValueCache, FixedCache] | tuple[None, None] = (None, None),
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c): x after attending itself (``mask``) and the encoder's ``states``."""
        own, cross = cache

        def read(y: Tensor) -> Tensor:
            n, (rows, t, c) = len(states), y.shape
            folded = y.reshape(n, rows // max(1, n) * t, c)
            return self.cross_attention(folded, states, mask=states_mask, cache=cross).view_as(y)

        x = self._step(x, self.self_norm, lambda y: self.self_attention(y, mask=mask, cache=own))
        x = self._step(x, self.cross_norm, read)
        return self._step(x, self.feed_norm, self.feed_forward)
