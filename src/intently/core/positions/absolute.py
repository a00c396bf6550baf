"""Positions that are added to the embeddings: sines and cosines, or a learned table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from intently.core.masks.geometry import integers
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats, valued
from intently.foundation.checks import whole_number
from intently.foundation.values import Value


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
            raise build(
                ArgumentError,
                "positions",
                f"positions in a table of n={n}, 0 … {n - 1}",
                f"{first} … {end - 1}",
                f"the longest length it knows is {n}",
                "shorten the input, or learn a longer table",
            )

    def __repr__(self) -> str:
        return f"Learned({'×'.join(map(str, self.table.shape))} tensor)"


def _positions(t: int, offset: int | Tensor, device: torch.device | str | None) -> Tensor:
    """Positions (…, t) of t steps; the device is that of the offsets unless given."""
    if isinstance(offset, int):
        return torch.arange(offset, offset + t, device=device)
    offset = integers(offset, "offset")
    device = offset.device if device is None else device
    return offset.to(device)[..., None] + torch.arange(t, device=device)
