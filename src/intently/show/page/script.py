"""The JavaScript modules of the page as one script, without their imports and exports.

Only ``import { a, b } from "./x.js";`` on one line and ``export`` before a function, a class or a
const are allowed, so that neither a parser nor a build step is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files

from intently.errors import DataError, build

MODULES = (
    *(
        "colours",
        "words",
        "data",
        "weighing",
        "sweeping",
        "rollout",
        "attention",
        "remote",
        "state",
    ),
    *("readings", "keys", "scales", "choosing", "painter", "frame", "shading", "exact"),
    *(
        "margins",
        "drawing",
        "crosshair",
        "strokes",
        "gestures",
        "looking",
        "adjusting",
        "beside",
        "save",
    ),
    *("snapshot", "tokens", "picture", "threads", "cards", "compare", "every", "text"),
    *("matrix", "difference", "marks", "overview", "find", "tables", "app"),
)
"""In an order in which each module imports only from earlier ones."""

ENGINE = (
    *("words", "data", "tokenizer", "layers", "changes", "transformer", "search"),
    *("translator", "worker"),
)
"""The modules of a worker in which a translator runs."""

PLAY = (*MODULES, "translated", "interventions", "hand", "moments", "live", "play")
"""The modules of the page around it."""

IMPORT = re.compile(r'import \{ ((?:\w+, )*\w+),? \} from "\./(\w+)\.js";')
EXPORT = re.compile(r"export (?=(?:async )?function\b|const\b|class\b)")
TOP = re.compile(r"(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+)")


@cache
def source(name: str) -> str:
    """Return the text of a file of the page, such as ``app.js``."""
    folder = files("intently.show.page")
    place = folder / "modules" / name if name.endswith(".js") else folder / name
    return place.read_text(encoding="utf-8")


def joined(modules: Sequence[str]) -> str:
    """Return modules as one script, in order, without imports and exports.

    Raises `DataError` for an import that no earlier module exports, for other forms of import or
    export, and for a top-level name that two modules share.
    """
    known: dict[str, str] = {}
    parts = []
    for name in modules:
        lines = source(f"{name}.js").splitlines()
        parts.append(f"// {name}.js\n" + "\n".join(_plain(name, lines, known)).strip())
        for line in lines:
            found = TOP.match(line)
            if found is not None and found[1] in known:
                raise build(
                    DataError,
                    f"{name}.js",
                    "names that no other module has",
                    found[1],
                    f"{known[found[1]]}.js has it, too",
                )
            if found is not None:
                known[found[1]] = name
    return "\n\n".join(parts) + "\n"


def strict(code: str) -> str:
    """Return joined modules as a script of their own: strict, and without global names."""
    return f'\n(() => {{\n"use strict";\n\n{code}\n}})();\n'


def _plain(name: str, lines: Sequence[str], known: dict[str, str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if line.startswith("import "):
            found = IMPORT.fullmatch(line)
            if found is None or any(known.get(x) != found[2] for x in found[1].split(", ")):
                raise build(
                    DataError,
                    f"{name}.js:{number}",
                    'import { a, b } from "./x.js"; of what an earlier module has',
                    line,
                )
            continue
        plain = EXPORT.sub("", line, count=1) if line.startswith("export ") else line
        if plain.startswith("export "):
            raise build(
                DataError,
                f"{name}.js:{number}",
                "export before a function, a class or a const",
                line,
            )
        yield plain
