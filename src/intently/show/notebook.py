"""Notebook displays of a matrix, a bias or a recording: small pictures and a line of text.

The notebook calls them implicitly, so they are quick and small and never raise: whatever is too
large to draw is only described.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import torch

from intently.biases import Bias
from intently.matrix import LazyMatrix
from intently.show.choosing import Entry, Recording
from intently.show.labels import visible
from intently.show.reading import numbers
from intently.show.style import BELOW, WEIGHTS

MOST = 2**24
"""Most weights that are computed for a display; larger matrices are described, not drawn."""
HEADS, CELLS = 12, 96
SIDE, SMALL = 192, 72
LAYERS = 24


class Thumb(NamedTuple):
    """A small picture and its caption."""

    values: np.ndarray
    name: str


def matrix_html(matrix: LazyMatrix) -> str:
    """Return the heads of the first item as pictures and the matrix's line; text if too large."""
    return _safely(lambda: _matrix(matrix), matrix)


def bias_html(bias: Bias) -> str:
    """Return pictures of what the bias adds to the scores of 32 queries and keys, head by head."""
    return _safely(lambda: _bias(bias), bias)


def recording_html(recording: Recording) -> str:
    """Return the heads of each layer as a row of pictures, and the recording's line."""
    return _safely(lambda: _recording(recording), recording)


def _safely(draw: Callable[[], str], value: object) -> str:
    try:
        return draw()
    except Exception:  # a display must not be the error that hides the user's own
        return f"<code>{escape(_line(value))}</code>"


def _line(value: object) -> str:
    return "\n".join(visible(line, 200) for line in repr(value).split("\n"))


def _matrix(matrix: LazyMatrix) -> str:
    *lead, t, s = matrix.shape
    h = lead[-1] if lead else 1
    shown = min(h, HEADS)
    said = ""
    if not t * s * shown * math.prod(lead[:-1]):
        return f"<code>{escape(_line(matrix))}</code>"
    if _of(matrix, 0)._row_size() * t * shown > MOST:
        said = "too large to draw unasked: it.show.heatmap(A) does, or A.pool(64, 64)"
        return _figure([], matrix, said)
    thumbs = [Thumb(_cells(_of(matrix, n)), f"head {n}" if h > 1 else "") for n in range(shown)]
    parts = [f"{t} queries (down) × {s} keys (across)"]
    parts += [f"the first {HEADS} of {h} heads"] if h > HEADS else []
    parts += [f"item 0 of {math.prod(lead[:-1])}"] if math.prod(lead[:-1]) > 1 else []
    parts.append(f"darkest {_top(thumbs):.3g}")
    return _figure(thumbs, matrix, ", ".join(parts))


def _top(thumbs: Sequence[Thumb]) -> float:
    """Return the largest magnitude: pictures side by side share one scale."""
    finite = [np.abs(thumb.values[np.isfinite(thumb.values)]) for thumb in thumbs]
    return float(np.concatenate(finite).max(initial=0)) if finite else 0.0


def _of(matrix: LazyMatrix, head: int) -> LazyMatrix:
    lead = matrix.ndim - 2
    return matrix[(*(0,) * (lead - 1), head)] if lead else matrix


def _cells(matrix: LazyMatrix) -> np.ndarray:
    with torch.no_grad():
        return numbers(matrix.pool(CELLS, CELLS, how="max"))


def _bias(bias: Bias) -> str:
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
    return _figure(
        shown[:HEADS], bias, f"{t} queries × {s} keys{more}, {ends}".replace("-", "−"), True
    )


def _recording(recording: Recording) -> str:
    left = MOST
    rows = []
    entries: Sequence[Entry] = recording.calls
    for entry in entries[:LAYERS]:
        rows.append(_row(entry, left))
        left -= _size(entry)
    more = len(entries) - LAYERS
    table = (
        f'<table style="border-collapse:collapse;color:inherit">{"".join(rows)}</table>'
        if rows
        else ""
    )
    said = escape(_line(recording)) + (f" … {more} calls more" if more > 0 else "")
    caption = f"<figcaption><code>{said}</code></figcaption>"
    return f'<figure style="margin:0.5em 0">{caption}{table}</figure>'


def _size(entry: Any) -> int:
    *lead, t, s = entry.shape
    return min(lead[-1] if lead else 1, HEADS) * t * s


def _row(entry: Any, left: int) -> str:
    name = escape(visible(f"{entry.name}", 60))
    shape = " × ".join(map(str, entry.shape))
    if entry.verified is False:
        drawn = "not verified: seen.coverage() says why"
    elif _size(entry) > left or not _size(entry):
        drawn = "it.show.heatmap draws it" if _size(entry) else "empty"
    else:
        matrix = entry.matrix()
        shown = min(matrix.shape[-3], HEADS)
        heads = [Thumb(_cells(_of(matrix, n)), "") for n in range(shown)]
        drawn = " ".join(_image(thumb, (SMALL, _top(heads)), signed=False) for thumb in heads)
    cell = 'style="padding:2px 8px;vertical-align:middle;text-align:left"'
    head = f"<th {cell}><code>{name}</code><br><small>{shape}</small></th>"
    return f"<tr>{head}<td {cell}>{drawn}</td></tr>"


def _figure(thumbs: Sequence[Thumb], value: object, said: str, signed: bool = False) -> str:
    side = SIDE if len(thumbs) == 1 else SMALL * 2 if len(thumbs) <= 4 else SMALL
    look = side, _top(thumbs)
    pictures = "".join(
        f'<span style="display:inline-block;margin:0 6px 4px 0;font-size:75%">'
        f"{_image(thumb, look, signed)}<br>{escape(thumb.name)}</span>"
        for thumb in thumbs
    )
    return (
        f'<figure style="margin:0.5em 0">{pictures}'
        f'<figcaption style="font-size:85%"><code>{escape(_line(value))}</code><br>'
        f"{escape(said)}</figcaption></figure>"
    )


def _image(thumb: Thumb, look: tuple[int, float], signed: bool) -> str:
    side, top = look
    t, s = thumb.values.shape
    scale = side / max(t, s)
    wide, high = max(round(s * scale), 4), max(round(t * scale), 4)
    data = base64.b64encode(_png(_colours(thumb.values, top, signed))).decode()
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


def _png(pixels: np.ndarray) -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
