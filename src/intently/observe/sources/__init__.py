"""Where attention is seen: one file for each library, each with the functions it replaces."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

NAMES = ("functional", "ours", "native", "flex", "transformers", "softmax")


def every() -> list[Callable[[Any], list[Any]]]:
    """``targets(searched)`` of every source."""
    return [import_module(f"{__name__}.{name}").targets for name in NAMES]
