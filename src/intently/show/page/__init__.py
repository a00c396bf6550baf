"""A page that opens anywhere: one file with every head of every layer.

It holds queries and keys, not weights; the browser computes any row, column or tile exactly from
the stored numbers. `save_page` writes it, ``seen.page(path)`` does so for a recording.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intently.show.page.contents import Highlight, Packed, packed
from intently.show.page.items import Item, Layer, Picture, Shown, Side, Text, items_of
from intently.show.page.stored import Precision

__all__ = [
    "Highlight",
    "Item",
    "Layer",
    "Packed",
    "Picture",
    "Text",
    "items_of",
    "packed",
    "save_page",
]


def save_page(
    source: Shown,
    path: str | os.PathLike[str],
    precision: Precision = "half",
    *,
    title: str | None = None,
    sides: Sequence[Side] = (),
    highlights: Iterable[Highlight] = (),
    start: Mapping[str, Any] | None = None,
) -> Path:
    """Write a page of a recording, of matrices by name, of one matrix, or of items.

    ``precision`` is that of queries and keys: "half" (16 bits) or "full" (32). ``sides`` are texts
    and pictures, assigned to every axis of the same length. The page says how far its weights are
    from the model's. Raises `KindError` for other sources, `ArgumentError` if there is nothing to
    show, for a side that fits no axis, and for a path that does not end in .html, `MemoryRefused`
    for pages that would be too large.

    >>> import tempfile, torch, intently as it
    >>> q, k = torch.randn(2, 4, 6, 8)
    >>> A = it.attend(q, k, mask=it.causal()).label("abcdef", "abcdef")
    >>> path = save_page({"layer.0": A}, tempfile.mkdtemp() + "/out.html")
    >>> path.read_text().startswith("<!DOCTYPE html>")
    True
    """
    from intently.show.page.writing import destination, write

    final = destination(path)
    items = items_of(source, sides=sides)
    made = packed(items, precision, title=title, highlights=highlights, start=start)
    return write(made, final)
