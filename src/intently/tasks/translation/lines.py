"""A line as a model reads it: its tokens, its words, and the warnings about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intently.show.labels import visible
from intently.tasks.text import Tokenizer, words
from intently.tasks.text.words import not_text


class WordSide(NamedTuple):
    """One side of a translation: token ids, words, and the positions of each word's tokens."""

    ids: Sequence[int] = ()
    words: list[str] | tuple[str, ...] = ()
    groups: Sequence[Sequence[int]] = ()


class ReadLine(NamedTuple):
    """A line as it was read, its tokens and words, and the warnings about it."""

    text: str
    side: WordSide
    notes: tuple[str, ...]


def read_line(line: str, argument: str, tokenizer: Tokenizer, most: int) -> ReadLine:
    """Read a line, cut after ``most`` tokens; ``argument`` names it in an `ArgumentError`."""
    try:
        line.encode()
    except (AttributeError, UnicodeEncodeError):
        raise not_text(argument, line) from None
    text, notes = line.strip(), []
    ids, groups = tokenizer.encode_words(text)
    if len(ids) > most:
        notes.append(f"{len(ids):,} tokens, cut after {most}")
        text = _cut(tokenizer, text, most)
        ids, groups = tokenizer.encode_words(text)
    unknown = tokenizer.unknown(text)
    if unknown:
        named = [visible(word) for word in unknown[:8]] + ["…"] * (len(unknown) > 8)
        notes.append(f"not in the model's vocabulary: {', '.join(named)}")
    ids = ids[:most]
    groups = [[i for i in group if i < len(ids)] for group in groups]
    kept = [word for word, group in zip(words(text), groups) if group]
    return ReadLine(text, WordSide(ids, kept, [group for group in groups if group]), tuple(notes))


def _cut(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """Return the start of a text with about this many tokens, cut between two characters."""
    offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
    while tokens and offsets[tokens][0] < offsets[tokens - 1][1]:  # bytes of one character
        tokens -= 1
    return text[: offsets[tokens - 1][1]] if tokens else ""
