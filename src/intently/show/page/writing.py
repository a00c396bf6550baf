"""The page as one file: policy, style, body, description, script, and blocks at the very end.

The policy allows the one script and the one style sheet by their hashes and pictures inside the
file, and nothing else: the page opens no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intently.errors import MissingLibraryError, build
from intently.foundation import files
from intently.show.labels import visible
from intently.show.page.contents import Highlight, Packed, packed
from intently.show.page.items import Shown, Side, items_of
from intently.show.page.script import joined, source, strict
from intently.show.page.stored import Precision

if TYPE_CHECKING:
    from anywidget import AnyWidget


def destination(path: str | os.PathLike[str]) -> Path:
    """Return the path of a page; call it first, before any work.

    Raises as `files.destination` does for file names that a double click would not open.
    """
    return files.destination(path, "path", (".html", ".htm"), "out")


def write(packed: Packed, path: str | os.PathLike[str]) -> Path:
    """Write the page atomically, and make its folders.

    Raises `WriteError` if the file cannot be written.
    """
    final = Path(path)
    files.make_folder(final.parent)
    with files.replacing(final) as file:
        file.write(whole(packed))
    return final


def whole(packed: Packed, connect: str = "'none'") -> bytes:
    """Return the page; equal contents give equal bytes.

    ``connect`` says where the page may fetch from.
    """
    code = strict(joined(["start"]))
    later = [n for n in range(len(packed.blocks)) if n not in packed.first]
    parts = (
        head(packed.meta["title"], style(), code, connect),
        f"<body>\n{source('body.html').strip()}\n",
        f'<script type="application/json" id="intently-page">{described(packed.meta)}</script>\n',
        f"<script>{code}</script>\n",
        *scripts(packed.blocks, (*sorted(packed.first), *later)),
        "</body>\n</html>\n",
    )
    return "".join(parts).encode()


def scripts(blocks: Sequence[bytes], order: Iterable[int]) -> list[str]:
    """Return blocks in an order, each as base64 in an element that runs nothing."""
    begin, end = '<script type="text/plain" data-block="', "</script>\n"
    return [f'{begin}{n}">{base64.b64encode(blocks[n]).decode()}{end}' for n in order]


def style(*more: str) -> str:
    """Return the one style sheet: the shell, its views, narrow screens, print, and ``more``."""
    parts = ("style", "text", "pictures", "views", "narrow", "print", *more)
    return "".join([source(f"{part}.css") for part in parts])


def head(title: str, css: str, code: str, connect: str = "'none'", workers: str = "") -> str:
    """Return the page up to its body.

    ``connect`` says where it may fetch from, ``workers`` where workers come from, if it has any.
    """
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {digest(code)}",
            f"style-src {digest(css)}",
            "img-src data: blob:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
            *([f"worker-src {workers}"] if workers else []),
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
    """Return JSON that cannot close its script element: no ``<`` and only ASCII.

    >>> described({"token": "</script>"})
    '{"token":"\\\\u003c/script>"}'
    """
    plain = json.dumps(meta, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c")


def widget(
    source: Shown,
    precision: Precision = "half",
    *,
    title: str | None = None,
    sides: Sequence[Side] = (),
    highlights: Iterable[Highlight] = (),
    start: Mapping[str, Any] | None = None,
) -> AnyWidget:
    """Return the page of a recording, of matrices by name, or of one matrix, as a notebook widget.

    Arguments and errors are those of `save_page`. ``widget.address`` is the state of the page as
    an address fragment, ``"#view=text&row=7"`` say; setting it changes the view. Raises
    `MissingLibraryError` if anywidget is not installed.

    >>> import torch, intently as it
    >>> q, k = torch.randn(2, 4, 6, 8)
    >>> shown = widget({"layer.0": it.attend(q, k).label("abcdef", "abcdef")}, title="six letters")
    >>> shown.address = "#view=head&row=2"
    """
    kind = widget_class()
    from intently.show.page.packing import text
    from intently.show.page.script import source as shipped
    from intently.show.page.writing import described, style

    made = packed(
        items_of(source, sides=sides), precision, title=title, highlights=highlights, start=start
    )

    def answer(page: AnyWidget, asked: object, buffers: object) -> None:
        block = asked.get("block") if isinstance(asked, dict) else None
        if type(block) is int and 0 <= block < len(made.blocks):
            page.send({"block": block, "text": text(made.blocks[block])})

    shown = kind(meta=described(made.meta), body=shipped("body.html"), style=style())
    shown.on_msg(answer)
    return shown


@cache
def widget_class() -> type[AnyWidget]:
    """Return the widget's class; raise `MissingLibraryError` without anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise build(
            MissingLibraryError,
            "widget",
            "anywidget, which shows pages in notebooks",
            "an environment without it",
            fix="run pip install 'intently[notebook]', or use show.save_page",
        ) from None
    from intently.show.page.script import joined

    class Page(anywidget.AnyWidget):
        _esm = joined(["widget"]) + "\nexport default { render: renderWidget };\n"
        meta = traitlets.Unicode().tag(sync=True)
        body = traitlets.Unicode().tag(sync=True)
        style = traitlets.Unicode().tag(sync=True)
        address = traitlets.Unicode().tag(sync=True)

    return Page
