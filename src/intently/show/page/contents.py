"""The contents of a page: a description in plain values, and blocks of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.matrix import Dense, LazyMatrix
from intently.core.matrix.patterns import measure
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_word
from intently.show.page.items import Item, Layer
from intently.show.page.packing import Blocks, check_size
from intently.show.page.stored import Precision, Stored, StoredWeights, bound, stored

FORMAT = "intently-page-1"


@dataclass(frozen=True)
class Highlight:
    """A head that a page points at, with a sentence about it."""

    item: int
    layer: str
    head: int
    text: str


class Packed(NamedTuple):
    """A page before it is written: ``meta`` in plain values, ``blocks`` shuffled and deflated.

    ``first`` are the indices of the blocks that an overview needs.
    """

    meta: dict[str, Any]
    blocks: list[bytes]
    first: frozenset[int]


def packed(
    items: Sequence[Item],
    precision: Precision = "half",
    *,
    title: str | None = None,
    highlights: Iterable[Highlight] = (),
    start: Mapping[str, Any] | None = None,
) -> Packed:
    """Store and measure every head of every item.

    ``start`` is the state in which the page opens. Raises `ArgumentError` for an unknown precision,
    a highlight of a missing head or an invalid start, `KindError` for other types, `MemoryRefused`
    for pages that would be too large.
    """
    check_word(precision, "precision", ("half", "full"))
    if title is not None and not isinstance(title, str):
        raise build(KindError, "title", "a text, or None", repr(title))
    state = _state(start)
    check_size(sum(_bytes(layer, precision) for item in items for layer in item.layers))
    marks = [_highlight(mark, items) for mark in highlights]
    page = _Page(precision)
    told = [page.item(item) for item in items]
    meta = {
        "format": FORMAT,
        "title": title or items[0].name,
        "precision": precision,
        "source": "file",
        "bound": {"weights": page.bound if math.isfinite(page.bound) else None, "nan": page.nan},
        "blocks": page.blocks.kinds,
        "items": told,
        "statistics": page.statistics,
        "state": state,
        "highlights": marks,
    }
    return Packed(meta, page.blocks.packed, frozenset(page.first))


class _Page:
    """Describes items one by one and gathers their numbers in blocks."""

    def __init__(self, precision: Precision) -> None:
        self.precision: Precision = precision
        self.dtype = "float16" if precision == "half" else "float32"
        self.blocks = Blocks()
        self.first: set[int] = set()
        self.statistics: list[str] = []
        self.bound, self.nan = 0.0, False

    def item(self, item: Item) -> dict[str, Any]:
        return {
            "name": item.name,
            "note": item.note,
            "sides": [side.described() for side in item.sides],
            "entries": [self.entry(layer) for layer in item.layers],
        }

    def entry(self, layer: Layer) -> dict[str, Any]:
        made = stored(layer.matrix, self.precision)
        found = measured(made.matrix, layer.tokens)
        self.bound = max(self.bound, bound(layer.matrix, made))
        self.nan = self.nan or bool(found.entropy.isnan().any())
        for name in found.statistics:
            if name not in self.statistics:
                self.statistics.append(name)
        check_size(sum(map(len, self.blocks.packed)) * 4 // 3)
        told = self.numbers(made) if isinstance(made, Stored) else self.weights(made)
        return {**described(layer), **told, **self.measures(found)}

    def numbers(self, made: Stored) -> dict[str, Any]:
        """Return the numbers that the weights are computed from."""
        add = self.blocks.add
        energy, mask, bias = made.energy, made.mask, made.bias
        score: dict[str, Any] = {"kind": "dot"}
        if energy is not None:
            score = {"kind": "additive", "energy": add(energy, "float32")}
        return {
            "score": score,
            "scale": made.scale,
            "softcap": made.softcap,
            "sinks": made.sinks,
            "d": made.q.shape[-1],
            "group": len(made.q) // len(made.k),
            "q": [add(head, self.dtype) for head in made.q],
            "k": [add(head, self.dtype) for head in made.k],
            "mask": None
            if mask is None
            else {"block": add(mask if len(mask) > 1 else mask[0], "bits"), "heads": len(mask)},
            "bias": None
            if bias is None
            else {"kind": bias.kind, "blocks": [add(head, "float32") for head in bias.values]},
        }

    def weights(self, made: StoredWeights) -> dict[str, Any]:
        """Return the weights themselves, head by head."""
        heads = made.matrix.weights.reshape(-1, *made.matrix.shape[-2:])
        blocks = [self.blocks.add(head, self.dtype) for head in heads]
        return {"score": {"kind": "weights", "blocks": blocks}}

    def measures(self, found: Measured) -> dict[str, Any]:
        add = self.blocks.add
        overview = add(found.overview, "uint8")
        self.first.add(overview)
        return {
            "lse": [] if found.lse is None else [add(head, "float64") for head in found.lse],
            "entropy": [add(head, "float32") for head in found.entropy],
            "received": [add(head, "float32") for head in found.received],
            "overview": overview,
            "overview_max": plain(found.largest),
            "statistics": {name: plain(value) for name, value in found.statistics.items()},
        }


def described(layer: Layer) -> dict[str, Any]:
    """Return the description of an attention without any of its numbers."""
    t, s = layer.matrix.shape[-2:]
    return {
        "name": layer.name,
        "kind": "self" if layer.rows == layer.columns else "cross",
        "layer": layer.depth,
        "rows": layer.rows,
        "columns": layer.columns,
        "row_labels": None if layer.row_labels is None else list(layer.row_labels),
        "t": t,
        "s": s,
        "heads": layer.heads,
        "score": {"kind": "dot"},
        "scale": 1.0,
        "softcap": None,
        "sinks": None,
        "d": 0,
        "group": 1,
        "q": [],
        "k": [],
        "mask": None,
        "bias": None,
    }


def plain(numbers: Tensor) -> list[float | None]:
    """Return numbers for JSON, None for those that are not finite."""
    return [x if math.isfinite(x) else None for x in numbers.tolist()]


def _highlight(mark: Highlight, items: Sequence[Item]) -> dict[str, Any]:
    """Return a highlight with the index of its layer."""
    if not isinstance(mark, Highlight) or not isinstance(mark.text, str):
        expected = "highlights: show.page.Highlight(item, layer, head, text)"
        raise build(KindError, "highlights", expected, repr(mark)[:60])
    if type(mark.item) is not int or not 0 <= mark.item < len(items):
        raise build(ArgumentError, "highlights", f"an item < {len(items)}", repr(mark.item))
    names = [layer.name for layer in items[mark.item].layers]
    if mark.layer not in names:
        expected = f"a layer of item {mark.item}: {', '.join(names)}"
        raise build(ArgumentError, "highlights", expected, repr(mark.layer))
    entry = names.index(mark.layer)
    heads = items[mark.item].layers[entry].heads
    if type(mark.head) is not int or not 0 <= mark.head < heads:
        expected = f"a head < {heads} of {mark.layer}"
        raise build(ArgumentError, "highlights", expected, repr(mark.head))
    return {"item": mark.item, "entry": entry, "head": mark.head, "text": mark.text}


def _state(start: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the state in which a page opens, checked for JSON."""
    if start is None:
        return {}
    if not isinstance(start, Mapping):
        expected = 'a state by name, {"view": "text", "row": 7} say'
        raise build(KindError, "start", expected, repr(start)[:60])
    for name, value in start.items():
        plain = value is None or isinstance(value, (str, int, float))
        if not plain or (isinstance(value, float) and not math.isfinite(value)):
            expected = "a text, a finite number, or None"
            raise build(ArgumentError, f"start[{name!r}]", expected, repr(value)[:60])
    return {str(name): value for name, value in start.items()}


def _bytes(layer: Layer, precision: Precision) -> int:
    """Estimate the bytes that an attention takes in a page, as base64."""
    *_, h, t, s = (1, *layer.matrix.shape)
    wide = 2 if precision == "half" else 4
    if isinstance(layer.matrix, Attention) and layer.matrix.q.shape[-1]:
        q, k = layer.matrix.q, layer.matrix.k
        numbers = q[..., 0, 0].numel() * t * q.shape[-1] + k[..., 0, 0].numel() * s * k.shape[-1]
    else:
        numbers = h * t * s
    return int(numbers * wide * 4 / 3) + 12 * h * (t + s)


CELLS = 64
"""Most rows and columns of an overview."""

AT_ONCE = 2**28
"""Most bytes of weights held in memory, so that they are computed once for all measures."""

FEW = 2**20
"""Most weights whose statistics are those of the held weights; more are measured by the kernel."""


@dataclass(frozen=True)
class Measured:
    """Of h heads: ``lse`` (h, t) or None, ``entropy`` (h, t), ``received`` (h, s).

    ``overview`` (h, n, m) are bytes, round(255 √(w / largest)) of mean weights w, and ``largest``
    (h,) those that are 255. ``statistics`` (h,) by name are NaN where a head has none.
    """

    lse: Tensor | None
    entropy: Tensor
    received: Tensor
    overview: Tensor
    largest: Tensor
    statistics: dict[str, Tensor]


def measured(matrix: LazyMatrix, tokens: Sequence[int] | None) -> Measured:
    """Measure the heads of one item, (t, s), (h, t, s) or (1, h, t, s).

    ``tokens`` number the tokens of a self-attention; None where they are unknown.
    """
    *lead, t, s = matrix.shape
    h = lead[-1] if lead else 1
    with torch.no_grad():
        lse = matrix.lse.reshape(h, t) if isinstance(matrix, Attention) else None
        fits = h * t * s * 8 <= AT_ONCE
        held = Dense(matrix.dense()) if fits and not isinstance(matrix, Dense) else matrix
        few = tokens is None and h * t * s <= FEW  # with tokens, the mask tells which are padding
        statistics = measure(held if few else matrix, tokens)
        pooled = held.pool(min(CELLS, t), min(CELLS, s)).reshape(h, min(CELLS, t), min(CELLS, s))
        largest = pooled.flatten(1).amax(-1) if t * s else torch.zeros(h)
        shares = (pooled / largest.clamp_min(1e-300)[:, None, None]).clamp(0, 1).nan_to_num(0)
        return Measured(
            lse,
            held.entropy().reshape(h, t),
            held.received().reshape(h, s),
            (255 * shares.sqrt()).round().to(torch.uint8),
            largest,
            {name: average.value().reshape(h) for name, average in statistics.items()},
        )
