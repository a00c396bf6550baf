"""The opening state of a page: the most informative head and word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from intently.core.matrix import Dense
from intently.core.matrix.patterns import measure
from intently.show.page.contents import Highlight
from intently.show.page.items import Item, Picture

CLEAR = 0.5
"""The least mean of the largest weights for which a page opens on a head."""

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


def opened_on(items: Sequence[Item]) -> tuple[dict[str, Any], list[Highlight]]:
    """Return the state in which a page of one text opens, on its telling head, and why.

    Both are empty for other pages, for texts of more than 512 tokens, and where no head tells much.
    """
    if len(items) != 1 or any(isinstance(side, Picture) for side in items[0].sides):
        return {}, []
    if any(max(layer.matrix.shape[-2:]) > COMPARED for layer in items[0].layers):
        return {}, []
    best = telling(items[0])
    if best is None:
        return {}, []
    entry, head, why = best
    mark = Highlight(0, items[0].layers[entry].name, head, f"opened on {why}")
    return {"view": "head", "entry": entry, "heads": str(head)}, [mark]


def telling(item: Item) -> tuple[int, int, str] | None:
    """Return the layer and head of a text that say most, and why; None where all are diffuse, or
    look at one place.

    Its queries put most of their weight on one key each (confidence: Voita et al. 2019, section 4),
    and that key is not the same for all (a sink, whichever it is), the query's own or the one
    before: what is left of the mean largest weight after these three is its score. Cross-attention,
    which pairs words of two texts, counts double.

    >>> import intently as it
    >>> from intently.show.page.items import items_of
    >>> weights = torch.stack([torch.full((4, 4), 0.25), torch.eye(4)[[2, 3, 0, 1]]])
    >>> telling(items_of({"a": it.core.matrix.Dense(weights)})[0])[2]  # doctest: +ELLIPSIS
    'head 1 of a: each word puts 1.00 of its weight on a single word, on average; no word gets ...'
    """
    best: tuple[int, int, str] | None = None
    highest = 0.0
    for entry, layer in enumerate(item.layers):
        if min(layer.matrix.shape[-2:]) < 3:
            continue
        held = Dense(layer.matrix.dense())
        averages = measure(held)
        cross = layer.rows != layer.columns
        received = held.received()
        shared = (received.amax(-1) / received.sum(-1).clamp(min=1e-9)).reshape(-1)
        plain = [shared]
        plain += [] if cross else [averages[n].value().reshape(-1) for n in ("self", "previous")]
        confidence = averages["confidence"].value().reshape(-1).nan_to_num(0)
        score = confidence - torch.stack(plain).nan_to_num(0).amax(0)
        score = torch.where(confidence >= CLEAR, score * (1 + cross), -1.0)
        head = int(score.argmax())
        if score[head] > highest:
            why = (
                f"head {head} of {layer.name}: each word puts {confidence[head]:.2f} of its weight "
                f"on a single word, on average; no word gets more than {shared[head]:.2f} of all"
            )
            highest, best = float(score[head]), (entry, head, why)
    return best


def _parting(items: Sequence[Item]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield how far cross-attention heads differ where two translations diverge, and the state."""
    for entry, (one, other) in enumerate(zip(items[0].layers, items[1].layers)):
        if one.rows == one.columns or not one.row_labels or not other.row_labels:
            continue
        written = enumerate(zip(one.row_labels, other.row_labels))
        row = next((n for n, (a, b) in written if a != b), None)
        sides = [item.sides[layer.columns] for item, layer in zip(items, (one, other))]
        if row is None or one.heads != other.heads or len(sides[0]) != len(sides[1]):
            continue
        words = [getattr(side, "tokens", ()) for side in sides]
        known = {word: n for n, word in enumerate(dict.fromkeys((*words[0], *words[1])))}
        looked = torch.zeros(2, one.heads, len(known))
        for n, layer in enumerate((one, other)):
            places = torch.tensor([known[word] for word in words[n]])
            weights = layer.matrix[..., row, :].reshape(one.heads, -1)
            looked[n].index_add_(1, places, weights.float())
        apart = (looked[0] - looked[1]).abs().sum(-1)
        yield float(apart.max()), _compared(entry, int(apart.argmax()), row)


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
            yield float(apart.max()), _compared(entry, *divmod(int(apart.argmax()), t))


def _compared(entry: int, head: int, row: int) -> dict[str, Any]:
    pin = f"0.{entry}.{head}.at.{row}"
    return {"item": 1, "entry": entry, "heads": str(head), "row": row, "pin": pin}
