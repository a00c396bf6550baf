"""Where figures go: PNG, SVG or PDF by suffix, with equal bytes for equal figures."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from intently.foundation import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METADATA: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


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


def finish(figure: Figure, path: Path | None) -> Figure:
    """Finish the figure's layout, and write the figure if a path is given.

    The picture is complete before the file is opened: an error never destroys an older picture.
    """
    if path is None:
        figure.draw_without_rendering()
    else:
        suffix = path.suffix.lower()
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=METADATA[suffix])
        write(path, buffer.getvalue())
    return figure
