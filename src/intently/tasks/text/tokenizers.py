"""Tokenizers: sentences to token ids and back, by words, characters or subwords."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import groupby, islice, takewhile
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
            expected = f"at least {SMALLEST[kind]} for kind {kind!r}"
            raise build(ArgumentError, "size", expected, size, cause)
        if min_frequency < 1:
            raise build(ArgumentError, "min_frequency", "1 or more", min_frequency)
        texts = strings(sentences)
        if not any(text.strip() for text in texts):
            got = f"{len(texts)} sentences of white space only" if texts else "no sentences"
            cause = None if texts else "a generator that was used before is empty"
            raise build(ArgumentError, "sentences", "at least one with a word in it", got, cause)
        tokenizer = cls(trained(kind, texts, size, min_frequency), kind)
        if tokenizer.size < SMALLEST[kind]:
            expected = f"no more than the count of the most frequent {kind}"
            cause = f"no {kind} occurs {min_frequency} times"
            raise build(ArgumentError, "min_frequency", expected, min_frequency, cause)
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
        ordinary = [index for index in self._ids(ids) if index >= len(SPECIALS)]
        return self.backend.decode(ordinary, skip_special_tokens=False)

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
        ids, groups = self.encode_words(sentence)
        pairs = zip(words(sentence), groups, strict=True)
        return list(dict.fromkeys(word for word, at in pairs if any(ids[i] == UNK for i in at)))

    def word_groups(self, sentence: str, ids: Sequence[int]) -> list[list[int]]:
        """Return, for each word of ``words(sentence)``, the positions in ``ids`` of its tokens.

        ``ids`` are those of ``encode(sentence)``, optionally with start, end and padding. Special
        tokens and white space between words are in no group; every other token is in exactly one.
        Raises ArgumentError if the ids do not belong to the sentence.

        >>> tokenizer = Tokenizer.train(["L'animal dort."], kind="character")
        >>> tokenizer.word_groups("L'animal", [*tokenizer.encode("L'animal"), EOS])
        [[0, 1], [2, 3, 4, 5, 6, 7]]
        """
        whole, groups = self.encode_words(sentence)
        given = self._ids(ids)
        before = int(given[:1] == [SOS])
        after = len(given)
        while after > before and given[after - 1] in (PAD, EOS):
            after -= 1
        if given[before:after] != whole:
            expected = f"the {len(whole)} ids of the sentence {sentence!r}"
            got = f"{after - before} ids that say {self.decode(given)!r}"
            cause = "the ids come from another sentence or another tokenizer, or were cut"
            fix = "for ids that a model produced use group_ids(ids)"
            raise build(ArgumentError, "ids", expected, got, cause, fix)
        return [[before + position for position in group] for group in groups]

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
        """Return checked ids as a list."""
        try:
            given = [operator.index(entry) for entry in ids]
        except TypeError:
            fix = "decode one row of a batch at a time"
            expected, got = "a flat sequence of integers", type(ids).__name__
            raise build(KindError, "ids", expected, got, fix=fix) from None
        size = self.size
        if given and not 0 <= min(given) <= max(given) < size:
            wrong = next(index for index in given if not 0 <= index < size)
            cause = "the ids come from a tokenizer or a model with another vocabulary"
            raise build(ArgumentError, "ids", f"ids from 0 to {size - 1}", wrong, cause)
        return given


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
    spans = _spans(places.values())
    shift = (spans[-1][1] if spans else 0) - len(text)  # the space assumed before the text
    tokens = [(n, start - shift, end - shift) for n, (start, end) in zip(places, spans)]
    groups: list[list[int]] = []
    first = 0
    for start, end in word_spans(text):
        while first < len(tokens) and tokens[first][2] < start:
            first += 1
        near = takewhile(lambda token, end=end: token[1] < end, islice(tokens, first, None))
        groups.append([n for n, _, right in near if right > start or places[n] == " "])
    return groups


def _spans(entries: Iterable[str]) -> list[tuple[int, int]]:
    """Return each entry's span in the joint text; the bytes of one character share its span."""
    spans: list[tuple[int, int]] = []
    end = 0
    for are_bytes, run in groupby(entries, BYTE_VALUES.__contains__):
        if not are_bytes:
            for entry in run:
                spans.append((end, end + len(entry)))
                end += len(entry)
            continue
        values = bytes(BYTE_VALUES[entry] for entry in run)
        try:
            valid = bool(values.decode())
        except UnicodeDecodeError:  # the library's decoder then writes U+FFFD for every byte
            valid = False
        for byte in values:
            end += not valid or (byte & 0xC0) != 0x80  # no continuation byte: a character begins
            spans.append((end - 1, end))
    return spans


BYTE_VALUES = {entry: value for value, entry in enumerate(BYTES)}
