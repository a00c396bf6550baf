"""Reading a line of text: its tokens, its words, and what a translator cannot know in it."""

from __future__ import annotations

from typing import NamedTuple

from intently.text import Tokenizer, words
from intently.text.checks import not_text
from intently.translation.familiar import Familiar, notes_on
from intently.translation.states import Side


class Line(NamedTuple):
    """A line as it was read, its tokens and words, and the warnings about it."""

    text: str
    side: Side
    notes: tuple[str, ...]


def read_line(
    line: str, argument: str, tokenizer: Tokenizer, most: int, familiar: Familiar | None
) -> Line:
    """Read a line, cut after ``most`` tokens; ``argument`` names it in an `ArgumentError`.

    With ``familiar``, it is read as its training text is written, and noted if it is unlike it.
    """
    try:
        line.encode()
    except (AttributeError, UnicodeEncodeError):
        raise not_text(argument, line) from None
    text, notes = line.strip(), []
    ids, groups = tokenizer.encode_words(text)
    if len(ids) > most:
        notes.append(f"{len(ids):,} tokens, cut after {most}")
        text, familiar = _cut(tokenizer, text, most), None  # the end of no sentence
        ids, groups = tokenizer.encode_words(text)
    elif familiar is not None:
        text = familiar.tidy(text, tokenizer)
        ids, groups = tokenizer.encode_words(text)
    notes += notes_on(text, tokenizer, familiar)
    ids = ids[:most]
    groups = [[i for i in group if i < len(ids)] for group in groups]
    kept = [word for word, group in zip(words(text), groups) if group]
    return Line(text, Side(ids, kept, [group for group in groups if group]), tuple(notes))


def _cut(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """Return the start of a text with about this many tokens, cut between two characters."""
    offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
    while tokens and offsets[tokens][0] < offsets[tokens - 1][1]:  # bytes of one character
        tokens -= 1
    return text[: offsets[tokens - 1][1]] if tokens else ""
