"""Words as labels: nothing invisible, nothing endless, nothing that a reader would take for markup.

A token may be anything: a line break, a terminal escape, a right-to-left override, nothing at
all, or ten thousand characters. A label of it is one line of visible characters.
"""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""Zero-width characters that words of Persian, of Indic scripts and emoji are spelled with."""

EMPTY = "∅"
BREAKS = {"\n": "⏎", "\t": "⇥"}


def visible(text: str, limit: int = 24) -> str:
    """Return the text as one line of at most ``limit`` visible characters.

    A line break becomes ``⏎``, a tab ``⇥``, other invisible characters their number in angle
    brackets, an empty text ``∅``, each blank of a blank text ``␣``; what is too long ends in ``…``.

    >>> visible("a\\tb"), visible("\\x1b[31m"), visible("\\u202eabc"), visible(""), visible(" ")
    ('a⇥b', '⟨U+001B⟩[31m', '⟨U+202E⟩abc', '∅', '␣')
    >>> visible("attention" * 1000, limit=10)
    'attention…'
    """
    if not text:
        return EMPTY
    if text.isspace() and text.isprintable():
        text = "␣" * len(text)
    shown = []
    length = 0
    for position, character in enumerate(text):
        piece = _visible(character)
        if length + len(piece) > limit - (position + 1 < len(text)):
            return "".join(shown).rstrip(JOINERS) + "…"
        shown.append(piece)
        length += len(piece)
    return "".join(shown)


def _visible(character: str) -> str:
    if character in BREAKS:
        return BREAKS[character]
    invisible = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return f"⟨U+{ord(character):04X}⟩" if invisible and character not in JOINERS else character


def lines(text: str, limit: int = 400) -> str:
    """Return a title or caption: its own line breaks kept, everything else `visible`."""
    return "\n".join(visible(line, limit) if line else "" for line in text.split("\n"))


def thinned(count: int, room: float) -> range:
    """Return the labels that are shown when there is room for ``room`` of ``count``.

    >>> list(thinned(10, 4))
    [0, 3, 6, 9]
    """
    most = max(1, int(room))
    return range(0, count, -(-count // most))


def right_to_left(text: str) -> bool:
    """Say whether the text holds a character of a script written from right to left."""
    return any(unicodedata.bidirectional(character) in {"R", "AL"} for character in text)
