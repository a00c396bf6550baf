"""Position encodings, which tell attention the order of its inputs.

`sinusoidal` and `Learned` are added to the embeddings; `Rotary` rotates queries and keys, so that
their dot product depends on their distance, and its scalings extend it to longer texts.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from intently.core.masks.geometry import Geometry, integers
from intently.core.positions.scaling import (
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    RotaryPairs,
    Scaling,
    YaRN,
)
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import check_floats, valued
from intently.foundation.checks import check_word, whole_number
from intently.foundation.on_demand import listed
from intently.foundation.values import Value

__all__ = [
    "DynamicNTK",
    "Learned",
    "Linear",
    "Llama3",
    "LongRope",
    "Rotary",
    "Scaling",
    "YaRN",
    "sinusoidal",
]

__dir__ = listed(__name__)


def sinusoidal(
    t: int,
    c: int,
    *,
    base: float = 10_000.0,
    offset: int | Tensor = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*b t c"]:
    """Return the sinusoidal encoding (t, c) of positions offset … offset + t − 1.

    It is added to the embeddings. Even dimensions 2i hold sin(p / base^(2i/c)), odd ones 2i + 1
    the cosine; c must be even. An offset (b,), one for each row of a batch, gives (b, t, c).
    Raises `ArgumentError` for an odd c or a negative t.

    Source: Vaswani et al. 2017, section 3.5.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if c % 2 or c < 2:
        raise build(ArgumentError, "c", "an even width ≥ 2", c, "sines and cosines come in pairs")
    if t < 0:
        raise build(ArgumentError, "t", "a number of positions ≥ 0", t)
    position = _positions(t, offset, device).double()
    rate = base ** (-torch.arange(0, c, 2, dtype=torch.float64, device=position.device) / c)
    angle = position[..., None] * rate
    wave = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
    return wave.to(torch.get_default_dtype() if dtype is None else dtype)


class Learned(Value):
    """A table (n, c) of the vectors added at the positions 0 … n − 1.

    The call takes t and an offset, an int or a tensor (b,), and returns (t, c) or (b, t, c),
    differentiable in the table. It raises `ArgumentError` for positions outside the table; in a
    compiled graph, offsets in a tensor are checked by the lookup instead.

    Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1.

    >>> table = torch.tensor([[0.0, 0.1], [1.0, 1.1], [2.0, 2.1]])
    >>> Learned(table)(2, offset=1)
    tensor([[1.0000, 1.1000],
            [2.0000, 2.1000]])
    """

    def __init__(self, table: Float[Tensor, "n c"]) -> None:
        check_floats(table, "table", "a floating-point tensor (n, c)")
        if table.ndim != 2:
            raise build(ArgumentError, "table", "shape (n, c)", shape_of(table))
        super().__init__(table)
        self.table = table

    def __call__(self, t: int, offset: int | Tensor = 0) -> Float[Tensor, "*b t c"]:
        """Rows offset … offset + t − 1 of the table."""
        whole_number(t, "t", 0)
        if isinstance(offset, int):
            self._check(offset, offset + t)
            return self.table[offset : offset + t]
        offset = integers(offset, "offset").to(self.table.device)
        if t and offset.numel() and valued(offset):
            self._check(int(offset.min()), int(offset.max()) + t)
        return F.embedding(_positions(t, offset, self.table.device), self.table)

    def _check(self, first: int, end: int) -> None:
        n = self.table.shape[0]
        if first < 0 or end > n:
            expected, got = f"positions in a table of n={n}, 0 … {n - 1}", f"{first} … {end - 1}"
            cause = f"the longest length it knows is {n}"
            fix = "shorten the input, or learn a longer table"
            raise build(ArgumentError, "positions", expected, got, cause, fix)

    def __repr__(self) -> str:
        return f"Learned({'×'.join(map(str, self.table.shape))} tensor)"


def _positions(t: int, offset: int | Tensor, device: torch.device | str | None) -> Tensor:
    """Positions (…, t) of t steps; the device is that of the offsets unless given."""
    if isinstance(offset, int):
        return torch.arange(offset, offset + t, device=device)
    offset = integers(offset, "offset")
    device = offset.device if device is None else device
    return offset.to(device)[..., None] + torch.arange(t, device=device)


@dataclass(frozen=True)
class Rotary:
    """Rotates pair i of the dimensions of x at position p by the angle p · base^(−2i/width).

    The dot products of rotated queries and keys depend only on their distance. A pair is
    (i, i + width/2) in the layout "half", as in Llama and GPT-NeoX, and (2i, 2i + 1) in the layout
    "interleaved", as in the paper, GPT-J and Cohere: the same shapes, but different models. Only
    the first ``width`` of the d dimensions are rotated (all unless given); ``scaling`` stretches
    the angles, see `intently.core.positions.scaling`.

    Angles are computed in float32, as in training, and in float64 for float64; half types are
    rotated in float32 and rounded once. Raises `ArgumentError` for odd widths or unknown layouts.

    Source: Su et al. 2021, "RoFormer", section 3.2.2, equation 15; section 3.4.2, equation 34.

    >>> rotary = Rotary(2, layout="interleaved")
    >>> rotary(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """

    d: int
    _: KW_ONLY
    base: float = 10_000.0
    layout: Literal["half", "interleaved"] = "half"
    scaling: Scaling | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        pairs = "half pairs i with i + width/2, interleaved 2i with 2i + 1"
        check_word(self.layout, "layout", ("half", "interleaved"), pairs)
        if not self.base > 1:
            raise build(ArgumentError, "base", "a number > 1", self.base)
        name, width = ("d", self.d) if self.width is None else ("width", self.width)
        if width % 2 or not 2 <= width <= self.d:
            most = "" if self.width is None else f" and ≤ d={self.d}"
            expected = f"an even number of dimensions ≥ 2{most}"
            raise build(ArgumentError, name, expected, width, "dimensions are rotated in pairs")
        if self.scaling is not None:
            if not isinstance(self.scaling, Scaling):
                expected = "a scaling such as YaRN(4.0, 4096), or None"
                raise build(KindError, "scaling", expected, repr(self.scaling))
            self.scaling.check(width)

    def __call__(
        self,
        x: Float[Tensor, "*lead t d"],
        offset: int | Tensor = 0,
        *,
        positions: Tensor | None = None,
        length: int | Tensor | None = None,
    ) -> Float[Tensor, "*lead t d"]:
        """Queries or keys (…, t, d) rotated to their positions, in the dtype of x.

        Step i is at ``offset + i``; an offset (b,) has one entry for each batch row, the leftmost
        axis. ``positions`` (t,) or (b, t) replace it. ``length``, an int or (b,), is the length for
        scalings that depend on it: by default the position after each row's last. Differentiable in
        x. Raises `ArgumentError` if shapes do not fit.
        """
        check_floats(x, "x", "a floating-point tensor (…, t, d)")
        if x.ndim < 2 or x.shape[-1] != self.d:
            raise build(ArgumentError, "x", f"shape (…, t, d={self.d})", shape_of(x))
        dtype = torch.promote_types(x.dtype, torch.float32)
        g = Geometry(tuple(x.shape[:-2]), x.shape[-2], x.shape[-2], x.device)
        angles = self._angles(g, offset, positions, length, dtype)
        cos, sin = angles.cos(), angles.sin()
        gain = 1.0 if self.scaling is None else self.scaling.gain()
        if gain != 1:
            cos, sin = cos * gain, sin * gain
        width = 2 * angles.shape[-1]
        turning, rest = x[..., :width].to(dtype), x[..., width:]
        if self.layout == "half":
            a, b = turning.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = turning[..., 0::2], turning[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        turned = turned.to(x.dtype)
        return turned if width == self.d else torch.cat([turned, rest], -1)

    def angles(
        self,
        t: int,
        offset: int | Tensor = 0,
        *,
        length: int | Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*b t pairs"]:
        """Angles in radians by which t steps are rotated: (t, width/2), or (b, t, width/2).

        >>> Rotary(4, base=100.0).angles(2, offset=5)
        tensor([[5.0000, 0.5000],
                [6.0000, 0.6000]])
        """
        lead = ()
        if not isinstance(offset, int):
            offset = integers(offset, "offset")
            lead, device = tuple(offset.shape), offset.device if device is None else device
        g = Geometry(lead, t, t, torch.device(device or torch.get_default_device()))
        return self._angles(g, offset, None, length, dtype)

    def _angles(
        self,
        g: Geometry,
        offset: int | Tensor,
        positions: Tensor | None,
        length: int | Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Angles (…, t, width/2), with axes of size 1 where they are shared."""
        width = self.d if self.width is None else self.width
        if positions is not None:
            at, end = _given(g, offset, positions)
        elif isinstance(offset, int):
            at = torch.arange(offset, offset + g.t, device=g.device)[:, None]
            end = offset + g.t
        else:
            start = g.align(integers(offset, "offset"), "offset")
            at, end = start + torch.arange(g.t, device=g.device)[:, None], start + g.t
        pairs = RotaryPairs(self.base, width, dtype, g.device)
        if self.scaling is None:
            return at.to(dtype) * pairs.rates()
        if length is not None:
            end = g.align(length, "length") if isinstance(length, Tensor) else length
        return at.to(dtype) * self.scaling.rates(pairs, end)


def _given(g: Geometry, offset: int | Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (…, t, 1) and the one after each row's last, (…, 1, 1)."""
    if not isinstance(offset, int) or offset:
        expected, cause = "either offset or positions", "positions say where every step stands"
        raise build(ArgumentError, "positions", expected, "both", cause, "add the offset to them")
    if positions.ndim < 1 or positions.shape[-1] != g.t:
        raise build(ArgumentError, "positions", f"shape (t={g.t},) or (b, t)", shape_of(positions))
    lead = tuple(positions.shape[:-1])
    one = g.align(positions.new_empty(lead), "positions")
    at = positions.to(g.device).reshape(*one.shape[:-2], g.t, 1)
    end = at.amax(-2, keepdim=True) + 1 if g.t else one
    return at, end
