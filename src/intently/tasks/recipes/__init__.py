"""Recipes: sets of options, tested on public corpora; and where the sentences of a run come from.

A recipe is a TOML file in this folder: a section ``[recipe]`` with corpus and direction, then the
sections of `intently.tasks.training.TrainingOptions`. A run's folder records its corpus or its
files, for evaluating and resuming it.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self

from intently.errors import ArgumentError, DataError, build
from intently.foundation.files import File, make_folder, replace_file, sealed
from intently.foundation.on_demand import listed
from intently.tasks.corpora.files import ParallelText, read_parallel
from intently.tasks.corpora.named import Corpus, check_name, load_corpus
from intently.tasks.training import TrainingOptions
from intently.tasks.training.progress import Event, Listener

__all__ = ["Recipe", "recipe", "recipe_text", "recipes"]

__dir__ = listed(__name__)


@dataclass(frozen=True)
class Recipe:
    """A corpus, a direction, the options of a training, and its measured result ("": none)."""

    name: str
    about: str
    corpus: str
    source: str
    target: str
    options: TrainingOptions
    result: str = ""


def recipe(name: str) -> Recipe:
    """Return the recipe of that name.

    Raises `ArgumentError`, listing the known names, for any other.

    >>> recipe("multi30k-en-de").corpus
    'multi30k'
    """
    sections = tomllib.loads(recipe_file(name))
    head = sections.pop("recipe")
    return Recipe(name, options=TrainingOptions.from_dict(sections, name), **head)


def recipes() -> list[Recipe]:
    """Return all recipes, by name."""
    return [recipe(name) for name in _names()]


def recipe_text(name: str) -> str:
    """Return a recipe's options as TOML, as a template; its description becomes comments.

    Raises `ArgumentError`, listing the known names, for any other.
    """
    head, options = recipe_file(name).split("\n\n", 1)
    about = "".join(f"# {line}\n" for line in head.splitlines()[1:])
    return f"# {name}\n{about}\n{options}"


def recipe_file(name: str) -> str:
    """Return the file of a recipe."""
    check_name(name, "recipe", _names())
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def _names() -> list[str]:
    names = (file.name for file in files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


FILE, FILES = "run.json", "files.json"
WORD, NUMBER = re.compile(r"[^\0]*", re.DOTALL), range(2**63)
MAYBE = (WORD, None)
ORIGIN = {"corpus": WORD, "source": WORD, "target": WORD, "data_dir": MAYBE, "recipe": MAYBE}
SIDES = {"source": WORD, "target": MAYBE, "dev": [WORD], "guide": MAYBE}
SIDES |= {"pairs": NUMBER, "held_out": NUMBER}
"""The shapes of the two files; see `intently.foundation.files.fault`."""


class _Recorded:
    """A dataclass that is recorded in a run's folder: its file, what that is, and its shape."""

    _record: ClassVar[tuple[str, str, dict[str, Any]]]

    @classmethod
    def load(cls, folder: Path | str) -> Self | None:
        """Return the record in a run's folder, or None; raises `DataError` if it is damaged."""
        name, expected, shape = cls._record
        file = File(Path(folder) / name, expected, DataError)
        return cls(**file.sealed(shape)) if file.exists() else None

    def save(self, folder: Path | str) -> None:
        """Record it in a run's folder."""
        make_folder(Path(folder))
        content = sealed(dataclasses.asdict(self))  # pyright: ignore[reportArgumentType]
        replace_file(Path(folder) / self._record[0], content)


@dataclass(frozen=True)
class Origin(_Recorded):
    """A named corpus in one direction, the folder it is read from, and the recipe that uses it.

    >>> Origin.of("multi30k:de-en").target
    'en'
    """

    _record = FILE, "the origin of a run", ORIGIN

    corpus: str
    source: str
    target: str
    data_dir: str | None = None
    recipe: str | None = None

    @classmethod
    def of(cls, direction: str, data_dir: Path | None = None) -> Origin:
        """Return the origin written as "multi30k:de-en"; raises `ArgumentError` for others."""
        match = re.fullmatch(r"([^:]+):([^:-]+)-([^:-]+)", direction)
        if match is None:
            expected = "NAME:SOURCE-TARGET, such as multi30k:de-en"
            raise build(ArgumentError, "--corpus", expected, repr(direction))
        return cls(*match.groups()).read_from(data_dir)

    def read_from(self, data_dir: Path | None) -> Origin:
        """Return the origin with an absolute ``data_dir``; None changes nothing."""
        if data_dir is None:
            return self
        return dataclasses.replace(self, data_dir=_absolute(data_dir))

    def read(self) -> Corpus:
        """Return the corpus; raises as `intently.tasks.corpora.load_corpus` does."""
        return load_corpus(self.corpus, self.source, self.target, self.data_dir)

    def __str__(self) -> str:
        return f"{self.corpus}:{self.source}-{self.target}"


@dataclass(frozen=True)
class Files(_Recorded):
    """The files of a run: its pairs, its dev set, and the links that guide a head.

    Each side is a file of its own, or both are columns of one (``target`` None, one file in
    ``dev``). Without ``dev``, the last ``held_out`` of all ``pairs`` are the dev set. ``guide`` is
    a file or a trained run.
    """

    _record = FILES, "the files of a run", SIDES

    source: str
    target: str | None = None
    dev: list[str] = field(default_factory=list)
    guide: str | None = None
    pairs: int = 0
    held_out: int = 0

    def save(self, folder: Path | str) -> None:
        """Record the files in a run's folder, with absolute paths."""
        source, dev = _absolute(self.source), [_absolute(name) for name in self.dev]
        target, guide = (name and _absolute(name) for name in (self.target, self.guide))
        absolute = dataclasses.replace(self, source=source, target=target, dev=dev, guide=guide)
        super(Files, absolute).save(folder)

    def read_dev(self) -> ParallelText:
        """Return the dev set; raises `DataError` where its files are gone or have changed."""
        if self.dev:
            return read_parallel(*self.dev)
        text = read_parallel(self.source, self.target)
        if len(text) != self.pairs:
            expected = f"the {self.pairs:,} pairs of which the run held out the last"
            both = self.source if self.target is None else f"{self.source} and {self.target}"
            raise build(DataError, both, expected, f"{len(text):,}")
        _, held_out = text.split_off(self.held_out)
        report = f"the last {self.held_out:,} of {text.report}, held out while training"
        return dataclasses.replace(held_out, report=report)


def example(folder: Path | str) -> str | None:
    """Return a short source sentence of the dev set of the run in a folder.

    None where the folder records no run, and where its corpus or files are gone.
    """
    origin = Origin.load(folder)
    own = Files.load(folder) if origin is None else None
    try:
        dev = origin.read().dev if origin else own.read_dev() if own else None
    except DataError:
        return None
    short = (text for text in (dev.sources if dev else ()) if 15 <= len(text) <= 80)
    return next(short, dev.sources[0] if dev else None)


def _absolute(name: Path | str) -> str:
    return str(Path(name).absolute())


def keeping(origin: Origin | Files, folder: Path, progress: Listener) -> Listener:
    """Return ``progress`` that first records the origin in a run's folder.

    At the first event everything has been checked, so a refused run leaves the folder as it was.
    """
    kept = False

    def tell(event: Event) -> None:
        nonlocal kept
        if not kept:
            other = FILES if isinstance(origin, Origin) else FILE
            (folder / other).unlink(missing_ok=True)  # of a run without checkpoints
            origin.save(folder)
        kept = True
        progress(event)

    return tell
