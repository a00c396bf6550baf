"""The JavaScript modules of the page as one script, without their imports and exports.

A module comes after those that it imports. Only ``import { a, b } from "./x.js";`` on one line and
``export`` before a function, a class or a const are allowed, so that no parser is needed.
``setup.py`` bundles the `ENTRIES` when a wheel is built, and runs this file alone to do so; in a
checkout they are bundled once, and again when a module has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

HERE = Path(__file__).parent
MODULES = HERE / "modules"

ENTRIES = ("start", "widget", "play", "worker", "player")
"""The modules that scripts begin with: of a page, in a notebook, live, its worker, of a story."""

IMPORT = re.compile(r'import \{ ((?:\w+, )*\w+),? \} from "\./(\w+)\.js";')
EXPORT = re.compile(r"export (?=(?:async )?function\b|const\b|class\b)")
TOP = re.compile(r"(?:async )?(?:function\*?|const|let|class) (\w+)")


@cache
def source(name: str) -> str:
    """Return the text of a file of the page that is no module, such as ``body.html``."""
    return (HERE / name).read_text(encoding="utf-8")


def joined(modules: Sequence[str]) -> str:
    """Return modules, and those that they import, as one script without imports and exports.

    The last one names the bundle of an installed package.
    """
    built = f"bundles/{modules[-1]}.js"
    if (HERE / built).exists():
        return source(built)
    with os.scandir(MODULES) as entries:
        newest = max([entry.stat().st_mtime_ns for entry in entries])
    return _bundled(tuple(modules), newest)


def strict(code: str) -> str:
    """Return joined modules as a script of their own: strict, and without global names."""
    return f'\n(() => {{\n"use strict";\n\n{code}\n}})();\n'


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
    homes: dict[str, str] = {}

    def add(name: str, by: tuple[str, ...] = ()) -> None:
        """Add a module after its imports; ``by`` are the modules that wait for it."""
        if name in parts:
            return
        if name in by:
            raise ValueError(f"{name}.js imports itself by way of {' → '.join(by)}")
        kept = []
        text = (folder / f"{name}.js").read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("import "):
                names, home = ((match := IMPORT.fullmatch(line)) and match.groups()) or ("", "")
                if home:
                    add(home, (*by, name))
                if not home or any(homes.get(x) != home for x in names.split(", ")):
                    form = 'import { a, b } from "./x.js"; of what that module has'
                    raise ValueError(f"{name}.js:{number}: expected {form}; got {line}")
                continue
            plain = EXPORT.sub("", line, count=1) if line.startswith("export ") else line
            if plain.startswith("export "):
                form = "export before a function, a class or a const"
                raise ValueError(f"{name}.js:{number}: expected {form}; got {line}")
            top = TOP.match(plain)
            if top is not None and homes.setdefault(top[1], name) != name:
                raise ValueError(f"{name}.js: {top[1]} is a name of {homes[top[1]]}.js, too")
            kept.append(plain)
        code = "\n".join(kept).strip()
        parts[name] = f"// {name}.js\n{code}"

    for name in modules:
        add(name)
    return "\n\n".join(parts.values()) + "\n"
