"""The opening state of a page: the most informative head and word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from intently.show.page.items import Item
from intently.show.page.sides import Picture

COMPARED = 512
"""Texts of more tokens are not searched for the word that they read most differently."""


def opening(items: Sequence[Item]) -> dict[str, Any]:
    """Return the first state of a page: all heads of a text, or what CLS looks at in a picture.

    For two texts: the first word in which their translations differ, in the head that reads the
    two texts most differently; without translations, the shared word that one head reads most
    differently.
    """
    first = items[0].sides[0]
    if isinstance(first, Picture) and first.before:
        return {"view": "text", "entry": len(items[0].layers) - 1, "heads": "mean", "row": 0}
    if len(items) < 2:
        return {}
    found = [*_parting(items)] or [*_shared(items)]
    return {"view": "text", **max(found, key=lambda one: one[0], default=(0.0, {}))[1]}


def _parting(items: Sequence[Item]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield how far cross-attention heads differ where two translations diverge, and the state."""
    for entry, (one, other) in enumerate(zip(items[0].layers, items[1].layers)):
        if one.rows == one.columns or not one.row_labels or not other.row_labels:
            continue
        written = list(zip(one.row_labels, other.row_labels))
        row = next((n for n, (a, b) in enumerate(written) if a != b), None)
        sides = [item.sides[layer.columns] for item, layer in zip(items, (one, other))]
        if row is None or one.heads != other.heads or len(sides[0]) != len(sides[1]):
            continue
        words = [getattr(side, "tokens", ()) for side in sides]
        known = {word: n for n, word in enumerate(dict.fromkeys((*words[0], *words[1])))}
        looked = torch.zeros(2, one.heads, len(known))
        for n, layer in enumerate((one, other)):
            at = torch.tensor([known[word] for word in words[n]])
            weights = layer.matrix[..., row, :].reshape(one.heads, -1)
            looked[n].index_add_(1, at, weights.float())
        apart = (looked[0] - looked[1]).abs().sum(-1)
        head = int(apart.argmax())
        yield float(apart[head]), _compared(entry, head, row)


def _shared(items: Sequence[Item]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield how far heads of self-attention differ at a shared word, and the state."""
    both = zip(*(getattr(item.sides[0], "tokens", ()) for item in items[:2]))
    shared = torch.tensor([a == b for a, b in both])
    for entry, (one, other) in enumerate(zip(items[0].layers, items[1].layers)):
        t = one.matrix.shape[-2]
        if one.rows or one.columns or one.matrix.shape != other.matrix.shape or t > COMPARED:
            continue
        apart = (one.matrix.dense() - other.matrix.dense()).abs().sum(-1).reshape(-1, t) * shared
        if float(apart.max()) > 0:
            head, row = divmod(int(apart.argmax()), t)
            yield float(apart.max()), _compared(entry, head, row)


def _compared(entry: int, head: int, row: int) -> dict[str, Any]:
    return {
        "item": 1,
        "entry": entry,
        "heads": str(head),
        "row": row,
        "other": f"0.{entry}.{head}.at.{row}",
    }
