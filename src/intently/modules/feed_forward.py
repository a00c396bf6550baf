"""The feed-forward half of a Transformer layer, each position on its own: (b, t, c) → (b, t, c)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Activation: TypeAlias = Callable[[Tensor], Tensor]
"""A function of each number: ``F.relu``, ``F.gelu``, ``F.silu``, …"""


class FeedForward(nn.Module):
    """Two linear maps with an activation between, a ReLU unless given.

    Source: Vaswani et al. 2017, section 3.3, equation 2; GELU: Hendrycks & Gimpel 2016.

    >>> FeedForward(16, 64, activation=F.gelu)(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        inner: int,
        dropout: float = 0.0,
        *,
        activation: Activation = torch.relu_,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.dropout, self.activation = dropout, activation
        _draw(self.up, self.down)

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        """Return down(activation(up(x)))."""
        inner = self.activation(self.up(x))
        return self.down(F.dropout(inner, self.dropout) if self.training else inner)


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) · up(x)): SwiGLU with SiLU, GEGLU with ``F.gelu``.

    ``gate_up`` keeps both maps in one weight (2·inner, c), the rows of the gate before those of up.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 6.

    >>> GatedFeedForward(16, 40, activation=F.gelu)(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        inner: int,
        dropout: float = 0.0,
        *,
        activation: Activation = F.silu,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.dropout, self.activation = dropout, activation
        _draw(self.gate_up, self.down)
        for half in self.gate_up.weight.detach().chunk(2):
            nn.init.xavier_uniform_(half)

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        """Return down(activation(gate(x)) · up(x))."""
        gate, up = self.gate_up(x).chunk(2, -1)
        inner = self.activation(gate) * up
        return self.down(F.dropout(inner, self.dropout) if self.training else inner)


def _draw(*linears: nn.Linear) -> None:
    for linear in linears:
        nn.init.xavier_uniform_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
