"""Notebook displays of a matrix, a bias or a recording: small pictures and a line of text.

The notebook calls them implicitly, so they are quick and small and never raise: anything too large
to draw is only described.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from functools import wraps
from html import escape
from typing import Any, NamedTuple

import numpy as np
import torch

from intently.core.biases import Bias
from intently.core.matrix import LazyMatrix
from intently.show.cells import highest
from intently.show.inputs import EntryLike, RecordingLike
from intently.show.labels import visible
from intently.show.pictures import encoded
from intently.show.reading import numbers
from intently.show.style import BELOW, WEIGHTS
from intently.show.terminal import TextTable, table_of

MOST = 2**24
"""Most weights that are computed for a display; larger matrices are described, not drawn."""
HEADS, CELLS = 12, 96
SIDE, SMALL = 192, 72
LAYERS = 24


class Thumb(NamedTuple):
    """A small picture and its caption."""

    values: np.ndarray
    name: str


def _safe(draw: Callable[[Any], str]) -> Callable[[Any], str]:
    """Fall back to text on any error: a display must not hide the user's own error."""

    @wraps(draw)
    def safe(value: Any) -> str:
        try:
            return draw(value)
        except Exception:
            return _code(value)

    return safe


def _code(value: object, more: str = "") -> str:
    said = "\n".join(visible(line, 200) for line in repr(value).split("\n"))
    return f"<code>{escape(said)}{more}</code>"


@_safe
def matrix_html(matrix: LazyMatrix) -> str:
    """Return the heads of the first item as pictures and the matrix's line; text if too large."""
    *lead, t, s = matrix.shape
    h = lead[-1] if lead else 1
    shown, items = min(h, HEADS), math.prod(lead[:-1])
    if not t * s * shown * items:
        return _code(matrix)
    if table := table_of(matrix):
        line = escape(matrix._line())
        return (
            f'<figure style="margin:0.5em 0">{_table(table)}'
            f'<figcaption style="font-size:85%"><code>{line}</code></figcaption></figure>'
        )
    if _of(matrix, 0)._row_size() * t * shown > MOST:
        said = "too large to draw unasked: it.show.heatmap(A) does, or A.pool(64, 64)"
        return _figure([], matrix, said)
    thumbs = [Thumb(_cells(_of(matrix, n)), f"head {n}" if h > 1 else "") for n in range(shown)]
    parts = [f"{t} queries (down) × {s} keys (across)"]
    parts += [f"the first {HEADS} of {h} heads"] if h > HEADS else []
    parts += [f"item 0 of {items}"] if items > 1 else []
    parts.append(f"darkest {_top(thumbs):.3g}")
    return _figure(thumbs, matrix, ", ".join(parts))


def _top(thumbs: Sequence[Thumb]) -> float:
    """Return the largest magnitude: pictures side by side share one scale."""
    return max((highest(np.abs(thumb.values)) for thumb in thumbs), default=0.0)


def _of(matrix: LazyMatrix, head: int) -> LazyMatrix:
    lead = matrix.ndim - 2
    return matrix[(*(0,) * (lead - 1), head)] if lead else matrix


def _cells(matrix: LazyMatrix) -> np.ndarray:
    with torch.no_grad():
        return numbers(matrix.pool(CELLS, CELLS, reduce="max"))


@_safe
def bias_html(bias: Bias) -> str:
    """Return pictures of what the bias adds to the scores of 32 queries and keys, head by head."""
    from intently.show.figures.masks import STEPS, added

    moved = bias.replaced(lambda x: x.detach().cpu())
    t = s = STEPS
    for x in moved.tensors():
        if type(bias).__name__ == "TensorBias" and x.ndim >= 2:
            t, s = x.shape[-2:]
    values = added(moved, t, s, CELLS)
    heads = values.reshape(-1, *values.shape[-2:])
    shown = [Thumb(head, f"head {n}" if len(heads) > 1 else "") for n, head in enumerate(heads)]
    finite = values[np.isfinite(values)]
    ends = f"from {finite.min():.3g} (sand) to {finite.max() + 0:.3g} (blue)" if finite.size else ""
    more = f", the first {HEADS} of {len(heads)} heads" if len(heads) > HEADS else ""
    said = f"{t} queries × {s} keys{more}, {ends}".replace("-", "−")
    return _figure(shown[:HEADS], bias, said, True)


@_safe
def recording_html(recording: RecordingLike) -> str:
    """Return the heads of each layer as a row of pictures, and the recording's line."""
    left = MOST
    table = ""
    for entry in recording.calls[:LAYERS]:
        *lead, t, s = entry.shape
        size = min(lead[-1] if lead else 1, HEADS) * t * s
        table += _row(entry, size, left)
        left -= size
    if table:
        table = f'<table style="border-collapse:collapse;color:inherit">{table}</table>'
    more = len(recording.calls) - LAYERS
    said = _code(recording, f" … {more} calls more" if more > 0 else "")
    return f'<figure style="margin:0.5em 0"><figcaption>{said}</figcaption>{table}</figure>'


def _row(entry: EntryLike, size: int, left: int) -> str:
    """Return an entry as a row of a table; more than ``left`` weights are not drawn."""
    shape = " × ".join(map(str, entry.shape))
    drawn = "it.show.heatmap draws it" if size else "empty"
    if entry.verified is False:
        drawn = "not verified: seen.coverage() says why"
    elif 0 < size <= left:
        matrix = entry.matrix()
        heads = [Thumb(_cells(_of(matrix, n)), "") for n in range(min(matrix.shape[-3], HEADS))]
        drawn = " ".join(_image(thumb, SMALL, _top(heads)) for thumb in heads)
    cell = 'style="padding:2px 8px;vertical-align:middle;text-align:left"'
    name = escape(visible(entry.name, 60))
    head = f"<th {cell}><code>{name}</code><br><small>{shape}</small></th>"
    return f"<tr>{head}<td {cell}>{drawn}</td></tr>"


def _figure(thumbs: Sequence[Thumb], value: object, said: str, signed: bool = False) -> str:
    side = SIDE if len(thumbs) == 1 else SMALL * 2 if len(thumbs) <= 4 else SMALL
    pictures = "".join(
        f'<span style="display:inline-block;margin:0 6px 4px 0;font-size:75%">'
        f"{_image(thumb, side, _top(thumbs), signed)}<br>{escape(thumb.name)}</span>"
        for thumb in thumbs
    )
    return (
        f'<figure style="margin:0.5em 0">{pictures}'
        f'<figcaption style="font-size:85%">{_code(value)}<br>'
        f"{escape(said)}</figcaption></figure>"
    )


def _image(thumb: Thumb, side: int, top: float, signed: bool = False) -> str:
    from PIL import Image

    t, s = thumb.values.shape
    wide, high = (max(round(n * side / max(t, s)), 4) for n in (s, t))
    image = Image.fromarray(_colours(thumb.values, top, signed))
    data = base64.b64encode(encoded(image, format="PNG")).decode()
    label = escape(thumb.name or "weights")
    return (
        f'<img alt="{label}, {t} by {s} cells" width="{wide}" height="{high}" '
        f'style="image-rendering:pixelated;border:1px solid #b4b4b4;display:inline-block" '
        f'src="data:image/png;base64,{data}">'
    )


def _colours(values: np.ndarray, top: float, signed: bool) -> np.ndarray:
    """Return pixels (t, s, 3): white to blue, sand below 0, grey where not finite."""
    finite = np.isfinite(values)
    kept = np.where(finite, values, 0)
    top = top or 1.0
    stops = [*BELOW, *(WEIGHTS[0], *WEIGHTS[1::2])] if signed else WEIGHTS
    shares = kept / top / 2 + 0.5 if signed else np.clip(kept / top, 0, 1)
    table = np.array([[int(stop[n : n + 2], 16) for n in (1, 3, 5)] for stop in stops])
    at = np.linspace(0, 1, len(stops))
    found = np.stack([np.interp(shares, at, table[:, n]) for n in range(3)], -1)
    found[~finite] = 200
    return found.round().astype(np.uint8)


def _table(table: TextTable) -> str:
    """Return the table of a small labelled matrix, each weight on its shade."""
    cell = 'style="padding:2px 6px;text-align:right'
    head = "".join(f'<th {cell}">{escape(name)}</th>' for name in table.columns)
    top = highest(table.weights) or 1.0
    lines = [f"<tr><th></th>{head}</tr>"]
    for name, row in zip(table.rows, table.weights):
        cells = "".join(f'<td {cell};{_shade(w / top)}">{w:.2f}</td>' for w in row)
        lines.append(f'<tr><th {cell}">{escape(name)}</th>{cells}</tr>')
    return f'<table style="border-collapse:collapse;color:inherit">{"".join(lines)}</table>'


def _shade(share: float) -> str:
    """Return the colours of a weight, as its share of the largest."""
    if not np.isfinite(share):
        return "background:#c8c8c8;color:#000"
    stop = WEIGHTS[round(min(max(share, 0.0), 1.0) * (len(WEIGHTS) - 1))]
    return f"background:{stop};color:{'#fff' if share > 0.5 else '#000'}"
