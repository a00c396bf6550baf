"""Blocks of two libraries side by side: drawn weights, close outputs, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

C, H, D, K, B, T, S = 16, 4, 4, 7, 2, 5, 6
LENGTHS = torch.tensor([3, 6])
SEEN = torch.arange(S) < LENGTHS[:, None]

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

Refusal = tuple[Callable[[], Any], type[Exception], str]
"""How a module of theirs is made, the error that it meets, and words of the message."""


def drawn(module: nn.Module, dtype: torch.dtype = torch.float32, std: float = 0.3) -> Any:
    """Every parameter drawn, so that none can be swapped or dropped unseen."""
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(std=std)
    return module.to(dtype)


def steps(n: int, c: int = C, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(B, n, c).to(dtype)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    limit = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, atol=limit, rtol=limit)


def refused_unchanged(load: Callable[[Any], Any], refusal: Refusal) -> None:
    """A module is refused and left as it was."""
    make, kind, text = refusal
    theirs = make()
    before = {name: p.clone() for name, p in theirs.state_dict().items()}
    with pytest.raises(kind) as caught:
        load(theirs)
    assert text in str(caught.value)
    assert all(torch.equal(before[name], p) for name, p in theirs.state_dict().items())
