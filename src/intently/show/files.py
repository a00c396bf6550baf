"""Where figures go: PNG, SVG or PDF by suffix, with equal bytes for equal figures."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from intently.foundation import files
from intently.show.style import dress, on_dark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METADATA: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}

SUBSTITUTES = b"'DejaVu Sans', Verdana, sans-serif"
"""Fonts of nearly the same widths, for readers of an SVG who do not have the first."""


def destination(
    save: str | os.PathLike[str] | None, suffixes: Iterable[str] = METADATA, name: str = "picture"
) -> Path | None:
    """Return the path to save to; call it before drawing. Raises what
    `intently.foundation.files.destination` raises.
    """
    return None if save is None else files.destination(save, "save", suffixes, name)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically and make its folders. Raises `WriteError`."""
    files.make_folder(path.parent)
    files.replace_file(path, content)


def finish(figure: Figure, path: Path | None, description: str = "") -> Figure:
    """Finish the figure's colours and layout, and write the figure if a path is given.

    ``description`` is what an SVG says to readers who do not see it, besides its heading.
    The picture is complete before the file is opened: an error never destroys an older picture.
    """
    if on_dark():
        dress(figure)
    if engine := figure.get_layout_engine():
        engine.execute(figure)  # once: with the style that is in force here
        figure.set_layout_engine("none")
    if path is not None:
        suffix = path.suffix.lower()
        buffer = io.BytesIO()
        told: dict[str, str | None] = {**METADATA[suffix], **_title(figure)}
        figure.savefig(buffer, format=suffix[1:], metadata=told)
        content = buffer.getvalue()
        if suffix == ".svg":
            content = content.replace(b"'DejaVu Sans'", SUBSTITUTES)
            content = _described(content, description)
        write(path, content)
    return figure


def _described(svg: bytes, description: str) -> bytes:
    """Add a description behind the title of an SVG."""
    if not description:
        return svg
    said = f"<desc>{escape(description)}</desc>\n ".encode()
    return svg.replace(b"<metadata>", said + b"<metadata>", 1)


def _title(figure: Figure) -> dict[str, str]:
    """Return the topmost text of a figure, its heading, which readers aloud announce."""
    top = max(figure.texts, key=lambda text: text.get_position()[1], default=None)
    heading = top.get_text() if top is not None else ""
    return {"Title": heading.replace("\n", " ")} if heading else {}
