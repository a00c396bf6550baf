"""Word vectors on a map: the plane of largest variance, with neighbours and context."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.show.choosing import place
from intently.show.files import destination, finish
from intently.show.given import as_numbers
from intently.show.labels import bare, titled, visible
from intently.show.reading import numbers
from intently.show.sheet import NOTES, Sheet, heading_of, width_of, wrapped
from intently.show.style import ACCENT, FRAME, GRID, INK, QUIET, WEIGHTS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 60
"""Most words that a map names all; larger maps name the chosen words and their neighbours."""
WIDE, HIGH, MARGIN = 5.6, 4.4, 0.16
SIZE = 8.0
NEAREST = 3


class Plane(NamedTuple):
    """Positions (n, 2) before and, if there is a context, after; their share of the variance."""

    before: np.ndarray
    after: np.ndarray | None
    share: float

    @property
    def every(self) -> np.ndarray:
        """All positions, stacked."""
        return self.before if self.after is None else np.concatenate([self.before, self.after])


def embeddings(
    vectors: Numbers,
    words: Sequence[str],
    *,
    after: Numbers | None = None,
    neighbours: str | int | Sequence[str | int] = (),
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw word vectors (n, c) as a map: the two directions in which they differ most.

    ``vectors`` and ``after`` are tensors, arrays or nested lists.
    ``after`` holds the same words in context (n, c), such as the states after attention: both
    share the plane, and an arrow leads from each word to its place in context. ``neighbours`` are
    words joined to their three nearest neighbours, by cosine in all c dimensions. The axes have no
    unit; a note below gives their share of the variance. Returns the figure, written to ``save``.

    Raises ArgumentError for other shapes, numbers that are not finite, and words that are missing
    or occur twice. The plane is that of principal component analysis (Pearson 1901), by a singular
    value decomposition.

    >>> figure = embeddings(torch.eye(4), ["cat", "dog", "road", "wide"], neighbours="cat")
    >>> len(figure.axes[0].collections[0].get_offsets())
    4
    """
    path = destination(save)
    first = _checked(vectors, "vectors", words)
    second = None if after is None else _checked(after, "after", words)
    if second is not None and second.shape != first.shape:
        expected = f"the shape of vectors, {first.shape}"
        raise build(ArgumentError, "after", expected, shape_of(second))
    asked = [neighbours] if isinstance(neighbours, str | int) else list(neighbours)
    centres = [place(word, words, "neighbours") for word in asked]
    joined = [(n, other) for n in centres for other in _nearest(first, n)]
    names = [visible(bare(word)) for word in words]
    heading = titled(title or ("Words before and after context" if after is not None else "Words"))
    with style((*names, heading)):
        return finish(_draw(_plane(first, second), names, (centres, joined), heading), path)


def _checked(given: Numbers, name: str, words: Sequence[str]) -> np.ndarray:
    vectors = as_numbers(given, name)
    if vectors.ndim != 2 or len(vectors) != len(words) or len(words) < 2 or not vectors.shape[1]:
        raise build(
            ArgumentError,
            name,
            f"shape (n={len(words)}, c), one row for each of n ≥ 2 words",
            shape_of(vectors),
        )
    found = numbers(vectors).astype(np.float64)
    if not np.isfinite(found).all():
        raise build(ArgumentError, name, "finite numbers", "NaN or ∞")
    return found


def _nearest(vectors: np.ndarray, n: int) -> list[int]:
    """Return the nearest other vectors by cosine."""
    lengths = np.linalg.norm(vectors, axis=1)
    cosine = vectors @ vectors[n] / np.maximum(lengths * lengths[n], 1e-12)
    cosine[n] = -np.inf
    return np.argsort(-cosine, kind="stable")[: min(NEAREST, len(vectors) - 1)].tolist()


def _plane(first: np.ndarray, second: np.ndarray | None) -> Plane:
    every = first if second is None else np.concatenate([first, second])
    centred = torch.from_numpy(every - every.mean(0))
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    axes = directions[:2]
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # the same picture each time
    places = (centred @ (axes * signs).mT).numpy()
    if places.shape[1] < 2:
        places = np.concatenate([places, np.zeros((len(places), 1))], 1)
    total = float(values.square().sum())
    share = float(values[:2].square().sum()) / total if total else 1.0
    n = len(first)
    return Plane(places[:n], None if second is None else places[n:], share)


def _draw(
    plane: Plane,
    names: Sequence[str],
    marked: tuple[list[int], list[tuple[int, int]]],
    heading: str,
) -> Figure:
    centres, joined = marked
    heading, tall = heading_of(heading, WIDE)
    top = MARGIN + tall + 0.06
    sheet = Sheet.of(WIDE + 2 * MARGIN, top + HIGH + 0.42)
    axes = sheet.axes(MARGIN, top, WIDE, HIGH)
    ends = plane.before if plane.after is None else plane.after
    _fit(axes, plane.every)
    for n, other in joined:
        pair = plane.before[[n, other]]
        axes.plot(pair[:, 0], pair[:, 1], color=ACCENT, lw=1.0, alpha=0.75, zorder=1.5)
    said = f"the plane shows {plane.share:.0%} of the variance"
    joints = [(plane.before[n], plane.before[other]) for n, other in joined]
    if plane.after is not None:
        said = f"○ before, ● after context; {said}"
        arrows = list(zip(plane.before, plane.after))
        joints += arrows
        for start, end in arrows:
            axes.annotate(
                "",
                end,
                start,
                zorder=2,
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": WEIGHTS[4],
                    "lw": 0.9,
                    "shrinkA": 2,
                    "shrinkB": 2,
                    "mutation_scale": 8,
                },
            )
        axes.scatter(*plane.before.T, s=14, facecolor="white", edgecolor=QUIET, lw=0.9, zorder=3)
    dark = [ACCENT if n in centres else WEIGHTS[6] for n in range(len(names))]
    axes.scatter(*ends.T, s=16, color=dark, lw=0, zorder=3.5)
    named = range(len(names))
    if len(names) > NAMED:
        named = sorted({*centres, *(other for _, other in joined)}) or range(NAMED)
    places = max(plane.before, ends, key=lambda places: np.ptp(places, axis=0).sum())
    _name(axes, places, names, list(named), plane.every, centres, joints)
    if centres:
        said += f"; lines join the {NEAREST} nearest by cosine"
    sheet.note(MARGIN, top + HIGH + 0.09, wrapped(said, WIDE, NOTES))
    sheet.write(MARGIN, MARGIN, heading)
    return sheet.figure


def _fit(axes: Axes, every: np.ndarray) -> None:
    """Give both axes one scale, with room for the names."""
    low, high = every.min(0), every.max(0)
    middle, span = (low + high) / 2, np.maximum(high - low, 1e-9)
    unit = max(span[0] / (WIDE - 1.2), span[1] / (HIGH - 0.5))
    axes.set_xlim(middle[0] - unit * WIDE / 2, middle[0] + unit * WIDE / 2)
    axes.set_ylim(middle[1] - unit * HIGH / 2, middle[1] + unit * HIGH / 2)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(FRAME)
    for line, (start, stop) in ((axes.axhline, axes.get_ylim()), (axes.axvline, axes.get_xlim())):
        if start < 0 < stop:
            line(0, color=GRID, lw=0.7, zorder=0.5)


def _name(
    axes: Axes,
    places: np.ndarray,
    names: Sequence[str],
    shown: list[int],
    dots: np.ndarray,
    centres: Sequence[int],
    joints: Sequence[tuple[np.ndarray, np.ndarray]],
) -> None:
    """Write names beside their dots, with the least overlap."""
    (left, right), bottom = axes.get_xlim(), axes.get_ylim()[0]
    low, unit = np.array([left, bottom]), (right - left) / WIDE
    inches = (dots - low) / unit
    taken = [(x - 0.04, y - 0.04, x + 0.04, y + 0.04) for x, y in inches]
    for start, end in joints:
        along = (start + np.linspace(0, 1, 25)[:, None] * (end - start) - low) / unit
        taken += [(x - 0.015, y - 0.015, x + 0.015, y + 0.015) for x, y in along]
    for n in sorted(shown, key=lambda n: centres.index(n) if n in centres else len(centres)):
        x, y = (places[n] - low) / unit
        wide, high = width_of([names[n]], SIZE), SIZE / 72 * 1.1
        boxes = [
            (x + right * gap + (right - 1) * wide / 2, y + up * gap + (up - 1) * high / 2)
            for gap in (0.07, 0.13, 0.2)
            for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
        ]
        boxes = [(a, b, a + wide, b + high) for a, b in boxes]
        best = min(boxes, key=lambda box: round(_covered(box, taken), 4))
        taken.append(best)
        middle = low + unit * np.array([(best[0] + best[2]) / 2, (best[1] + best[3]) / 2])
        axes.text(
            middle[0],
            middle[1],
            names[n],
            size=SIZE,
            ha="center",
            va="center_baseline",
            zorder=4,
            parse_math=False,
            color=ACCENT if n in centres else INK,
        )


def _covered(
    box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]]
) -> float:
    """Return the area of other boxes that a box covers, and how far it leaves the map."""
    found = max(-box[0], box[2] - WIDE, -box[1], box[3] - HIGH, 0.0)
    for other in taken:
        across = min(box[2], other[2]) - max(box[0], other[0])
        down = min(box[3], other[3]) - max(box[1], other[1])
        found += max(across, 0) * max(down, 0)
    return found
