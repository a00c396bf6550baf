"""The page as one file: policy, style, body, description, script, and blocks at the very end.

The policy allows the one script and the one style sheet by their hashes, pictures that are in the
file, and nothing else: no connection leaves it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intently.errors import ArgumentError, KindError, build
from intently.show.labels import visible
from intently.show.page.contents import Packed
from intently.show.page.joining import MODULES, joined, source
from intently.show.page.packing import text

SCRIPT = (*MODULES, "start")


def destination(path: str | os.PathLike[str]) -> Path:
    """Return the path of a page; call it first, so that a wrong name costs nothing.

    Raises `KindError` for what is no path, `ArgumentError` for a folder, and for a name that no
    file has or that a double click would not open.
    """
    try:
        found = Path(path)
    except TypeError:
        raise build(KindError, "path", "the name of a file", type(path).__name__) from None
    if "\0" in str(found):
        cause = "no file has a NUL in its name"
        raise build(ArgumentError, "path", "the name of a file", repr(str(path)), cause)
    if found.suffix.lower() not in (".html", ".htm"):
        raise build(
            ArgumentError, "path", "the name of a file that ends in .html", repr(str(path)),
            fix=f"write {str(found.with_suffix('.html') if found.name else 'out.html')!r}",
        )  # fmt: skip
    try:
        folder = found.is_dir()
    except OSError:  # as for a name that is too long, which `write` refuses
        folder = False
    if folder:
        cause = "a folder of this name exists"
        raise build(ArgumentError, "path", "the name of a file", repr(str(path)), cause)
    return found


def write(packed: Packed, path: str | os.PathLike[str]) -> Path:
    """Write the page; the file is there whole or not at all, and folders are made.

    Raises `ArgumentError` where no file can be made.
    """
    final = Path(path)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name}-")
    except OSError as error:
        raise build(
            ArgumentError, "path", "a place where a file can be written", repr(str(path)),
            error.strerror,
        ) from None  # fmt: skip
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(parts(packed))
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, final)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return final


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def parts(packed: Packed) -> Iterator[str]:
    """Yield the page from its first character to its last, equal for equal contents."""
    code = script()
    yield head(packed.meta["title"], style(), code)
    yield f"<body>\n{source('body.html').strip()}\n"
    yield f'<script type="application/json" id="intently-page">{described(packed.meta)}</script>\n'
    yield f"<script>{code}</script>\n"
    later = [n for n in range(len(packed.blocks)) if n not in packed.first]
    for n in (*sorted(packed.first), *later):
        yield f'<script type="text/plain" data-block="{n}">{text(packed.blocks[n])}</script>\n'
    yield "</body>\n</html>\n"


def style() -> str:
    """Return the one style sheet: the shell, its views, what width and paper change."""
    return "".join(map(source, ("style.css", "text.css", "views.css", "narrow.css", "print.css")))


def script() -> str:
    """Return the one script: strict, and with no name outside of it."""
    return f'\n(() => {{\n"use strict";\n\n{joined(SCRIPT)}\n}})();\n'


def head(title: str, css: str, code: str, connect: str = "'none'") -> str:
    """Return the page up to its body; ``connect`` says where it may fetch from."""
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {digest(code)}",
            f"style-src {digest(css)}",
            "img-src data: blob:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(visible(title, 200))}</title>\n<style>{css}</style>\n</head>\n"
    )


def digest(inline: str) -> str:
    """Return the hash by which a policy allows an inline script or style sheet."""
    found = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode("ascii")
    return f"'sha256-{found}'"


def described(meta: dict[str, Any]) -> str:
    """Return JSON that nothing in it can end: no ``<`` and nothing outside of ASCII stands in it.

    >>> described({"token": "</script>"})
    '{"token":"\\\\u003c/script>"}'
    """
    plain = json.dumps(meta, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c")
