"""Small texts of sentence pairs, drawn from the built-in language, and files of them."""

from __future__ import annotations

from pathlib import Path

from intently.tasks.corpora import Corpus, ParallelText, sample


def parallel(split: str, count: int) -> ParallelText:
    pairs = sample(split, count)
    return ParallelText([p.source for p in pairs], [p.target for p in pairs])


def small_corpus(name: str = "language", tests: int = 30) -> Corpus:
    train, dev, test = parallel("train", 60), parallel("validation", 4), parallel("test", tests)
    return Corpus(name, "en", "fr", train, dev, {"test": test}, "made here")


def write_pairs(text: ParallelText, folder: Path = Path()) -> tuple[str, str]:
    """Write a file for each side, a sentence a line, and return their names."""
    for name, side in (("s.txt", text.sources), ("t.txt", text.targets)):
        (folder / name).write_text("".join(f"{sentence}\n" for sentence in side), encoding="utf-8")
    return "s.txt", "t.txt"
