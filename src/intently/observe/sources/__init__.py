"""Where attention is seen: one file for each library, each with the functions it replaces."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

NAMES = ("functional", "ours", "native", "transformers")


def every() -> list[Callable[[Any], list[Any]]]:
    """``targets(model)`` of every source."""
    found = [n for n in NAMES if find_spec(f"{__name__}.{n}")]
    return [import_module(f"{__name__}.{name}").targets for name in found]
