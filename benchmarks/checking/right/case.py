"""A correct attention, and what its user would tell the examiner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """``make`` builds it; ``asked`` are the arguments of `check`; ``seconds`` it may take."""

    name: str
    make: Callable[[], Any]
    asked: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 5.0


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers."""
    draw = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=draw)


def tokens(rows: int, length: int, most: int = 90) -> Tensor:
    """Random tokens, none of them a special one."""
    return torch.randint(5, most, (rows, length), generator=torch.Generator().manual_seed(length))


def real(rows: int, length: int, side: str = "right", padded: int = 2) -> Tensor:
    """True for what is no padding; the last row is padded at a side."""
    out = torch.ones(rows, length, dtype=torch.bool)
    out[-1, slice(-padded, None) if side == "right" else slice(padded)] = False
    return out


def lower(t: int, s: int | None = None) -> Tensor:
    """True where query i may attend key j of a causal mask, aligned bottom-right."""
    s = t if s is None else s
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)
