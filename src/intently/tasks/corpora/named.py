"""Corpora by name: train, dev and test pairs, with their credit."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from intently.errors import ArgumentError, build
from intently.tasks.corpora import tatoeba
from intently.tasks.corpora.built_in import Pair, language, sample
from intently.tasks.corpora.download import RemoteFile, obtain
from intently.tasks.corpora.files import ParallelText, read_parallel

DEV_PAIRS = 500
TEST_PAIRS = 1_000

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
MULTI30K = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
"""Where the captions of task 1 are."""

SHA256 = {
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}
"""SHA-256 of the unpacked files of Multi30k."""


@dataclass(frozen=True)
class Corpus:
    """A corpus in one direction: ``train`` and ``dev`` pairs, and ``tests`` by name.

    ``credit`` names source and licence in one line.
    """

    name: str
    source: str
    target: str
    train: ParallelText
    dev: ParallelText
    tests: Mapping[str, ParallelText]
    credit: str


Parts = tuple[ParallelText, ParallelText, Mapping[str, ParallelText]]


def text_of(pairs: Iterable[Pair], split: str = "") -> ParallelText:
    """Return the sentences of pairs of the built-in language."""
    every = list(pairs)
    report = f"{len(every):,} sentence pairs of the built-in language, {split}"
    return ParallelText([x.source for x in every], [x.target for x in every], report)


@cache
def _built_in() -> Parts:
    """Return pairs of the built-in language, read once."""
    tests = {name: text_of(sample(name, TEST_PAIRS), name) for name in ("test", "novel", "deeper")}
    dev = text_of(sample("validation", DEV_PAIRS), "validation")
    return text_of(language("train"), "train"), dev, tests


def _multi30k(source: str, target: str, data_dir: Path | None) -> Parts:
    """Return captions of pictures in one language, and their translations."""
    splits = ("train", "val", "test_2016_flickr")
    names = [f"{split}.{language}" for split in splits for language in (source, target)]
    files = [RemoteFile((name,), f"{MULTI30K}/{name}.gz", SHA256[name]) for name in names]
    paths = iter(obtain("multi30k", files, data_dir))
    train, dev, test = (read_parallel(side, next(paths)) for side in paths)
    return train, dev, {"test_2016_flickr": test}


class KnownCorpus(NamedTuple):
    """A known corpus: its source and target languages, and the function that reads it."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    read: Callable[[str, str, Path | None], Parts]
    credit: str


KNOWN = {
    "language": KnownCorpus(
        ("en",),
        ("fr",),
        lambda source, target, data_dir: _built_in(),
        "the built-in language of Intently: written by a grammar, free for every use",
    ),
    "multi30k": KnownCorpus(
        ("en", "de", "fr"),
        ("en", "de", "fr"),
        _multi30k,
        "Multi30k by D. Elliott, S. Frank, K. Sima'an, L. Specia and others (2016, 2017), "
        "github.com/multi30k/dataset; for non-commercial research and education",
    ),
    "tatoeba": KnownCorpus(("en", "fr"), ("en", "fr"), tatoeba.read_tatoeba, tatoeba.CREDIT),
}
CORPORA = tuple(KNOWN)
"""The names that `load_corpus` knows."""


def check_name(name: str, argument: str, known: Sequence[str]) -> None:
    """Raise `ArgumentError`, with the nearest name, unless ``name`` is one of those ``known``."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        fix = f"Did you mean {near[0]}?" if near else None
        raise build(ArgumentError, argument, f"one of {', '.join(known)}", repr(name), fix=fix)


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
    check_name(name, "name", CORPORA)
    known = KNOWN[name]
    if source not in known.sources:
        expected = f"one of {', '.join(known.sources)} in {name}"
        raise build(ArgumentError, "source", expected, repr(source))
    others = [language for language in known.targets if language != source]
    if target not in others:
        expected = f"one of {', '.join(others)} from {source} in {name}"
        raise build(ArgumentError, "target", expected, repr(target))
    if name == "language" and data_dir is not None:
        cause = "the built-in language comes with the package"
        raise build(ArgumentError, "data_dir", "none", repr(str(data_dir)), cause)
    train, dev, tests = known.read(source, target, None if data_dir is None else Path(data_dir))
    return Corpus(name, source, target, train, dev, tests, known.credit)
