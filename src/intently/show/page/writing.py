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
from intently.show.page.packing import text
from intently.show.page.script import joined, strict
from intently.show.page.script import source as shipped
from intently.show.page.stored import Precision

if TYPE_CHECKING:
    from anywidget import AnyWidget


def save_page(
    source: Shown,
    path: str | os.PathLike[str],
    precision: Precision = "half",
    *,
    title: str | None = None,
    sides: Sequence[Side] = (),
    highlights: Iterable[Highlight] = (),
    start: Mapping[str, Any] | None = None,
    kinds: Mapping[tuple[str, int], str] | None = None,
) -> Path:
    """Write a page of a recording, of matrices by name, of one matrix, or of items.

    ``precision`` is that of queries and keys: "half" (16 bits) or "full" (32). ``sides`` are texts
    and pictures, assigned to every axis of the same length. ``kinds`` says what heads (layer,
    number) do, as ``names`` of the table of `intently.heads`. The page says how far its weights
    are from the model's.

    Raises `KindError` for other sources, `ArgumentError` if there is nothing to show, for a side
    that fits no axis, and for a path that does not end in .html, `MemoryRefused` for pages that
    would be too large.

    >>> import tempfile, torch, intently as it
    >>> q, k = torch.randn(2, 4, 6, 8)
    >>> A = it.attend(q, k, mask=it.causal()).label("abcdef", "abcdef")
    >>> path = save_page({"layer.0": A}, tempfile.mkdtemp() + "/out.html")
    >>> path.read_text().startswith("<!DOCTYPE html>")
    True
    """
    final = destination(path)
    items = items_of(source, sides=sides)
    page = whole(
        packed(items, precision, title=title, highlights=highlights, start=start, kinds=kinds)
    )
    files.make_folder(final.parent)
    files.replace_file(final, page)
    return final


def destination(path: str | os.PathLike[str]) -> Path:
    """Return the path of a page; call it first, before any work.

    Raises as `files.destination` does for file names that a double click would not open.
    """
    return files.destination(path, "path", (".html", ".htm"), "out")


def whole(page: Packed, connect: str = "'none'") -> bytes:
    """Return the page; equal contents give equal bytes.

    ``connect`` says where the page may fetch from.
    """
    code = strict(joined(["start"]))
    later = [n for n in range(len(page.blocks)) if n not in page.first]
    parts = (
        head(page.meta["title"], style(), code, connect),
        f"<body>\n{shipped('body.html').strip()}\n",
        f'<script type="application/json" id="intently-page">{described(page.meta)}</script>\n',
        f"<script>{code}</script>\n",
        *scripts(page.blocks, (*sorted(page.first), *later)),
        "</body>\n</html>\n",
    )
    return "".join(parts).encode()


def scripts(blocks: Sequence[bytes], order: Iterable[int]) -> list[str]:
    """Return blocks in an order, each as base64 in an element that runs nothing."""
    begin, end = '<script type="text/plain" data-block="', "</script>\n"
    return [f'{begin}{n}">{text(blocks[n])}{end}' for n in order]


def style(*more: str) -> str:
    """Return the one style sheet: the shell, its views, narrow screens, print, and ``more``."""
    parts = ("colours", "style", "text", "views", "narrow", *more)
    return "".join([shipped(f"{part}.css") for part in parts])


def head(title: str, css: str, code: str, connect: str = "'none'", workers: str = "") -> str:
    """Return the page up to its body.

    ``connect`` says where it may fetch from, ``workers`` where workers come from, if it has any.
    """
    policy = (
        f"default-src 'none'; script-src {digest(code)}; style-src {digest(css)}; "
        f"img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
        + (f"; worker-src {workers}" if workers else "")
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
    hashed = hashlib.sha256(inline.encode()).digest()
    return f"'sha256-{base64.b64encode(hashed).decode('ascii')}'"


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
    items = items_of(source, sides=sides)
    meta, blocks, _ = packed(items, precision, title=title, highlights=highlights, start=start)

    def answer(asking: AnyWidget, asked: object, buffers: object) -> None:
        block = asked.get("block") if isinstance(asked, dict) else None
        if type(block) is int and 0 <= block < len(blocks):
            asking.send({"block": block, "text": text(blocks[block])})

    page = kind(meta=described(meta), body=shipped("body.html"), style=style())
    page.on_msg(answer)
    return page


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

    class PageWidget(anywidget.AnyWidget):
        _esm = joined(["widget"]) + "\nexport default { render: renderWidget };\n"
        meta = traitlets.Unicode().tag(sync=True)
        body = traitlets.Unicode().tag(sync=True)
        style = traitlets.Unicode().tag(sync=True)
        address = traitlets.Unicode().tag(sync=True)

    return PageWidget
