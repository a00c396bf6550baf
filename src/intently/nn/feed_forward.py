"""The feed-forward half of a Transformer layer, applied to each position: (b, t, c) → (b, t, c)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import probability, whole_number
from intently.foundation.field_names import answered
from intently.nn.checks import check_dtype
from intently.nn.linear import Linear, xavier
from intently.nn.weights.copying import AllOrNothing, Map, filled, tensors
from intently.nn.weights.reading import (
    Weight,
    check_layout,
    has_bias,
    joined,
    misfit,
    read_map,
    sizes,
)

Activation: TypeAlias = Callable[[Tensor], Tensor]
"""A function of each number: ``F.relu``, ``F.gelu``, ``F.silu``, …"""


class _Maps(AllOrNothing):
    """Maps up, into ``times`` vectors of the inner width, and down."""

    down: nn.Linear

    def __init__(
        self,
        first: str,
        sizes: tuple[int, int, int],
        dropout: float,
        activation: Activation,
        bias: bool,
    ) -> None:
        super().__init__()
        width, inner, times = sizes
        whole_number(width, "width", 1)
        whole_number(inner, "inner", 1)
        self.width, self.dropout = width, probability(dropout, "dropout")
        if not callable(activation):
            expected = "a function of a tensor, F.gelu, say"
            raise build(KindError, "activation", expected, type(activation).__name__)
        self.activation = activation
        self.add_module(first, Linear(width, times * inner, bias))
        self.down = Linear(inner, width, bias)
        xavier(getattr(self, first), self.down)

    def _check(self, x: Tensor, first: nn.Module) -> None:
        """Raise unless x (…, c) is what the first map takes."""
        check_floats(x, "x", f"a floating-point tensor (…, c={self.width})")
        if x.ndim < 1 or x.shape[-1] != self.width:
            raise build(ArgumentError, "x", f"shape (…, c={self.width})", shape_of(x))
        weight = getattr(first, "weight", None)
        if isinstance(weight, Tensor):  # may be replaced, by a quantised layer for example
            check_dtype(x, "x", weight)

    def _down(self, inner: Tensor) -> Tensor:
        return self.down(F.dropout(inner, self.dropout) if self.training else inner)


@answered
class FeedForward(_Maps):
    """Two linear maps with an activation between, a ReLU unless given.

    Raises `ArgumentError` or `KindError` if a width is not an integer ≥ 1, ``dropout`` is not a
    probability, or x has another width, dtype or device.
    Source: Vaswani et al. 2017, section 3.3, equation 2; GELU: Hendrycks & Gimpel 2016.

    >>> import torch
    >>> FeedForward(16, 64, activation=F.gelu)(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    up: nn.Linear

    def __init__(
        self,
        width: int,
        inner: int,
        dropout: float = 0.0,
        *,
        activation: Activation = F.relu,
        bias: bool = True,
    ) -> None:
        super().__init__("up", (width, inner, 1), dropout, activation, bias)

    @classmethod
    def from_weights(
        cls, up: Weight, down: Weight, *, activation: Activation = F.relu
    ) -> FeedForward:
        """Return a layer with copies of the weights of other code.

        ``up`` is (inner, c), ``down`` (c, inner), stored (out, in): each a tensor, a pair
        (weight, bias), an ``nn.Linear`` or a 1 × 1 convolution. Raises `ArgumentError` if shapes do
        not fit and `KindError` for other types, mixed dtypes and integers.

        >>> import torch
        >>> FeedForward.from_weights(torch.ones(64, 16), nn.Linear(64, 16)).down.bias.shape
        torch.Size([16])
        """
        maps = {"up": read_map(up, "up"), "down": read_map(down, "down")}
        n = sizes(maps, up="inner c", down="c inner")
        layer = cls(n["c"], n["inner"], activation=activation, bias=has_bias(maps))
        return filled(layer, tensors(maps))

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        """Return down(activation(up(x)))."""
        self._check(x, self.up)
        return self._down(self.activation(self.up(x)))


@answered
class GatedFeedForward(_Maps):
    """down(activation(gate(x)) · up(x)): SwiGLU with SiLU, GEGLU with ``F.gelu``.

    ``gate_up`` keeps both maps in one weight (2·inner, c), the rows of the gate before those of up.
    Raises as `FeedForward` does.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 6.

    >>> import torch
    >>> GatedFeedForward(16, 40, activation=F.gelu)(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    gate_up: nn.Linear

    def __init__(
        self,
        width: int,
        inner: int,
        dropout: float = 0.0,
        *,
        activation: Activation = F.silu,
        bias: bool = True,
    ) -> None:
        super().__init__("gate_up", (width, inner, 2), dropout, activation, bias)
        for half in self.gate_up.weight.detach().chunk(2):
            nn.init.xavier_uniform_(half)

    @classmethod
    def from_weights(
        cls,
        gate: Weight,
        up: Weight | None,
        down: Weight,
        *,
        layout: str = "separate",
        activation: Activation = F.silu,
    ) -> GatedFeedForward:
        """Return a layer with copies of the weights of other code.

        ``gate`` and ``up`` are (inner, c), ``down`` is (c, inner), each as
        `FeedForward.from_weights` takes them. Where one weight (2·inner, c) holds both, pass it
        as ``gate`` with up = None and say whose rows come first: ``layout="gate up"`` (Phi-3 in
        transformers) or ``"up gate"`` (GEGLU in diffusers). The two layouts have the same shape but
        are different layers. Raises as `FeedForward.from_weights` does.

        >>> import torch
        >>> both, down = torch.ones(2 * 40, 16), torch.ones(16, 40)
        >>> GatedFeedForward.from_weights(both, None, down, layout="up gate").gate_up.weight.shape
        torch.Size([80, 16])
        """
        check_layout(layout, ("separate", "gate up", "up gate"))
        first = read_map(gate, "gate")
        if layout == "separate":
            if up is None:
                fix = 'a weight of both needs layout="gate up" or layout="up gate"'
                raise build(ArgumentError, "up", "a weight of its own (inner, c)", "None", fix=fix)
            maps = {"gate": first, "up": read_map(up, "up")}
        else:
            maps = _halves(first, up, layout)
        maps["down"] = read_map(down, "down")
        n = sizes(maps, gate="inner c", up="inner c", down="c inner")
        layer = cls(n["c"], n["inner"], activation=activation, bias=has_bias(maps))
        both = joined([maps.pop("gate"), maps.pop("up")])
        return filled(layer, tensors({"gate_up": both, **maps}))

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        """Return down(activation(gate(x)) · up(x))."""
        self._check(x, self.gate_up)
        gate, up = self.gate_up(x).chunk(2, -1)
        return self._down(self.activation(gate) * up)


def _halves(both: Map, up: object, layout: str) -> dict[str, Map]:
    """Split the joint weight of gate and up, in the order of the layout."""
    if up is not None:
        expected = f"None: in the layout {layout!r} gate holds both"
        fix = 'separate weights need layout="separate"'
        raise build(ArgumentError, "up", expected, "a weight of its own", fix=fix)
    if len(both.weight) % 2:
        raise misfit("gate", "an even number of rows, (2·inner, c)", both.weight)
    biases = (None, None) if both.bias is None else both.bias.chunk(2)
    return {name: Map(*x) for name, x in zip(layout.split(), zip(both.weight.chunk(2), biases))}
