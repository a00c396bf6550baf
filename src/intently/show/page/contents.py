"""The contents of a page: a description in plain values, and blocks of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.matrix import Dense
from intently.core.matrix.patterns import measure
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_kind, check_word
from intently.show.page.items import Item, Layer
from intently.show.page.packing import NumberBlocks, check_size
from intently.show.page.stored import Precision, StoredOperands, bound, stored

FORMAT = "intently-page-1"

CELLS = 64
"""Most rows and columns of an overview."""

AT_ONCE = 2**28
"""Most bytes of weights held in memory, so that they are computed once for all measures."""

FEW = 2**20
"""Most weights whose statistics are those of the held weights; more are measured by the kernel."""


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
    kinds: Mapping[tuple[str, int], str] | None = None,
) -> Packed:
    """Store and measure every head of every item.

    ``start`` is the state in which the page opens. Raises `ArgumentError` for an unknown precision,
    a highlight of a missing head or an invalid start, `KindError` for other types, `MemoryRefused`
    for pages that would be too large.
    """
    check_word(precision, "precision", ("half", "full"))
    check_kind(kinds, (Mapping, type(None)), "kinds", "words by (layer, head), or None")
    if title is not None and not isinstance(title, str):
        raise build(KindError, "title", "a text, or None", repr(title))
    state = _state(start)
    check_size(sum(_bytes(layer, precision) for item in items for layer in item.layers))
    marks = [_highlight(mark, items) for mark in highlights]
    page = _PageContents(precision)
    described_items = [item.described(page.entry) for item in items]
    meta = {
        "format": FORMAT,
        "title": title or items[0].name,
        "precision": precision,
        "source": "file",
        "bound": {"weights": page.bound if math.isfinite(page.bound) else None, "nan": page.nan},
        "blocks": page.blocks.kinds,
        "items": described_items,
        "statistics": list(page.statistics),
        "kinds": _by_layer(kinds or {}),
        "state": state,
        "highlights": marks,
    }
    return Packed(meta, page.blocks.packed, frozenset(page.first))


def _by_layer(kinds: Mapping[tuple[str, int], str]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for (layer, head), kind in kinds.items():
        found.setdefault(layer, {})[head] = kind
    return found


class _PageContents:
    """Describes layers one by one and gathers their numbers in blocks."""

    def __init__(self, precision: Precision) -> None:
        self.precision: Precision = precision
        self.dtype = "float16" if precision == "half" else "float32"
        self.blocks = NumberBlocks()
        self.first: set[int] = set()
        self.statistics: dict[str, None] = {}  # in the order in which they come up
        self.bound, self.nan = 0.0, False

    def entry(self, layer: Layer) -> dict[str, Any]:
        """Return the description of a layer, whose numbers become blocks."""
        kept = stored(layer.matrix, self.precision)
        self.bound = max(self.bound, bound(layer.matrix, kept))
        measures = self.measures(kept.matrix, layer.tokens)
        check_size(sum(map(len, self.blocks.packed)) * 4 // 3)
        if isinstance(kept, StoredOperands):
            numbers = self.numbers(kept)
        else:
            heads = kept.matrix.weights.reshape(-1, *kept.matrix.shape[-2:])
            numbers = {"score": {"kind": "weights", "blocks": self.each(heads, self.dtype)}}
        return {**described(layer), **numbers, **measures}

    def each(self, heads: Tensor, dtype: str) -> list[int]:
        """Return the index of a block for each head."""
        return [self.blocks.add(head, dtype) for head in heads]

    def numbers(self, kept: StoredOperands) -> dict[str, Any]:
        """Return the numbers that the weights are computed from."""
        energy, mask, bias = kept.energy, kept.mask, kept.bias
        score: dict[str, Any] = {"kind": "dot"}
        if energy is not None:
            score = {"kind": "additive", "energy": self.blocks.add(energy, "float32")}
        bits = bias_blocks = None
        if mask is not None:
            one = mask if len(mask) > 1 else mask[0]
            bits = {"block": self.blocks.add(one, "bits"), "heads": len(mask)}
        if bias is not None:
            bias_blocks = {"kind": bias.kind, "blocks": self.each(bias.values, "float32")}
        return {
            "score": score,
            "scale": kept.scale,
            "softcap": kept.softcap,
            "sinks": kept.sinks,
            "d": kept.q.shape[-1],
            "group": len(kept.q) // len(kept.k),
            "q": self.each(kept.q, self.dtype),
            "k": self.each(kept.k, self.dtype),
            "mask": bits,
            "bias": bias_blocks,
        }

    def measures(self, matrix: Attention | Dense, tokens: Sequence[int] | None) -> dict[str, Any]:
        """Return sums, an overview and statistics of the heads of (t, s), (h, t, s), (1, h, t, s).

        ``tokens`` number the tokens of a self-attention; None where they are unknown.
        """
        *lead, t, s = matrix.shape
        h = lead[-1] if lead else 1
        with torch.no_grad():
            lse = matrix.lse.reshape(h, t) if isinstance(matrix, Attention) else ()
            fits = h * t * s * 8 <= AT_ONCE and not isinstance(matrix, Dense)
            held = Dense(matrix.dense()) if fits else matrix
            few = (
                tokens is None and h * t * s <= FEW
            )  # with tokens, the mask tells which are padding
            averages = measure(held if few else matrix, tokens)
            pixels, largest = thumbnails(held.pool(min(CELLS, t), min(CELLS, s)).reshape(h, -1))
            entropy, received = held.entropy().reshape(h, t), held.received().reshape(h, s)
        overview = self.blocks.add(pixels.reshape(h, min(CELLS, t), min(CELLS, s)), "uint8")
        self.first.add(overview)
        self.nan = self.nan or bool(entropy.isnan().any())
        self.statistics |= dict.fromkeys(averages)
        return {
            "lse": [self.blocks.add(head, "float64") for head in lse],
            "entropy": self.each(entropy, "float32"),
            "received": self.each(received, "float32"),
            "overview": overview,
            "overview_max": plain(largest),
            "statistics": {name: plain(one.value().reshape(h)) for name, one in averages.items()},
        }


def thumbnails(means: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean weights w (h, …) as bytes, round(255 √(w / largest)), and the largest."""
    largest = means.flatten(1).amax(-1) if means.numel() else torch.zeros(len(means))
    shares = means / largest.clamp_min(1e-300).reshape(-1, *[1] * (means.ndim - 1))
    return (255 * shares.clamp(0, 1).nan_to_num(0).sqrt()).round().to(torch.uint8), largest


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
        **{"scale": 1.0, "softcap": None, "sinks": None, "d": 0, "group": 1},
        **{"q": [], "k": [], "mask": None, "bias": None},
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
    if not isinstance(start, Mapping | None):
        expected = 'a state by name, {"view": "text", "row": 7} say'
        raise build(KindError, "start", expected, repr(start)[:60])
    for name, value in (start or {}).items():
        fits = isinstance(value, str | int | None)
        if not fits and not (isinstance(value, float) and math.isfinite(value)):
            expected = "a text, a finite number, or None"
            raise build(ArgumentError, f"start[{name!r}]", expected, repr(value)[:60])
    return {str(name): value for name, value in (start or {}).items()}


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
