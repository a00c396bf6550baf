"""Attention with a norm before it, and dropout, a residual and a divisor after it, as one block."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.errors import ArgumentError, build, shape_of
from intently.masks import Mask
from intently.matrix import LazyMatrix
from intently.modules import MultiHeadAttention
from intently.modules.weights.loading import AllOrNothing


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
