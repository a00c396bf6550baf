"""Modules whose parameters are drawn, and tensors compared as float64 allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def drawn(module: nn.Module, std: float = 0.4, generator: torch.Generator | None = None) -> Any:
    """The module in float64 with every parameter drawn, biases too; weights of norms are near 1."""
    module = module.double()
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * std)
            if "norm" in name and name.endswith("weight"):
                p += 1
    return module


def close(found: Any, expected: Any, atol: float = 1e-12, rtol: float = 1e-11) -> None:
    """Compare two tensors, or two sequences of them."""
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)


def renamed(state: dict[str, Tensor], words: dict[str, str]) -> dict[str, Tensor]:
    """The tensors under names in which each of ``words``, in turn, is replaced by another."""
    found = {}
    for name, x in state.items():
        for theirs, ours in words.items():
            name = name.replace(theirs, ours)
        found[name] = x
    return found
