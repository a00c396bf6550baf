"""A text shaded by attention, or cut by several tokenizers into words, pieces, characters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    cast,
    runtime_checkable,
)

import numpy as np

from intently.core.matrix import LazyMatrix
from intently.core.matrix.labelling import follows
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_kind, check_word
from intently.show.cells import limits
from intently.show.inputs import Choice, Source, one_of, place
from intently.show.labels import lines, mostly_right_to_left, shown, spaced, titled, visible
from intently.show.layout import HEADING, LINE, Layout, destination, width_of, widths_of
from intently.show.reading import looked, missing, names, shown_names
from intently.show.style import (
    ACCENT,
    FRAME,
    HATCH,
    HOLE,
    INK,
    QUIET,
    WEIGHTS,
    ink_on,
    style,
    weight_map,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Looks = Literal["at", "from"]

LOOKS = ("at", "from")
LARGEST = 400
"""Tokens written of one text; of a longer one, parts are left out."""
AROUND = 8
"""Tokens written on each side of one that matters in a longer text."""
FAINT = 0.05
"""Share of the largest weight up to which a token does not matter in a longer text."""
FEW = 32
"""Texts of at most so many tokens show the numbers too."""

TINTS = (WEIGHTS[1], WEIGHTS[2])
"""Of tokens that are no weights, in turn."""

PAPER, NARROWEST = 6.3, 2.2
"""Inches of the longest line, and of the shortest paper."""
SIZE, NAMED, BETWEEN = 11.0, 0.2, 0.1
BLANK, CLOSE, APART, PAD = 0.05, 0.012, 0.03, 0.045
"""Inches before a word, a piece that goes on and a token, and on both sides of a text."""


class PlacedWord(NamedTuple):
    """A token to draw: its text, the gap before it in inches, and its weight or tint, if any."""

    text: str
    gap: float
    weight: float | None = None
    framed: bool = False
    tint: str | None = None


class Passage(NamedTuple):
    """Words in reading order under a small heading; gaps of a long text are words too."""

    name: str
    words: list[PlacedWord]


@runtime_checkable
class TokenizerLike(Protocol):
    """The interface of tokenizers, which ours satisfy."""

    def encode(self, sentence: str, /) -> list[int]: ...
    def tokens(self, ids: list[int], /) -> list[str]: ...


Cutter: TypeAlias = TokenizerLike | Callable[[str], Sequence[str]] | Sequence[str]
"""A tokenizer, a function such as ``tokenizer.tokenize``, or the tokens themselves."""


def text(
    matrix: Source | str,
    token: int | str | Mapping[str, Cutter],
    *,
    looks: Looks = "at",
    head: Choice = None,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Shade a text by what one token looks at (a row), or by what looks at it (a column).

    ``token`` is a query, or a key where ``looks="from"``, by its position or by its text where
    that occurs once; it is framed. Of (h, t, s) ``head`` chooses one, else their mean is drawn; of
    a recording it is ``"name"`` or ``("name", head)``. If rows and columns name the same text, or
    rows the next token, the text is written once; in cross-attention, both texts are written. A
    decoder row is named after the token that it reads, as in "and (writes softmax)". Texts of at
    most 32 tokens also show the weights as numbers; of more than 400, those around the token and
    around the largest weights are written, and each gap says how much weight it holds. Tokenizer
    marks become blanks, and right-to-left text runs from right to left.

    Instead of a matrix, a sentence shows how tokenizers split it, a box for each token and their
    number: ``token`` then maps names to our tokenizers, to functions from a sentence to tokens,
    such as ``list`` or ``tokenizer.tokenize``, or to the tokens themselves, which are shown
    unchanged. Returns the figure, written to ``save`` if given.

    Raises ArgumentError for a token that is not there or there twice, an unknown ``looks``, no
    tokenizers, none or more than 400 tokens; RangeError for a position outside; KindError for
    tokenizers that do not give tokens.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> words = ("it", "was", "tired")
    >>> figure = text(Dense(torch.eye(3), labels=(words, words)), "it")
    >>> [written.get_text() for written in figure.axes[0].texts][:3]
    ['it', '1.00', 'was']
    >>> figure = text("It was wide.", {"words": str.split, "characters": list})
    >>> [written.get_text() for written in figure.axes[0].texts][:5]
    ['words: 3 tokens', 'It', 'was', 'wide.', 'characters: 12 tokens']
    """
    path = destination(save)
    check_word(looks, "looks", LOOKS)
    if isinstance(matrix, str):
        return _tokens(matrix, cast("Any", token), title, path)
    if isinstance(token, Mapping):
        expected = "a position, or the text of a token; tokenizers split a sentence, a str"
        raise build(KindError, "token", expected, "tokenizers")
    lazy, chosen = one_of(matrix, head)
    at = place(token, names(lazy)[looks == "from"])
    values = looked(lazy, at, looks)
    passages = _passages(lazy, at, looks, values)
    name = shown_names(lazy, shown)[looks == "from"][at]
    said = f"What ‘{name}’ looks at" if looks == "at" else f"Who looks at ‘{name}’"
    return _draw(passages, limits(values), titled(title or said, chosen), missing(values), path)


def _passages(lazy: LazyMatrix, at: int, looks: Looks, values: np.ndarray) -> list[Passage]:
    rows, columns = names(lazy)
    ahead = follows(lazy)
    if ahead is None:
        own, other = (rows, columns) if looks == "at" else (columns, rows)
        asked, answers = ("the query", "keys") if looks == "at" else ("the key", "queries")
        return [
            Passage(asked, _words(own, {}, at)),
            Passage(answers, _words(other, dict(enumerate(values)), None)),
        ]
    t, s = lazy.shape
    last = (lazy.labels[0] or ())[t - 1 :] if ahead else ()
    whole = (*columns, *filter(None, last))
    start, framed = (0, s - t + at) if looks == "at" else (s - t, at)
    return [Passage("", _words(whole, dict(enumerate(values, start)), framed))]


def _words(
    tokens: Sequence[str], weights: dict[int, float], framed: int | None
) -> list[PlacedWord]:
    written = [
        PlacedWord(visible(token), BLANK if blank else CLOSE, weights.get(n), n == framed)
        for n, (token, blank) in enumerate(spaced(tokens))
    ]
    if len(written) <= LARGEST:
        return written
    kept = _kept(len(written), weights, framed)
    found: list[PlacedWord] = []
    for stays, places in groupby(range(len(written)), kept.__getitem__):
        words = [written[n] for n in places]
        found += words if stays else [_gap(words)]
    return found


def _kept(count: int, weights: dict[int, float], framed: int | None) -> np.ndarray:
    """Return which of many tokens are written: those around the framed one and the most looked at.

    Where no token matters, the text is written from its beginning.
    """
    kept = np.zeros(count, dtype=bool)
    least = FAINT * max(weights.values(), default=0.0)
    heavy = sorted((n for n in weights if weights[n] > least), key=lambda n: (-weights[n], n))
    for n in ([] if framed is None else [framed]) + (heavy or [0]):
        around = slice(max(0, n - AROUND), n + AROUND + 1)
        if kept.sum() + (~kept[around]).sum() > LARGEST:
            break
        kept[around] = True
    return kept


def _gap(words: Sequence[PlacedWord]) -> PlacedWord:
    """Return what stands for words that are not written: how many they are, and their weight."""
    known = [word.weight for word in words if word.weight is not None]
    held = f", {sum(known):.2g} of the weight" if known else ""
    many = f"{len(words):,} token{'s' * (len(words) > 1)}"
    return PlacedWord(f"[… {many}{held} …]", BLANK)


def _draw(
    passages: Sequence[Passage],
    ends: tuple[float, float] | None,
    heading: str,
    foot: str,
    path: Path | None,
) -> Figure:
    """Write passages below one another, and the scale of weights from end to end."""
    from matplotlib.colors import Normalize

    few = max(len(passage.words) for passage in passages) <= FEW
    texts = [word.text for passage in passages for word in passage.words]
    with style((*texts, *(passage.name for passage in passages), heading)):
        widths = [
            [max(wide, 0.06) + 2 * PAD for wide in widths_of([w.text for w in passage.words], SIZE)]
            for passage in passages
        ]
        whole = (sum(wide) + sum(w.gap for w in x.words) for x, wide in zip(passages, widths))
        room = min(PAPER, max(*whole, width_of(heading.split("\n"), HEADING), NARROWEST))
        norm = Normalize(*ends or (0, 1))
        layout = Layout()
        axes = layout.blank(0, 0, room, 1)
        down = 0.0
        for passage, wide in zip(passages, widths, strict=True):
            if passage.name:
                axes.text(0, down, passage.name, size=8, color=QUIET, va="top", parse_math=False)
                down += NAMED
            mirrored = mostly_right_to_left(word.text for word in passage.words)
            for row in broken(wide, [word.gap for word in passage.words], room, mirrored):
                words = [passage.words[n] for n, _ in row]
                for word, (n, left) in zip(words, row, strict=True):
                    _write(axes, word, (left, down, wide[n]), norm, few)
                numbered = few and any(word.weight is not None for word in words)
                down += SIZE * LINE + (0.26 if numbered else 0.1)
            down += BETWEEN
        layout.reshape(axes, (0, room), (down - BETWEEN, 0))
        if ends:
            _scale(layout.blank(1, 0, room, 0.15), norm, room)
        return layout.finish(heading, foot, path)


def _scale(axes: Axes, norm: Normalize, room: float) -> None:
    from matplotlib.cm import ScalarMappable

    low, high = (f"{end:.3g}" for end in (norm.vmin or 0.0, norm.vmax or 0.0))
    left = width_of([f"weight  {low}"], 8) + 0.07
    bar = axes.inset_axes((left / room, 0.1, 1.1 / room, 0.75))
    shades = ScalarMappable(norm, weight_map())
    drawn: Any = axes.figure.colorbar(shades, cax=bar, orientation="horizontal", ticks=[])
    drawn.outline.set(edgecolor=FRAME, linewidth=0.5)
    axes.text(0, 0.075, f"weight  {low}", size=8, va="center")
    axes.text(left + 1.17, 0.075, high, size=8, va="center")


def _write(
    axes: Axes, word: PlacedWord, box: tuple[float, float, float], norm: Normalize, few: bool
) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, top, wide = box
    high = SIZE * LINE + 0.04
    value = word.weight
    ink = INK
    look: dict[str, Any] = {"facecolor": word.tint or (1, 1, 1, 0), "edgecolor": "none", "lw": 0}
    if value is not None and np.isfinite(value):
        look["facecolor"] = face = weight_map()(norm(value))
        ink = ink_on(face)
    elif value is not None:
        look.update(facecolor=HOLE, edgecolor=HATCH, hatch="////")
    if word.framed:
        look.update(edgecolor=ACCENT, lw=1.6, zorder=2)
    shape = "round,pad=0,rounding_size=0.03"
    patch = FancyBboxPatch((left, top), wide, high, boxstyle=shape, clip_on=False, **look)
    patch.set_in_layout(False)
    axes.add_artist(patch)  # as add_patch, without asking how far each box reaches
    written: dict[str, Any] = {"ha": "center", "zorder": 3, "parse_math": False}
    written["in_layout"] = False
    middle = left + wide / 2, top + high / 2
    axes.text(*middle, word.text, size=SIZE, color=ink, va="center_baseline", **written)
    if few and value is not None and value >= 0.005 and np.isfinite(value):
        below = middle[0], top + high + 0.03
        axes.text(*below, f"{value:.2f}", size=7, color=QUIET, va="top", **written)


def broken(
    widths: Sequence[float], gaps: Sequence[float], room: float, mirrored: bool
) -> list[list[tuple[int, float]]]:
    """Break boxes of these widths into lines: the number and the left end of each box.

    Each box has its gap before it, except at the start of a line; ``mirrored`` lines run from the
    right.

    >>> broken([1, 2, 2], [0, 0.5, 0.5], 4, False)
    [[(0, 0.0), (1, 1.5)], [(2, 0.0)]]
    """
    rows: list[list[tuple[int, float]]] = [[]]
    end = 0.0
    for n, (width, gap) in enumerate(zip(widths, gaps, strict=True)):
        left = end + gap if rows[-1] else 0.0
        if rows[-1] and left + width > room:
            rows.append([])
            left = 0.0
        rows[-1].append((n, left))
        end = left + width
    if mirrored:
        return [[(n, room - left - widths[n]) for n, left in row] for row in rows]
    return rows


# --- a sentence and its tokenizers ----------------------------------------------------------------


def _tokens(
    sentence: str, cutters: Mapping[str, Cutter], title: str | None, path: Path | None
) -> Figure:
    check_kind(cutters, Mapping, "token", "tokenizers by name, for a text; a token, for a matrix")
    if not cutters:
        raise build(ArgumentError, "token", "at least one tokenizer", "none")
    cut = {str(name): _cut(sentence, cutter, str(name)) for name, cutter in cutters.items()}
    heading = "\n".join(filter(None, (titled(title), lines(sentence))))
    passages = []
    for name, tokens in cut.items():
        count = f"{len(tokens)} token{'s' * (len(tokens) > 1)}"
        words = [PlacedWord(visible(x), APART, tint=TINTS[n % 2]) for n, x in enumerate(tokens)]
        passages.append(Passage(f"{visible(name, 40)}: {count}", words))
    return _draw(passages, None, heading, "", path)


def _cut(sentence: str, cutter: Cutter, name: str) -> list[str]:
    if isinstance(cutter, TokenizerLike):
        found = cutter.tokens(cutter.encode(sentence))
    else:
        found = cutter(sentence) if callable(cutter) else cutter
    if (
        isinstance(found, str)
        or not isinstance(found, Sequence)
        or not all(isinstance(token, str) for token in found)
    ):
        raise build(
            KindError,
            f"token[{name!r}]",
            "a tokenizer, or a function from a text to tokens",
            type(cutter).__name__ if not callable(cutter) else f"one that gives {found!r:.60}",
            fix="for a tokenizer of transformers pass its .tokenize",
        )
    if not 1 <= len(found) <= LARGEST:
        raise build(ArgumentError, f"token[{name!r}]", f"1 to {LARGEST} tokens", f"{len(found)}")
    return list(found)
