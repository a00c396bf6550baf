"""Positions: what tells attention the order of its inputs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from intently.errors import ArgumentError, build


def sinusoidal(
    t: int,
    c: int,
    *,
    base: float = 10_000.0,
    offset: int = 0,
    device: torch.device | str | None = None,
) -> Float[Tensor, "t c"]:
    """Return the sinusoidal encoding (t, c) of positions offset … offset + t − 1.

    It is added to the embeddings. Even dimensions 2i hold sin(p / base^(2i/c)), odd ones 2i + 1
    the cosine; c must be even.

    Source: Vaswani et al. 2017, section 3.5.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if c % 2 or c < 2:
        raise build(ArgumentError, "c", "an even width ≥ 2", c, "sines and cosines come in pairs")
    if t < 0:
        raise build(ArgumentError, "t", "a number of positions ≥ 0", t)
    position = torch.arange(offset, offset + t, dtype=torch.float64, device=device)
    rate = base ** (-torch.arange(0, c, 2, dtype=torch.float64, device=device) / c)
    angle = position[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(torch.get_default_dtype())
