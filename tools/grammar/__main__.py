"""Write the built-in language into the package: ``python -m tools.grammar [FOLDER]``.

A table for each split, and SHA256SUMS. The same grammar writes the same files.
"""

from __future__ import annotations

import hashlib
import lzma
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from intently.tasks.corpora import built_in

from .pair import Pair
from .shown import SHOWN
from .splits import language, sample

SIZES = {"train": 100_000, "validation": 1_000, "test": 2_000, "novel": 2_000, "deeper": 2_000}


def row(pair: Pair) -> built_in.Pair:
    """Return a pair as the package reads it.

    >>> row(SHOWN[0])[3:]
    ('0-0 1-1 2?2 2-3 3-4', '')
    """
    sure, possible = pair.alignment.sure, pair.alignment.possible
    links = " ".join(f"{i}{'-' if (i, j) in sure else '?'}{j}" for i, j in sorted(possible))
    referent = " ".join(map(str, pair.pronoun or ()))
    return built_in.Pair(pair.source, pair.target, pair.kind, links, referent)


def pairs(split: str, count: int) -> Iterable[Pair]:
    """Return the pairs of a split: a stream of `train`, distinct sentences of the others."""
    return islice(language(split), count) if split == "train" else sample(split, count)


def table(chosen: Iterable[Pair]) -> bytes:
    """Return pairs as compressed lines."""
    text = "".join("\t".join(row(pair)) + "\n" for pair in chosen)
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def main(folder: Path) -> None:
    """Write all tables and their checksums."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {split: table(pairs(split, count)) for split, count in SIZES.items()}
    tables["shown"] = table(SHOWN)
    sums = ""
    for name, content in tables.items():
        file = f"{name}.tsv.xz"
        (folder / file).write_bytes(content)
        sums += f"{hashlib.sha256(content).hexdigest()}  {file}\n"
        print(f"{file}: {len(content):,} bytes")
    (folder / "SHA256SUMS").write_text(sums, encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else built_in.FOLDER)
