"""The tokens of each word."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from intently.tasks.text.vocabularies import BYTES, SPECIALS
from intently.tasks.text.words import word_spans

if TYPE_CHECKING:
    from tokenizers import Encoding

Span = tuple[int, int]


def of_sentence(sentence: str, encoding: Encoding) -> list[list[int]]:
    """Return the token positions of each word, from the offsets of an encoding.

    A space before a word may be a token of its own; the encoding then puts it in the word's piece.
    """
    spans = word_spans(sentence)
    starts = [start for start, _ in spans]
    groups: list[list[int]] = [[] for _ in spans]
    offsets, word_ids = encoding.offsets, encoding.word_ids  # each access makes a new list
    later = last = None
    for position in range(len(encoding) - 1, -1, -1):
        end = offsets[position][1]
        word = bisect_right(starts, end - 1) - 1
        if word < 0 or spans[word][1] < end:
            word = later if word_ids[position] == last else None
        if word is not None:
            groups[word].insert(0, position)
        later, last = word, word_ids[position]
    return groups


def of_entries(entries: Sequence[str], text: str) -> list[list[int]]:
    """Return the token positions of each word in the text of the vocabulary entries."""
    places = {position: entry for position, entry in enumerate(entries) if entry not in SPECIALS}
    spoken = _spans(list(places.values()))
    shift = (spoken[-1][1] if spoken else 0) - len(text)  # the space assumed before the text
    groups: list[list[int]] = []
    tokens = [
        (position, start - shift, end - shift)
        for position, (start, end) in zip(places, spoken, strict=True)
    ]
    first = 0
    for start, end in word_spans(text):
        while first < len(tokens) and tokens[first][2] < start:
            first += 1
        near = takewhile(lambda token, end=end: token[1] < end, islice(tokens, first, None))
        groups.append(
            [
                position
                for position, _, right in near
                if right > start or (right == start and places[position] == " ")
            ]
        )
    return groups


def _spans(entries: Sequence[str]) -> list[Span]:
    """Return each entry's span in the joint text; the bytes of one character share its span."""
    spans: list[Span] = []
    run = bytearray()
    for entry in [*entries, ""]:
        at = spans[-1][1] if spans else 0
        if entry in BYTE_VALUES:
            run.append(BYTE_VALUES[entry])
            continue
        if run:
            spans += _byte_spans(bytes(run), at)
            at = spans[-1][1]
            run.clear()
        spans.append((at, at + len(entry)))
    return spans[:-1]


def _byte_spans(run: bytes, at: int) -> list[Span]:
    try:
        run.decode()
    except UnicodeDecodeError:  # the decoder of the library then writes U+FFFD for every byte
        return [(at + index, at + index + 1) for index in range(len(run))]
    spans: list[Span] = []
    for byte in run:
        at += (byte & 0xC0) != 0x80  # not a continuation byte: a character begins
        spans.append((at - 1, at))
    return spans


BYTE_VALUES = {entry: value for value, entry in enumerate(BYTES)}
