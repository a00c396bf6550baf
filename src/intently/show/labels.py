"""Words as labels: visible, short, and never interpreted as markup.

A token may be a line break, a terminal escape, a right-to-left override, empty, or ten thousand
characters long. Its label is one line of visible characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from intently.errors import KindError, build
from intently.foundation.tokens import WORD_BEGINS, WORD_GOES_ON, bare

JOINERS = "\u200c\u200d"
"""Zero-width characters that words of Persian, of Indic scripts and emoji are spelled with."""

EMPTY = "∅"
BREAKS = {"\n": "⏎", "\t": "⇥"}


def visible(text: str, limit: int = 24) -> str:
    """Return the text as one line of at most ``limit`` visible characters.

    A line break becomes ``⏎``, a tab ``⇥``, other invisible characters their code point in angle
    brackets, an empty text ``∅``, each blank of a blank text ``␣``; long texts end in ``…``.

    >>> visible("a\\tb"), visible("\\x1b[31m"), visible("\\u202eabc"), visible(""), visible(" ")
    ('a⇥b', '⟨U+001B⟩[31m', '⟨U+202E⟩abc', '∅', '␣')
    >>> visible("attention" * 1000, limit=10)
    'attention…'
    """
    if not text:
        return EMPTY
    if text.isspace() and text.isprintable():
        text = "␣" * len(text)
    shown = ""
    for position, character in enumerate(text):
        piece = _visible(character)
        if len(shown) + len(piece) > limit - (position + 1 < len(text)):
            return shown.rstrip(JOINERS) + "…"
        shown += piece
    return shown


def _visible(character: str) -> str:
    if character in BREAKS:
        return BREAKS[character]
    invisible = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return f"⟨U+{ord(character):04X}⟩" if invisible and character not in JOINERS else character


def spaced(tokens: Sequence[str]) -> list[tuple[str, bool]]:
    """Return tokens as in running text: bare, and whether a blank precedes.

    Where no token marks the beginning of a word, each is a word.

    >>> spaced(["▁un", "believ", "able"]), spaced(["too", "wide"])
    ([('un', True), ('believ', False), ('able', False)], [('too', True), ('wide', True)])
    """
    begins = any(map(_begins, tokens))
    goes_on = any(token.startswith(WORD_GOES_ON) and len(token) > 2 for token in tokens)
    texts = map(bare, tokens) if begins or goes_on else tokens
    if begins:
        return [(text, token[:1] in WORD_BEGINS) for text, token in zip(texts, tokens)]
    return [(text, not token.startswith(WORD_GOES_ON)) for text, token in zip(texts, tokens)]


def shown(tokens: Sequence[str], limit: int = 24) -> tuple[str, ...]:
    """Return tokens as labels of a matrix: `visible`, without marks of word beginnings.

    >>> shown(["▁road", "▁wide", "."]), shown(["▁"]), shown(["play", "##ing"])
    (('road', 'wide', '.'), ('▁',), ('play', '##ing'))
    """
    return tuple(visible(token, limit) for token in unmarked(tokens))


def unmarked(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return tokens without their marks of word beginnings."""
    return tuple(token[1:] if _begins(token) else token for token in tokens)


def _begins(token: str) -> bool:
    return token[:1] in WORD_BEGINS and len(token) > 1


def lines(text: str, limit: int = 400) -> str:
    """Return a title or caption: its line breaks kept, everything else `visible`."""
    return "\n".join(visible(line, limit) if line else "" for line in text.split("\n"))


def titled(title: str | None, *more: str) -> str:
    """Return a title and further parts as a heading of visible characters.

    >>> titled("Cross-attention", "head 2"), titled(None)
    ('Cross-attention, head 2', '')

    Raises KindError for a title that is not a str.
    """
    if title is not None and not isinstance(title, str):
        raise build(KindError, "title", "a text", type(title).__name__)
    return lines(", ".join(part for part in (title, *more) if part))


def thinned(count: int, room: float) -> range:
    """Return the indices of the labels that are shown when ``room`` of ``count`` fit.

    >>> list(thinned(10, 4))
    [0, 3, 6, 9]
    """
    most = max(1, int(room))
    return range(0, count, -(-count // most))


def mostly_right_to_left(texts: Iterable[str]) -> bool:
    """Return whether most of the texts with letters are written from right to left."""
    lettered = [right_to_left(text) for text in texts if any(map(str.isalpha, text))]
    return sum(lettered) * 2 > len(lettered)


def right_to_left(text: str) -> bool:
    """Return whether the text contains a character of a right-to-left script."""
    return any(unicodedata.bidirectional(character) in {"R", "AL"} for character in text)
