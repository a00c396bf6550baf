"""Tokenizers: sentences to token ids and back, by words, characters or subwords."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import check_word
from intently.foundation.files import replace_file
from intently.tasks.text.vocabularies import (
    BYTES,
    EOS,
    KINDS,
    PAD,
    SMALLEST,
    SOS,
    SPECIALS,
    UNK,
    content,
    read,
    trained,
)
from intently.tasks.text.words import not_text, strings, word_spans, words

if TYPE_CHECKING:
    from tokenizers import Encoding


BATCH = 4096  # sentences per call of the library; more only costs memory

READY = Path(str(files("intently") / "tasks" / "embedded" / "tokenizer.json"))
"""The subword tokenizer that is part of the package; ``docs/make_tokenizer.py`` makes it."""


class Tokenizer:
    """Turns sentences into token ids and back; ``kind`` is word, character or subword.

    A subword tokenizer restores every text exactly, a character tokenizer every text of known
    characters, a word tokenizer every text of known words, with single spaces. Ids 0 to 3 are
    padding, start, end and unknown in all of them.

    >>> tokenizer = Tokenizer.train(["L'animal dort.", "Un animal a bu."], kind="word")
    >>> ids = tokenizer.encode("L'animal a dort.")
    >>> tokenizer.tokens(ids)
    ["▁L'", 'animal', '▁a', '▁dort', '.']
    >>> tokenizer.decode(ids)
    "L'animal a dort."
    """

    def __init__(self, backend: tokenizers.Tokenizer, kind: str) -> None:
        self.backend = backend
        self.kind = kind

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        kind: str = "subword",
        size: int = 8000,
        min_frequency: int = 1,
    ) -> Tokenizer:
        """Learn a vocabulary of at most ``size`` entries, including the special tokens.

        Words, characters or pairs of pieces seen fewer than ``min_frequency`` times are left out.
        The same sentences in any order give the same tokenizer. Subwords are those of byte-pair
        encoding (Sennrich et al. 2016, section 3.2); they fall back to the 256 bytes, and at most
        half of their entries are single characters.

        Raises ArgumentError for an unknown kind, a size too small and sentences without any word,
        KindError for anything but strings.

        >>> Tokenizer.train(["to be or not to be"], kind="character").size
        11
        """
        check_word(kind, "kind", KINDS)
        if size < SMALLEST[kind]:
            cause = f"{len(SPECIALS)} entries are special tokens"
            if kind == "subword":
                cause += " and 256 the bytes that make any text sayable"
            raise build(
                ArgumentError, "size", f"at least {SMALLEST[kind]} for kind {kind!r}", size, cause
            )
        if min_frequency < 1:
            raise build(ArgumentError, "min_frequency", "1 or more", min_frequency)
        texts = strings(sentences)
        if not any(text.strip() for text in texts):
            raise build(
                ArgumentError,
                "sentences",
                "at least one with a word in it",
                f"{len(texts)} sentences of white space only" if texts else "no sentences",
                None if texts else "a generator that was used before is empty",
            )
        tokenizer = cls(trained(kind, texts, size, min_frequency), kind)
        if tokenizer.size < SMALLEST[kind]:
            raise build(
                ArgumentError,
                "min_frequency",
                f"no more than the count of the most frequent {kind}",
                min_frequency,
                f"no {kind} occurs {min_frequency} times",
            )
        return tokenizer

    @property
    def size(self) -> int:
        """The number of vocabulary entries, including the special tokens."""
        return self.backend.get_vocab_size()

    @property
    def complete(self) -> bool:
        """Whether every text can be encoded, if necessary by bytes, so that no word is unknown.

        >>> [Tokenizer.train(["the cat"], kind).complete for kind in ("word", "subword")]
        [False, True]
        """
        return self.kind == "subword"

    def encode(self, sentence: str) -> list[int]:
        """Return the token ids of a sentence, without start and end.

        Raises KindError for anything but a string, ArgumentError for a lone surrogate.
        """
        return self._encoding(sentence).ids

    def encode_words(self, sentence: str) -> tuple[list[int], list[list[int]]]:
        """Return the ids of `encode`, and their positions for each word of ``words(sentence)``.

        >>> Tokenizer.train(["L'animal dort."], kind="word").encode_words("L'animal")[1]
        [[0], [1]]
        """
        encoding = self._encoding(sentence)
        return encoding.ids, of_sentence(sentence, encoding)

    def encode_batch(self, sentences: Iterable[str]) -> list[list[int]]:
        """Return the token ids of each sentence, on all cores; raises as `encode` does."""
        texts = strings(sentences)
        return [
            encoding.ids
            for start in range(0, len(texts), BATCH)
            for encoding in self.backend.encode_batch_fast(
                texts[start : start + BATCH], add_special_tokens=False
            )
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, without special tokens.

        Bytes that are not UTF-8 become U+FFFD each. Raises ArgumentError for an id outside the
        vocabulary, KindError for anything but integers.
        """
        said = [index for index in self._ids(ids) if index >= len(SPECIALS)]
        return self.backend.decode(said, skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the entry of each id in readable form: a space as ▁, a byte as <0x0A>.

        >>> Tokenizer.train(["the cat"]).tokens([1, 14, 2])
        ['<s>', '<0x0A>', '</s>']
        """
        return [self._entry(index).replace(" ", "▁") for index in self._ids(ids)]

    def unknown(self, sentence: str) -> list[str]:
        """Return the unknown words of a sentence, each once.

        >>> Tokenizer.train(["the cat sat"], kind="word").unknown("the dog sat, the dog")
        ['dog', ',']
        """
        if self.complete:
            return []
        ids, found = self.encode_words(sentence)
        read = zip(words(sentence), found, strict=True)
        return list(dict.fromkeys(word for word, own in read if any(ids[i] == UNK for i in own)))

    def word_groups(self, sentence: str, ids: Sequence[int]) -> list[list[int]]:
        """Return, for each word of ``words(sentence)``, the positions in ``ids`` of its tokens.

        ``ids`` are those of ``encode(sentence)``, optionally with start, end and padding. Special
        tokens and white space between words are in no group; every other token is in exactly one.
        Raises ArgumentError if the ids do not belong to the sentence.

        >>> tokenizer = Tokenizer.train(["L'animal dort."], kind="character")
        >>> tokenizer.word_groups("L'animal", [*tokenizer.encode("L'animal"), EOS])
        [[0, 1], [2, 3, 4, 5, 6, 7]]
        """
        own, found = self.encode_words(sentence)
        given = self._ids(ids)
        before = 1 if given[:1] == [SOS] else 0
        after = len(given)
        while after > before and given[after - 1] in (PAD, EOS):
            after -= 1
        if given[before:after] != own:
            raise build(
                ArgumentError,
                "ids",
                f"the {len(own)} ids of the sentence {sentence!r}",
                f"{after - before} ids that say {self.decode(given)!r}",
                "the ids come from another sentence or another tokenizer, or were cut",
                "for ids that a model produced use group_ids(ids)",
            )
        return [[before + position for position in group] for group in found]

    def group_ids(self, ids: Iterable[int]) -> list[list[int]]:
        """Return, for each word of ``words(decode(ids))``, the positions in ``ids`` of its tokens.

        For any ids, such as those a model produced. Special tokens and white space between words
        are in no group; a token with parts of several words is in the group of each, so no group is
        empty. Raises as `decode` does.

        >>> tokenizer = Tokenizer.train(["the cat sat"], kind="word")
        >>> tokenizer.group_ids([SOS, *tokenizer.encode("the cat"), EOS])
        [[1], [2]]
        """
        given = self._ids(ids)
        return of_entries([self._entry(index) for index in given], self.decode(given))

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as one JSON file, the format of the ``tokenizers`` library.

        The file holds a checksum of itself and is written atomically. Raises WriteError.
        """
        replace_file(Path(path), self.content())

    def content(self) -> bytes:
        """Return the content of the file that `save` writes."""
        return content(self.backend)

    @classmethod
    def load(cls, path: str | Path | None = None) -> Tokenizer:
        """Read a tokenizer that `save` wrote; without a path, the embedded one for English.

        The embedded one has 9,000 subwords and restores any text of any language exactly. Raises
        DataError if the file is missing, damaged or from another program.

        >>> ready = Tokenizer.load()
        >>> ready.tokens(ready.encode("I drink milk"))
        ['▁I', '▁drink', '▁milk']
        """
        return cls(*read(READY if path is None else Path(path)))

    def __repr__(self) -> str:
        return f"<Tokenizer of {self.size} {self.kind} entries>"

    def _encoding(self, sentence: str) -> tokenizers.Encoding:
        try:
            return self.backend.encode(sentence, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise not_text("sentence", sentence) from None

    def _entry(self, index: int) -> str:
        entry = self.backend.id_to_token(index)
        assert entry is not None  # `_ids` has checked the range, `read` that it has no holes
        return entry

    def _ids(self, ids: Iterable[int]) -> list[int]:
        try:
            given = [operator.index(entry) for entry in ids]
        except TypeError:
            raise build(
                KindError,
                "ids",
                "a flat sequence of integers",
                type(ids).__name__,
                fix="decode one row of a batch at a time",
            ) from None
        if given and not 0 <= min(given) <= max(given) < self.size:
            wrong = next(index for index in given if not 0 <= index < self.size)
            raise build(
                ArgumentError,
                "ids",
                f"ids from 0 to {self.size - 1}",
                wrong,
                "the ids come from a tokenizer or a model with another vocabulary",
            )
        return given


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
