"""Word vectors on a map: the plane of largest variance, with neighbours and context."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.foundation.tokens import bare
from intently.show.inputs import as_numbers, place
from intently.show.labels import titled, visible
from intently.show.layout import Layout, destination, width_of
from intently.show.reading import numbers
from intently.show.style import ACCENT, FRAME, GRID, INK, LINES, QUIET, WEIGHTS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 60
"""Most words that a map names all; larger maps name the chosen words and their neighbours."""
WIDE, HIGH = 5.6, 4.4
SIZE = 8.0
NEAREST = 3
MENTIONED = 4
CLOSE = 0.06
"""Dots of one name that are nearer, in inches, have it once."""


class Label(NamedTuple):
    """A name, the place (2,) of its dot, and its colour."""

    text: str
    place: np.ndarray
    colour: str


class Plane(NamedTuple):
    """Positions (n, 2) before and, if there is a context, after; their share of the variance.

    ``near`` holds the cosines (n, n) of the vectors after context.
    """

    before: np.ndarray
    after: np.ndarray | None
    share: float
    near: np.ndarray | None = None

    @property
    def every(self) -> np.ndarray:
        """All positions, stacked."""
        return self.before if self.after is None else np.concatenate([self.before, self.after])


def embeddings(
    vectors: Numbers,
    words: Sequence[str],
    *,
    after: Numbers | None = None,
    contexts: Sequence[str] | None = None,
    neighbours: str | int | Sequence[str | int] = (),
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw word vectors (n, c) as a map: the two directions in which they differ most.

    ``vectors`` and ``after`` are tensors, arrays or nested lists. ``after`` holds the same words in
    context (n, c), such as the states of a later layer; an arrow leads from each word to its place
    in context. Layers differ in the length of their vectors, so that all are then drawn at length
    1, in one plane. A word may occur several times, each time in another context: the note gives
    the lowest cosine between its vectors, and the words with the three lowest are coloured.
    ``contexts`` names the dots after
    context, by default as the words. ``neighbours`` are words joined to their three nearest
    neighbours, by cosine in all c dimensions. The axes have no unit; a note below gives their share
    of the variance. Returns the figure, written to ``save``.

    Raises ArgumentError for other shapes, numbers that are not finite, contexts without ``after``,
    and neighbours that are missing or occur twice. The plane is that of principal component
    analysis (Pearson 1901), by a singular value decomposition.

    >>> figure = embeddings(torch.eye(4), ["cat", "dog", "road", "wide"], neighbours="cat")
    >>> len(figure.axes[0].collections[0].get_offsets())
    4
    """
    path = destination(save)
    for name, one in (("words", words), ("contexts", contexts or ())):
        if isinstance(one, str) or not all(isinstance(word, str) for word in one):
            raise build(KindError, name, "a list of strings", repr(one)[:60])
    if not isinstance(neighbours, str | int | Sequence):
        raise build(KindError, "neighbours", "words or positions", repr(neighbours))
    first = _checked(vectors, "vectors", words)
    second = None if after is None else _checked(after, "after", words)
    if second is not None and second.shape != first.shape:
        expected = f"the shape of vectors, {first.shape}"
        raise build(ArgumentError, "after", expected, shape_of(second))
    if contexts is not None and (second is None or len(contexts) != len(words)):
        expected, got = f"n={len(words)} names of the vectors of after", f"{len(contexts)} names"
        why = "after is missing" if second is None else None
        raise build(ArgumentError, "contexts", expected, got, why)
    asked = [neighbours] if isinstance(neighbours, str | int) else list(neighbours)
    centres = [place(word, words, "neighbours") for word in asked]
    joined = [(n, other) for n in centres for other in _nearest(first, n)]
    names = [visible(bare(word)) for word in words]
    named = None if contexts is None else [visible(context) for context in contexts]
    heading = titled(title or ("Words before and after context" if after is not None else "Words"))
    with style((*names, *(named or ()), heading)):
        layout, said = _draw(_plane(first, second), (names, named), (centres, joined))
        return layout.finish(heading, said, path)


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
    every = first
    if second is not None:
        every = np.concatenate([first, second])
        every = every / np.maximum(np.linalg.norm(every, axis=1, keepdims=True), 1e-12)
    centred = torch.from_numpy(every - every.mean(0))
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    axes = directions[:2]
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # the same picture each time
    places = (centred @ (axes * signs).mT).numpy()
    if places.shape[1] < 2:
        places = np.concatenate([places, np.zeros((len(places), 1))], 1)
    values = values / (float(values.max()) or 1.0)  # squares of large numbers would be ∞
    total = float(values.square().sum())
    share = float(values[:2].square().sum()) / total if total else 1.0
    n = len(first)
    if second is None:
        return Plane(places, None, share)
    return Plane(places[:n], places[n:], share, every[n:] @ every[n:].T)


def _draw(
    plane: Plane,
    written: tuple[Sequence[str], Sequence[str] | None],
    marked: tuple[list[int], list[tuple[int, int]]],
) -> tuple[Layout, str]:
    """Return the map and its notes."""
    (names, contexts), (centres, joined) = written, marked
    layout = Layout()
    axes = layout.panel(0, 0, WIDE, HIGH)
    widest = width_of(contexts or names, SIZE) if len(names) <= NAMED else 0.0
    _fit(axes, plane.every, min(max(widest + 0.15, 0.6), 0.9))
    for n, other in joined:
        pair = plane.before[[n, other]]
        axes.plot(pair[:, 0], pair[:, 1], color=ACCENT, lw=1.0, alpha=0.75, zorder=1.5)
    joints = [(plane.before[n], plane.before[other]) for n, other in joined]
    moved = _moved(plane, names)
    shades = dict(zip(moved, LINES))
    rest = QUIET if moved else WEIGHTS[6]
    colours = [ACCENT if n in centres else shades.get(w, rest) for n, w in enumerate(names)]
    said = f"the plane shows {plane.share:.0%} of the variance"
    if plane.after is not None:
        arrows = list(zip(plane.before, plane.after))
        joints += arrows
        for (start, end), word in zip(arrows, names):
            colour = shades.get(word, FRAME if moved else WEIGHTS[4])
            look = {"arrowstyle": "-|>", "color": colour, "lw": 0.9, "mutation_scale": 8}
            look |= {"shrinkA": 2, "shrinkB": 2}
            axes.annotate("", tuple(end), tuple(start), zorder=2, arrowprops=look)
        inside = axes.get_facecolor()
        axes.scatter(*plane.before.T, s=18, zorder=3, facecolor=inside, edgecolor=colours, lw=0.9)
        said = f"○ before, ● after context, each vector at length 1; {said}"
    ends = plane.before if plane.after is None else plane.after
    axes.scatter(*ends.T, s=18, color=colours, lw=0, zorder=3.5)
    _name(axes, _labels(plane, written, marked, colours), plane.every, joints)
    if centres:
        said += f"; lines join the {NEAREST} nearest by cosine"
    if moved:
        lowest = ", ".join(f"{word} {near:.2f}" for word, near in [*moved.items()][:MENTIONED])
        said += f"\ncosine between the contexts of a word: {lowest}".replace("-", "−")
    return layout, said


def _labels(
    plane: Plane,
    written: tuple[Sequence[str], Sequence[str] | None],
    marked: tuple[list[int], list[tuple[int, int]]],
    colours: Sequence[str],
) -> list[Label]:
    """The names on the map, the chosen words' first.

    With contexts, each dot after context has its context's name, and each word one name before it.
    """
    names, contexts = written
    centres, joined = marked
    shown = list(range(len(names)))
    if len(names) > NAMED:
        shown = sorted({*centres, *(other for _, other in joined)}) or shown[:NAMED]
    shown.sort(key=lambda n: centres.index(n) if n in centres else len(centres))
    if plane.after is not None and contexts is not None:
        before = {(names[n], *plane.before[n].round(6)): n for n in reversed(shown)}
        found = [Label(names[n], plane.before[n], INK) for n in sorted(before.values())]
        return found + [Label(contexts[n], plane.after[n], colours[n]) for n in shown]
    ends = plane.before if plane.after is None else plane.after
    places = max(plane.before, ends, key=lambda places: np.ptp(places, axis=0).sum())
    return [Label(names[n], places[n], ACCENT if n in centres else INK) for n in shown]


def _moved(plane: Plane, names: Sequence[str]) -> dict[str, float]:
    """The lowest cosine between the contexts of each word that occurs several times, from low."""
    if plane.near is None:
        return {}
    found = {}
    for word, count in Counter(names).items():
        own = [n for n, name in enumerate(names) if name == word]
        if count > 1:
            found[word] = float(plane.near[np.ix_(own, own)].min())
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _fit(axes: Axes, every: np.ndarray, room: float) -> None:
    """Give both axes one scale, with ``room`` in inches for names on the left and on the right."""
    low, high = every.min(0), every.max(0)
    middle, span = (low + high) / 2, np.maximum(high - low, 1e-9)
    unit = max(span[0] / (WIDE - 2 * room), span[1] / (HIGH - 0.5))
    axes.set_xlim(middle[0] - unit * WIDE / 2, middle[0] + unit * WIDE / 2)
    axes.set_ylim(middle[1] - unit * HIGH / 2, middle[1] + unit * HIGH / 2)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(FRAME)
    for line, (start, stop) in ((axes.axhline, axes.get_ylim()), (axes.axvline, axes.get_xlim())):
        if start < 0 < stop:
            line(0, color=GRID, lw=0.7, zorder=0.5)


def _name(
    axes: Axes,
    labels: Sequence[Label],
    dots: np.ndarray,
    joints: Sequence[tuple[np.ndarray, np.ndarray]],
) -> None:
    """Write names beside their dots, with the least overlap."""
    (left, right), bottom = axes.get_xlim(), axes.get_ylim()[0]
    low, unit = np.array([left, bottom]), (right - left) / WIDE
    written: list[Label] = []
    share = np.linspace(0, 1, 25)[:, None]
    inches = [((dots - low) / unit, 0.04)]
    inches += [((one + share * (other - one) - low) / unit, 0.015) for one, other in joints]
    taken = np.concatenate([np.hstack([at - room, at + room]) for at, room in inches])
    for label in labels:
        text, middle, colour = label
        near = [other.place for other in written if other.text == text]
        if any(np.linalg.norm(middle - other) < CLOSE * unit for other in near):
            continue
        written.append(label)
        x, y = (middle - low) / unit
        wide, high = width_of([text], SIZE), SIZE / 72 * 1.1
        boxes = [
            (x + right * gap + (right - 1) * wide / 2, y + up * gap + (up - 1) * high / 2)
            for gap in (0.07, 0.13, 0.2)
            for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
        ]
        boxes = [(a, b, a + wide, b + high) for a, b in boxes]
        best = min(boxes, key=lambda box: round(_covered(box, taken), 4))
        taken = np.vstack([taken, best])
        middle = low + unit * np.array([(best[0] + best[2]) / 2, (best[1] + best[3]) / 2])
        axes.text(
            middle[0],
            middle[1],
            text,
            size=SIZE,
            ha="center",
            va="center_baseline",
            zorder=4,
            parse_math=False,
            color=colour,
        )


def _covered(box: tuple[float, float, float, float], taken: np.ndarray) -> float:
    """Return the area of other boxes (n, 4) that a box covers, and how far it leaves the map."""
    across = np.minimum(box[2], taken[:, 2]) - np.maximum(box[0], taken[:, 0])
    down = np.minimum(box[3], taken[:, 3]) - np.maximum(box[1], taken[:, 1])
    outside = max(-box[0], box[2] - WIDE, -box[1], box[3] - HIGH, 0.0)
    return outside + float((across.clip(0) * down.clip(0)).sum())
