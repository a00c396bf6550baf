"""The corpus of a run, recorded in its folder for evaluating and resuming."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from intently.corpora.named import Corpus, load_corpus
from intently.errors import ArgumentError, DataError, build
from intently.foundation.files import File, make_folder, replace_file, sealed
from intently.training.events import Event, Listener

FILE = "run.json"
WORD = re.compile(r"[^\0]*", re.DOTALL)
SHAPE = {
    "corpus": WORD,
    "source": WORD,
    "target": WORD,
    "data_dir?": (WORD, None),
    "recipe?": (WORD, None),
}
"""The shape of the file; see `intently.foundation.files.fault`."""

DIRECTION = re.compile(r"([^:]+):([^:-]+)-([^:-]+)")


@dataclass(frozen=True)
class Origin:
    """A named corpus in one direction, the folder it is read from, and the recipe that uses it.

    >>> Origin.of("multi30k:de-en").target
    'en'
    """

    corpus: str
    source: str
    target: str
    data_dir: str | None = None
    recipe: str | None = None

    @classmethod
    def of(cls, direction: str, data_dir: Path | None = None) -> Origin:
        """Return the origin written as "multi30k:de-en"; raises `ArgumentError` for others."""
        found = DIRECTION.fullmatch(direction)
        if found is None:
            expected = "NAME:SOURCE-TARGET, such as multi30k:de-en"
            raise build(ArgumentError, "--corpus", expected, repr(direction))
        return cls(*found.groups()).read_from(data_dir)

    @classmethod
    def load(cls, folder: Path | str) -> Origin | None:
        """Return the origin recorded in a run's folder, or None.

        Raises `DataError` if the file is damaged.
        """
        file = File(Path(folder) / FILE, "the origin of a run", DataError)
        return cls(**file.sealed(SHAPE, old=True)) if file.exists() else None

    def save(self, folder: Path | str) -> None:
        """Record the origin in a run's folder."""
        make_folder(Path(folder))
        replace_file(Path(folder) / FILE, sealed(dataclasses.asdict(self)))

    def read_from(self, data_dir: Path | None) -> Origin:
        """Return the origin with an absolute ``data_dir``; None changes nothing.

        >>> Origin.of("multi30k:de-en").read_from(None).data_dir is None
        True
        """
        if data_dir is None:
            return self
        return dataclasses.replace(self, data_dir=str(data_dir.absolute()))

    def read(self) -> Corpus:
        """Return the corpus; raises as `intently.corpora.load_corpus` does."""
        return load_corpus(self.corpus, self.source, self.target, self.data_dir)

    def __str__(self) -> str:
        return f"{self.corpus}:{self.source}-{self.target}"


def keeping(origin: Origin | None, folder: Path, progress: Listener) -> Listener:
    """Return ``progress`` that first records the origin (None: files) in a run's folder.

    At the first event everything has been checked, so a refused run leaves the folder as it was.
    """
    kept = False

    def tell(event: Event) -> None:
        nonlocal kept
        if not kept and origin is None:
            (folder / FILE).unlink(missing_ok=True)  # of a run without checkpoints
        elif not kept and origin is not None:
            origin.save(folder)
        kept = True
        progress(event)

    return tell
