"""One sentence cut by several tokenizers: words, pieces of words, characters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from intently.errors import ArgumentError, KindError, build
from intently.show.files import destination, finish
from intently.show.labels import lines, mostly_right_to_left, titled, visible
from intently.show.sheet import LINE, Sheet, boxed, broken, heading_of, width_of, widths_of
from intently.show.style import INK, QUIET, WEIGHTS, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 500
PAPER, MARGIN = 6.8, 0.16
SIZE, PAD, CLOSE = 10.0, 0.05, 0.03
STEP = SIZE * LINE + 0.11
APART = 0.14
TINTS = (WEIGHTS[1], WEIGHTS[2])


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of tokenizers, which ours satisfy."""

    def encode(self, sentence: str, /) -> list[int]: ...
    def tokens(self, ids: list[int], /) -> list[str]: ...


Cutter: TypeAlias = Tokenizer | Callable[[str], Sequence[str]] | Sequence[str]
"""A tokenizer, a function such as ``tokenizer.tokenize``, or the tokens themselves."""


def tokens(
    sentence: str,
    cutters: Mapping[str, Cutter],
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw how each tokenizer splits a sentence: a box for every token, and their number.

    ``cutters`` maps names to our tokenizers, to functions from a sentence to tokens, such as
    ``list`` or ``tokenizer.tokenize``, or to the tokens themselves. Tokens are shown unchanged,
    including the marks of word beginnings. Returns the figure, written to ``save``.

    Raises ArgumentError for no cutters, none or more than 500 tokens, KindError for cutters that do
    not give tokens.

    >>> figure = tokens("It was wide.", {"words": str.split, "characters": list})
    >>> [text.get_text() for text in figure.axes[0].texts][:5]
    ['words', '3 tokens', 'It', 'was', 'wide.']
    """
    path = destination(save)
    if not cutters:
        raise build(ArgumentError, "cutters", "at least one tokenizer", "none")
    cut = {str(name): _cut(sentence, cutter, str(name)) for name, cutter in cutters.items()}
    heading = "\n".join(filter(None, (titled(title), lines(sentence))))
    named = {visible(name, 40): list(map(visible, found)) for name, found in cut.items()}
    with style((*named, *(token for found in named.values() for token in found), heading)):
        return finish(_draw(named, heading), path)


def _cut(sentence: str, cutter: Cutter, name: str) -> list[str]:
    if isinstance(cutter, Tokenizer):
        found = cutter.tokens(cutter.encode(sentence))
    elif callable(cutter):
        found = cutter(sentence)
    else:
        found = cutter
    if (
        isinstance(found, str)
        or not isinstance(found, Sequence)
        or not all(isinstance(token, str) for token in found)
    ):
        raise build(
            KindError,
            f"cutters[{name!r}]",
            "a tokenizer, or a function from a text to tokens",
            type(cutter).__name__ if not callable(cutter) else f"one that gives {found!r:.60}",
            fix="for a tokenizer of transformers pass its .tokenize",
        )
    if not 1 <= len(found) <= LARGEST:
        raise build(ArgumentError, f"cutters[{name!r}]", f"1 to {LARGEST} tokens", f"{len(found)}")
    return list(found)


def _draw(named: Mapping[str, list[str]], heading: str) -> Figure:
    counts = {name: f"{len(found)} token{'s' * (len(found) > 1)}" for name, found in named.items()}
    left = 0.2 + max(width_of(named, 9), width_of(counts.values(), 7.5))
    room = PAPER - 2 * MARGIN - left
    laid = {name: _laid(found, room) for name, found in named.items()}
    heading, tall = heading_of(heading, PAPER - 2 * MARGIN)
    top = MARGIN + tall + 0.1
    high = sum(max(len(rows), 1.25) * STEP + APART for _, rows in laid.values()) - APART
    sheet = Sheet.of(PAPER, top + high + 0.12)
    axes = sheet.blank(MARGIN, top, PAPER - 2 * MARGIN, high)
    down = 0.0
    for name, (wide, rows) in laid.items():
        axes.text(0, down + 0.03, name, size=9, color=INK, va="top", parse_math=False)
        axes.text(0, down + 0.2, counts[name], size=7.5, color=QUIET, va="top")
        for line, row in enumerate(rows):
            for n, start in row:
                box = left + start, down + line * STEP, wide[n], SIZE * LINE + 0.05
                boxed(axes, named[name][n], box, SIZE, facecolor=TINTS[n % 2], edgecolor="none")
        down += max(len(rows), 1.25) * STEP + APART
    sheet.write(MARGIN, MARGIN, heading)
    return sheet.figure


def _laid(found: Sequence[str], room: float) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """Return the widths of tokens, and their lines as `broken` gives them."""
    wide = [max(width, 0.06) + 2 * PAD for width in widths_of(found, SIZE)]
    return wide, broken(wide, [CLOSE] * len(wide), room, mostly_right_to_left(found))
