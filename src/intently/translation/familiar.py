"""What the sentences that a translator learned from look like, and whether another is like them.

A model answers every sentence, and its probabilities do not tell which ones it was not made for:
for "The bear is big and brave." it drops two words and is certain. A small language can be known
from its source side alone: words fall into classes by their neighbours, and any three classes in a
row either occur in the training text or do not (class-based n-grams: Brown et al. 1992).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from intently.show.labels import visible
from intently.text import EOS, SOS, UNK, Tokenizer, word_spans, words
from intently.translation import model_folder

MARKS = (".", "?", "!", "。", "？", "！")
LIKENESS = (0.5, 0.4)
"""Least cosine between the neighbours of two words of one class, tried in this order."""

FALSE_ALARMS = 0.005
"""Most held-out sentences that may count as strange, as a share."""

LARGEST = 4000
"""Most entries of a vocabulary whose neighbours are counted."""

EXAMPLES = 150
START = 0
"""The class before the start of a sentence; UNK is of none, any class may stand in its place."""

SHAPE = {
    "capital": bool,
    "ends": {str: str},
    "classes": [range(2**31)],
    "names": [range(2**31)],
    "rows": [range(2**63)],
    "examples": [str],
}
"""The shape of ``familiar.json``."""


@dataclass(frozen=True)
class Familiar:
    """How the sentences of a training text begin, end and go on.

    ``capital``: they begin with a capital. ``ends``: the usual end mark by the first word after the
    last comma, "" for any other word; nothing if many have none. ``classes``: the class of each
    entry of the source vocabulary; ``names``: the classes of names; ``rows``: every three classes
    in a row, as one number each; ``examples``: some short sentences.
    """

    capital: bool
    ends: dict[str, str]
    classes: tuple[int, ...]
    names: tuple[int, ...]
    rows: frozenset[int]
    examples: tuple[str, ...]

    @classmethod
    def of(
        cls, sentences: Sequence[str], tokenizer: Tokenizer, held_out: Sequence[str]
    ) -> Familiar | None:
        """Learn from the source side of a training text; None where that cannot be told.

        It cannot for a tokenizer of anything but words, for more than 4,000 entries, and where more
        than 0.5 % of the ``held_out`` sentences would count as strange.

        >>> text = ["The cat sleeps.", "The dog sleeps.", "Where is Mary?"]
        >>> familiar = Familiar.of(text, Tokenizer.train(text, "word"), text)
        >>> familiar.tidy("where is Mary", Tokenizer.train(text, "word"))
        'Where is Mary?'
        """
        if tokenizer.kind != "word" or tokenizer.size > LARGEST:
            return None
        read = [[SOS, *ids, EOS] for ids in tokenizer.encode_batch(sentences)]
        likeness = _likeness(read, tokenizer.size)
        short = Counter(text for text in sentences if len(text.split()) <= 6)
        often = [text for text, _ in short.most_common(EXAMPLES)]
        inner = {entry for ids in read for entry in ids[2:]}
        for least in LIKENESS:
            classes = _classes(likeness, least)
            rows = (_rows([classes[i] for i in ids], max(classes) + 1) for ids in read)
            found = cls(
                _capital(sentences),
                _ends(sentences),
                tuple(classes),
                tuple(sorted({classes[i] for i in _names(tokenizer) if i in inner})),
                frozenset(row for own in rows for row in own if row is not None),
                tuple(dict.fromkeys([*often, *list(short)[:EXAMPLES]])),
            )
            alarms = sum(found.strange(text, tokenizer) is not None for text in held_out)
            if alarms <= FALSE_ALARMS * len(held_out):
                return found
        return None

    # --- reading -------------------------------------------------------------------------------

    def tidy(self, line: str, tokenizer: Tokenizer) -> str:
        """Return a line as the training text would write it: capital, end mark, case of words.

        Only words outside the vocabulary change their case, and only to one that is in it.
        """
        text = line.strip()
        if not text:
            return text
        unknown = set(tokenizer.unknown(text))
        if any("’" in word for word in unknown):
            text = text.replace("’", "'")
        if self.capital and text[0].islower():
            text = text[0].upper() + text[1:]
        unknown = set(tokenizer.unknown(text))
        for start, end in reversed(word_spans(text) if unknown else []):
            if (word := text[start:end]) in unknown:
                known = (form for form in _forms(word, start) if self._fits(form, start, tokenizer))
                text = text[:start] + next(known, word) + text[end:]
        if text[-1].isalnum() and "" in self.ends:
            text += self.ends.get(_opening(text), self.ends[""])
        return text

    def strange(self, text: str, tokenizer: Tokenizer) -> str | None:
        """Return the first words that follow each other as nowhere in the training text, or None.

        Words outside the vocabulary are passed over; see `misplaced`.
        """
        ids = tokenizer.encode(text)
        classes = [self._class(i) for i in (SOS, *ids, EOS)]
        for at, row in enumerate(_rows(classes, self._count)):
            if row is not None and row not in self.rows:
                entries = tokenizer.tokens(ids[max(0, at - 1) : at + 2])
                return "".join(entries).replace("▁", " ").strip()
        return None

    def misplaced(self, text: str, tokenizer: Tokenizer) -> list[str]:
        """Return the unknown words of a text, less those with a capital at the place of a name."""
        ids, groups = tokenizer.encode_words(text)
        classes = [self._class(i) for i in (SOS, *ids, EOS)]
        found: list[str] = []
        for word, group in zip(words(text), groups):
            unknown = [i for i in group if ids[i] == UNK]
            if unknown and not (word[:1].isupper() and self._name_fits(classes, unknown[0] + 1)):
                found.append(word)
        return list(dict.fromkeys(found))

    def example(self, text: str) -> str:
        """Return the example that shares most words with a text."""
        given = {word.lower() for word in words(text)}

        def shared(example: str) -> float:
            own = {word.lower() for word in words(example)}
            return len(own & given) / len(own | given)

        return max(self.examples, key=shared)

    def _fits(self, form: str, start: int, tokenizer: Tokenizer) -> bool:
        """Return whether a form is known; inside a sentence with a capital only if it is a name."""
        (entry, *_) = tokenizer.encode(form)
        inside = start > 0 and form[0].isupper()
        return entry != UNK and not (inside and self.classes[entry] not in self.names)

    def _name_fits(self, classes: Sequence[int | None], at: int) -> bool:
        """Return whether a name may stand at this place."""
        for name in self.names:
            tried = [*classes[:at], name, *classes[at + 1 :]]
            if all(row is None or row in self.rows for row in _rows(tried, self._count)):
                return True
        return False

    def _class(self, entry: int) -> int | None:
        return None if entry == UNK else self.classes[entry]

    @property
    def _count(self) -> int:
        return max(self.classes) + 1

    # --- a file --------------------------------------------------------------------------------

    def content(self) -> bytes:
        """Return the content of its file."""
        return json.dumps({**vars(self), "rows": sorted(self.rows)}, ensure_ascii=False).encode()

    @classmethod
    def load(cls, path: Path, check: str, size: int) -> Familiar:
        """Read the file whose SHA-256 is ``check``, for a vocabulary of this size.

        Raises `CheckpointError` for a damaged file, and for one of another vocabulary.
        """
        given = model_folder.values(path, check, SHAPE)
        if len(given["classes"]) != size or not given["examples"]:
            got = f"{len(given['classes'])} classes, {len(given['examples'])} examples"
            raise model_folder.file(path).damaged(got)
        lists = {name: tuple(given[name]) for name in ("classes", "names", "examples")}
        return cls(**{**given, **lists, "rows": frozenset(given["rows"])})


def notes_on(text: str, tokenizer: Tokenizer, familiar: Familiar | None) -> Iterator[str]:
    """Yield what a model cannot know in a text: its words, or how they follow each other."""
    if familiar is None:
        unknown, strange, other = tokenizer.unknown(text), None, ""
    else:
        unknown = familiar.misplaced(text, tokenizer)
        strange = familiar.strange(text, tokenizer)
        other = f"; it knows, for example: {familiar.example(text)}" if unknown or strange else ""
    if unknown:
        told = [visible(word) for word in unknown[:8]] + ["…"] * (len(unknown) > 8)
        yield f"not in the model's vocabulary: {', '.join(told)}{other}"
    elif strange:
        yield f"unlike the sentences the model learned from, at “{visible(strange)}”{other}"


# --- learning -----------------------------------------------------------------------------------


def _rows(classes: Sequence[int | None], count: int) -> list[int | None]:
    """Return every three of ``count`` classes in a row as a number, None where one is unknown."""
    padded = [START, *classes]
    return [
        None if a is None or b is None or c is None else (a * count + b) * count + c
        for a, b, c in zip(padded, padded[1:], padded[2:])
    ]


def _likeness(read: Sequence[Sequence[int]], size: int) -> torch.Tensor:
    """Return how alike the neighbours of any two entries are, on the side where they differ more.

    Square roots of counts keep frequent neighbours from hiding the others. Entries that never occur
    are like nothing.
    """
    counts = torch.zeros(size, size)
    pairs = Counter(pair for ids in read for pair in pairwise(ids))
    places = torch.tensor(list(pairs)).T
    counts[places[0], places[1]] = torch.tensor(list(pairs.values())).float()
    after, before = (
        torch.nn.functional.normalize(side.sqrt(), dim=-1) for side in (counts, counts.T)
    )
    often = counts.sum(0) + counts.sum(1)
    likeness = torch.minimum(after @ after.T, before @ before.T)
    likeness.fill_diagonal_(0)
    return torch.cat([often[:, None], likeness], 1)


def _classes(likeness: torch.Tensor, least: float) -> list[int]:
    """Return the class of each entry: that of the most alike among the leaders of classes.

    Frequent entries come first; one that is like no leader leads a class of its own.
    """
    often, alike = likeness[:, 0], likeness[:, 1:]
    classes, leaders = [START] * len(often), []
    for entry in often.argsort(descending=True, stable=True).tolist():
        near = alike[entry, leaders] if leaders else alike.new_zeros(0)
        if len(near) and near.max() >= least:
            classes[entry] = classes[leaders[int(near.argmax())]]
        else:
            leaders.append(entry)
            classes[entry] = len(leaders)
    return classes


def _capital(sentences: Sequence[str]) -> bool:
    """Return whether all but one sentence in a thousand begin with a capital."""
    return sum(text.lstrip()[:1].islower() for text in sentences) <= len(sentences) / 1000


def _opening(text: str) -> str:
    """Return the first word after the last comma: "hello, how are you" is a question."""
    return words(text[text.rfind(",") + 1 :].strip() or text)[0].lower()


def _ends(sentences: Sequence[str]) -> dict[str, str]:
    """Return the usual end mark by opening, "" for any; none if one in a thousand has none."""
    marks: dict[str, Counter[str]] = {}
    every: Counter[str] = Counter()
    for text in filter(None, map(str.strip, sentences)):
        if text.endswith(MARKS):
            mark = text[len(text[:-1].rstrip()) :]
            marks.setdefault(_opening(text), Counter())[mark] += 1
            every[mark] += 1
    if sum(every.values()) < len(sentences) * 0.999:
        return {}
    usual = every.most_common(1)[0][0]
    found = {
        first: own.most_common(1)[0][0]
        for first, own in sorted(marks.items())
        if own.total() > len(sentences) / 20_000
    }
    return {"": usual, **{first: mark for first, mark in found.items() if mark != usual}}


def _names(tokenizer: Tokenizer) -> Iterator[int]:
    """Yield the entries with a capital that have no form without: Mary and I, but not The."""
    entries = [entry.removeprefix("▁") for entry in tokenizer.tokens(range(tokenizer.size))]
    known = set(entries)
    for index, entry in enumerate(entries):
        if entry[:1].isupper() and entry.lower() not in known:
            yield index


def _forms(word: str, start: int) -> tuple[str, ...]:
    """Return the forms of an unknown word that differ in case: HELLO, hello, Hello."""
    lower, title = word.lower(), word.capitalize()
    if len(word) > 1 and word.isupper():
        return (lower, title) if start else (title, lower)
    if word.islower():
        return (title,)
    return () if start else (lower,)
