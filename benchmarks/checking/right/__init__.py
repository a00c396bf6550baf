"""Correct attentions of many libraries: the examiner must not call any of them wrong."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from right.case import Case

PARTS = ("functions", "own", "torch_layers", "diffusers_layers", "keras_layers",
         "x_transformers_layers", "of_transformers", "by_hand")  # fmt: skip


def cases() -> Iterator[Case]:
    """Every case, library by library."""
    for part in PARTS:
        yield from import_module(f"right.{part}").CASES


__all__ = ["Case", "cases"]
