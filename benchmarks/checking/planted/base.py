"""A base: source of correct attention, the slips that fit it, and what its user would tell.

The source is taken from the functions and classes that the base names, edited as text, and
compiled anew for every subject, so that a mutant is code as somebody would have written it.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import intently as it
from benchmarks.checking.planted.draw import Draw
from benchmarks.checking.planted.observing import Case


@dataclass(frozen=True)
class Slip:
    """One mistake as edits (old text, new text) of a base's source; each old text stands once.

    ``label`` tells apart several slips of one kind in one base.
    """

    kind: str
    edits: tuple[tuple[str, str], ...]
    label: str = ""

    @property
    def name(self) -> str:
        """The kind, and the label where there is one."""
        return f"{self.kind}.{self.label}" if self.label else self.kind


def slip(kind: str, *texts: str, label: str = "") -> Slip:
    """Return the slip that replaces texts[0] by texts[1], texts[2] by texts[3], …"""
    return Slip(kind, tuple(zip(texts[::2], texts[1::2], strict=True)), label)


class MisfitError(ValueError):
    """An edit whose old text does not stand exactly once in the source."""


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

    def source(self, slips: tuple[Slip, ...] = ()) -> str:
        """The source with the slips in it; raises `MisfitError`."""
        text = _source(self.of)
        for each in slips:
            for old, new in each.edits:
                if text.count(old) != 1:
                    where = f"{self.name}, {each.name}"
                    raise MisfitError(f"{where}: {old!r} stands {text.count(old)} times")
                text = text.replace(old, new)
        return text

    def subject(self, draw: Draw, slips: tuple[Slip, ...] = ()) -> Any:
        """Compile the source, spelled as drawn, and build the subject with the drawn weights."""
        names = compiled(spelled(self.source(slips), draw), self.constants(draw))
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
    given = {"math": math, "torch": torch, "nn": nn, "F": F, "it": it, "Tensor": torch.Tensor}
    names: dict[str, Any] = {"__name__": "planted.subject", **given, **constants}
    exec(compile(source, file, "exec"), names)
    return names


SPELLINGS = (
    ("scores.softmax(-1)", "torch.softmax(scores, dim=-1)", "F.softmax(scores, dim=-1)"),
    ("torch.matmul(weights, v)", "(weights @ v)", "weights.matmul(v)"),
    (".transpose(-2, -1)", ".mT", ".transpose(-1, -2)"),
    ('float("-inf")', "-torch.inf", "-math.inf"),
    ("torch.cat(", "torch.concat("),
    (".transpose(1, 2)", ".swapaxes(1, 2)"),
)
"""Texts that mean the same."""

RENAMES = (
    ("scores", "att", "sim", "dots", "logits", "energy"),
    ("weights", "probs", "attn", "alpha", "p_attn"),
    ("allowed", "visible", "keep", "permitted"),
    ("future", "hidden", "forbidden"),
    ("distance", "rel", "delta"),
)
"""Local variables, and what else people call them."""


def spelled(source: str, draw: Draw) -> str:
    """The source with drawn spellings and names of local variables; it computes the same."""
    random = draw.random("spelling")
    for group in SPELLINGS:
        chosen = random.choice(group)
        for text in group:
            source = source.replace(text, chosen)
    for old, *others in RENAMES:
        new = random.choice([old, *others])
        if not re.search(rf"\b{new}\b", source):
            source = re.sub(rf"(?<![.\w\"]){old}\b", new, source)
    return source
