"""A base: source of correct attention, the slips that fit it, and what its user would tell.

The source is taken from the functions and classes that the base names, edited as text, and
compiled anew for every subject, so that a mutant is code as somebody would have written it.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Case


class Slip(NamedTuple):
    """One mistake as edits (old text, new text) of a base's source; each old text stands once."""

    kind: str
    edits: tuple[tuple[str, str], ...]


def slip(kind: str, *texts: str) -> Slip:
    """Return the slip that replaces texts[0] by texts[1], texts[2] by texts[3], …"""
    return Slip(kind, tuple(zip(texts[::2], texts[1::2], strict=True)))


@dataclass(frozen=True)
class Base:
    """Correct attention, and everything that is needed to plant mistakes in it and to see them.

    ``build`` makes the subject of the compiled names and a draw, ``ask`` the keyword arguments that
    a user gives to the examiner, ``cases`` the calls by which subjects are compared.
    """

    name: str
    of: tuple[Any, ...]
    build: Callable[[dict[str, Any], Draw], Any]
    ask: Callable[[Draw], dict[str, Any]]
    cases: Callable[[Draw], list[Case]]
    slips: tuple[Slip, ...]
    constants: Callable[[Draw], dict[str, Any]] = field(default=lambda draw: {})

    def source(self, planted: Slip | None = None) -> str:
        """The source, with a slip in it."""
        text = _source(self.of)
        for old, new in planted.edits if planted else ():
            if text.count(old) != 1:
                raise ValueError(f"{self.name}, {planted}: {old!r} stands {text.count(old)} times")
            text = text.replace(old, new)
        return text

    def subject(self, draw: Draw, planted: Slip | None = None) -> Any:
        """Compile the source, and build the subject with the drawn weights."""
        names = compiled(self.source(planted), self.constants(draw))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.number("build"))
            return self.build(names, draw)


@lru_cache
def _source(of: tuple[Any, ...]) -> str:
    return "\n\n".join(textwrap.dedent(inspect.getsource(x)) for x in of)


def compiled(source: str, constants: dict[str, Any]) -> dict[str, Any]:
    """Run the source and return its names; tracebacks and `inspect` can show its lines."""
    file = f"<attention {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "planted.subject", "math": math, "torch": torch}
    names |= {"nn": nn, "F": F, **constants}
    exec(compile(source, file, "exec"), names)
    return names
