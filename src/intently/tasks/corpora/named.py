"""Corpora by name: train, dev and test pairs, with their credit."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from intently.errors import ArgumentError, build
from intently.tasks.corpora import multi30k, tatoeba
from intently.tasks.corpora.built_in import Pair, language, sample
from intently.tasks.corpora.files import ParallelText

DEV_PAIRS = 500
TEST_PAIRS = 1_000


@dataclass(frozen=True)
class Corpus:
    """A corpus in one direction: ``train`` and ``dev`` pairs, and ``tests`` by name.

    ``credit`` names source and licence in one line; ``data_dir`` is the folder it was read from
    (None: the folder of downloads, or the package).
    """

    name: str
    source: str
    target: str
    train: ParallelText
    dev: ParallelText
    tests: Mapping[str, ParallelText]
    credit: str
    data_dir: Path | None = None


Parts = tuple[ParallelText, ParallelText, Mapping[str, ParallelText]]


class _Known(NamedTuple):
    """A known corpus: its source and target languages, and the function that reads it."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    read: Callable[[str, str, Path | None], Parts]
    credit: str


@cache
def _built_in() -> Parts:
    """Return pairs of the built-in language, read once."""

    def text(split: str, pairs: Iterable[Pair]) -> ParallelText:
        sides = [(pair.source, pair.target) for pair in pairs]
        report = f"{len(sides):,} sentence pairs of the built-in language, {split}"
        return ParallelText([s for s, _ in sides], [t for _, t in sides], report)

    return (
        text("train", language("train")),
        text("validation", sample("validation", DEV_PAIRS)),
        {name: text(name, sample(name, TEST_PAIRS)) for name in ("test", "novel", "deeper")},
    )


KNOWN = {
    "language": _Known(
        ("en",),
        ("fr",),
        lambda source, target, data_dir: _built_in(),
        "the built-in language of Intently: written by a grammar, free for every use",
    ),
    "multi30k": _Known(
        multi30k.LANGUAGES, multi30k.LANGUAGES, multi30k.read_multi30k, multi30k.CREDIT
    ),
    "tatoeba": _Known(tatoeba.LANGUAGES, tatoeba.LANGUAGES, tatoeba.read_tatoeba, tatoeba.CREDIT),
}
CORPORA = tuple(KNOWN)
"""The names that `load_corpus` knows."""


def load_corpus(name: str, source: str, target: str, data_dir: Path | str | None = None) -> Corpus:
    """Return a corpus by its name, from one of its languages to another.

    ``language`` is part of the package; ``multi30k`` (en, de, fr) and ``tatoeba`` (en, fr) are
    downloaded once into the user's cache (see `download.cache_folder`) and verified, or read from
    ``data_dir``, a folder with copies of their files.

    Raises ArgumentError for an unknown name or language, and for a ``data_dir`` with ``language``;
    DataError where files are missing, cannot be downloaded or have other content.

    >>> load_corpus("multi30k", "en", "cs")
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: target: expected one of de, fr from en in multi30k; got 'cs'.
    """
    if name not in KNOWN:
        close = difflib.get_close_matches(name, CORPORA, n=1)
        fix = f"did you mean {close[0]}?" if close else None
        raise build(ArgumentError, "name", f"one of {', '.join(CORPORA)}", repr(name), fix=fix)
    known = KNOWN[name]
    if source not in known.sources:
        expected = f"one of {', '.join(known.sources)} in {name}"
        raise build(ArgumentError, "source", expected, repr(source))
    others = [language for language in known.targets if language != source]
    if target not in others:
        expected = f"one of {', '.join(others)} from {source} in {name}"
        raise build(ArgumentError, "target", expected, repr(target))
    folder = None if data_dir is None else Path(data_dir)
    if name == "language" and folder is not None:
        cause = "the built-in language comes with the package"
        raise build(ArgumentError, "data_dir", "none", repr(str(folder)), cause)
    train, dev, tests = known.read(source, target, folder)
    absolute = None if folder is None else folder.absolute()
    return Corpus(name, source, target, train, dev, tests, known.credit, absolute)
