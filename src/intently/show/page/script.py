"""The JavaScript modules of the page as one script, without their imports and exports.

A module comes after those that it imports. Only ``import { a, b } from "./x.js";`` on one line and
``export`` before a function, a class or a const are allowed, so that no parser is needed.
``setup.py`` bundles the `ENTRIES` when a wheel is built, and runs this file alone to do so; in a
checkout they are bundled once, and again when a module has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

HERE = Path(__file__).parent
MODULES, BUNDLES = HERE / "modules", HERE / "bundles"

ENTRIES = ("start", "widget", "play", "worker")
"""The modules that scripts begin with: a page, its notebook form, a live page, its worker."""

IMPORT = re.compile(r'import \{ ((?:\w+, )*\w+),? \} from "\./(\w+)\.js";')
EXPORT = re.compile(r"export (?=(?:async )?function\b|const\b|class\b)")
TOP = re.compile(r"(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+)")


@cache
def source(name: str) -> str:
    """Return the text of a file of the page that is no module, such as ``body.html``."""
    return (HERE / name).read_text(encoding="utf-8")


def joined(modules: Sequence[str]) -> str:
    """Return modules, and those that they import, as one script without imports and exports.

    The last one names the bundle of an installed package.
    """
    built = BUNDLES / f"{modules[-1]}.js"
    return _text(built) if built.exists() else _bundled(tuple(modules), _newest())


def strict(code: str) -> str:
    """Return joined modules as a script of their own: strict, and without global names."""
    return f'\n(() => {{\n"use strict";\n\n{code}\n}})();\n'


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _newest() -> int:
    """Return when a module was changed last, in nanoseconds."""
    with os.scandir(MODULES) as entries:
        return max([entry.stat().st_mtime_ns for entry in entries])


@lru_cache(maxsize=8)
def _bundled(modules: tuple[str, ...], newest: int) -> str:
    del newest  # it only tells bundles of other times apart
    return bundle(modules, MODULES)


def bundle(modules: Sequence[str], folder: Path) -> str:
    """Return modules of a folder as one script, each after those that it imports.

    Raises `ValueError` for an import that its module does not export, for a circle, for other forms
    of import or export, and for a top-level name that two modules share.
    """
    parts: dict[str, str] = {}
    known: dict[str, str] = {}
    for name in modules:
        _add(name, folder, parts, known, ())
    return "\n\n".join(parts.values()) + "\n"


def _add(
    name: str, folder: Path, parts: dict[str, str], known: dict[str, str], by: tuple[str, ...]
) -> None:
    """Add a module after its imports; ``by`` are the modules that wait for it."""
    if name in parts:
        return
    if name in by:
        raise ValueError(f"{name}.js imports itself by way of {' → '.join(by)}")
    lines = (folder / f"{name}.js").read_text(encoding="utf-8").splitlines()
    for line in lines:
        found = IMPORT.fullmatch(line)
        if found is not None:
            _add(found[2], folder, parts, known, (*by, name))
    plain = "\n".join(_plain(name, lines, known)).strip()
    for line in lines:
        found = TOP.match(line)
        if found is not None and known.setdefault(found[1], name) != name:
            raise ValueError(f"{name}.js: {found[1]} is a name of {known[found[1]]}.js, too")
    parts[name] = f"// {name}.js\n{plain}"


def _plain(name: str, lines: Sequence[str], known: dict[str, str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if line.startswith("import "):
            found = IMPORT.fullmatch(line)
            if found is None or any(known.get(x) != found[2] for x in found[1].split(", ")):
                known_form = 'import { a, b } from "./x.js"; of what that module has'
                raise ValueError(f"{name}.js:{number}: expected {known_form}; got {line}")
            continue
        plain = EXPORT.sub("", line, count=1) if line.startswith("export ") else line
        if plain.startswith("export "):
            known_form = "export before a function, a class or a const"
            raise ValueError(f"{name}.js:{number}: expected {known_form}; got {line}")
        yield plain
