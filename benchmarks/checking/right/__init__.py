"""Correct attentions of many libraries: the examiner must not call any of them wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

PARTS = ("functions", "own", "layers", "of_transformers")


@dataclass(frozen=True)
class Case:
    """``make`` builds it; ``asked`` are the arguments of `check`; ``seconds`` it may take."""

    name: str
    make: Callable[[], Any]
    asked: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 5.0


def of(title: str, make: Callable[..., Any], seconds: float = 5.0) -> Callable[..., Case]:
    """What makes cases of one subject: of a name, what is asked, and the arguments of ``make``."""

    def case(name: str, asked: Any = None, *given: Any, **options: Any) -> Case:
        return Case(f"{title}, {name}", lambda: make(*given, **options), asked or {}, seconds)

    return case


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def tokens(rows: int, length: int) -> Tensor:
    """Random tokens, none of them a special one."""
    return torch.randint(5, 90, (rows, length), generator=torch.Generator().manual_seed(length))


def real(rows: int, length: int) -> Tensor:
    """True for what is no padding: the last row ends with two steps of it."""
    return torch.arange(length) < torch.tensor([length] * (rows - 1) + [length - 2])[:, None]


def lower(t: int, s: int | None = None) -> Tensor:
    """True where query i may attend key j of a causal mask, aligned bottom-right."""
    return torch.ones(t, s or t, dtype=torch.bool).tril((s or t) - t)


def cases() -> Iterator[Case]:
    """Every case, library by library."""
    for part in PARTS:
        yield from import_module(f"benchmarks.checking.right.{part}").CASES
