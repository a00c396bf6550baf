"""Blocks of two libraries side by side: drawn weights, close outputs, and refusals."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

C, H, D, K, B, T, S = 16, 4, 4, 7, 2, 5, 6
LENGTHS = torch.tensor([3, 6])
SEEN = torch.arange(S) < LENGTHS[:, None]

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def in_both(forms: Iterable[str], *halves: str) -> list[tuple[str, torch.dtype]]:
    """Every form in float32, in train mode, and some in bfloat16, in eval mode."""
    whole = [(form, torch.float32) for form in forms]
    return whole + [(form, torch.bfloat16) for form in halves]


Refusals = Mapping[type[Exception], Mapping[str, Callable[[], Any]]]
"""By error and words of its message: how a module that meets it is made."""


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


def changed(module: nn.Module, place: str, value: Any) -> Any:
    """The module with another attribute, parameter or part at a dotted place."""
    owner, _, name = place.rpartition(".")
    setattr(module.get_submodule(owner), name, value)
    return module


def same_outputs_with_dropout(theirs: Callable[[], Tensor], ours: Callable[[], Tensor]) -> None:
    """Both drop the same numbers where they draw from the same seed."""
    torch.manual_seed(1)
    expected = theirs()
    torch.manual_seed(1)
    close(ours(), expected)


def same_gradients(ours: Tensor, theirs: Tensor, x: Tensor) -> None:
    """The outputs are close, and so are their gradients by ``x``."""
    close(ours, theirs)
    up = torch.randn_like(theirs)
    close(torch.autograd.grad(ours, x, up)[0], torch.autograd.grad(theirs, x, up)[0])


def same_state(found: nn.Module, expected: nn.Module) -> None:
    """Every parameter and buffer is equal, bit for bit."""
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)


def refused_unchanged(load: Callable[[Any], Any], refusals: Refusals) -> object:
    """Return a test of each module: it is refused, and left as it was."""
    rows = [(kind, text, make) for kind, cases in refusals.items() for text, make in cases.items()]

    @pytest.mark.parametrize(("kind", "text", "make"), rows, ids=[row[1][:40] for row in rows])
    def test(kind: type[Exception], text: str, make: Callable[[], Any]) -> None:
        theirs = make()
        before = copy.deepcopy(theirs)
        with pytest.raises(kind, match=re.escape(text)):
            load(theirs)
        same_state(theirs, before)

    return test


ONE = nn.Parameter(torch.ones(1))
"""A parameter that belongs nowhere."""
