"""Where figures go: PNG, SVG or PDF by suffix, with equal bytes for equal figures."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from intently.errors import ArgumentError, build

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METADATA: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def destination(save: str | os.PathLike[str] | None) -> Path | None:
    """Return the path to save to; call it before drawing, so that a wrong name costs nothing.

    Raises ArgumentError for a suffix other than .png, .svg and .pdf, and for a folder.
    """
    if save is None:
        return None
    path = Path(save)
    if path.suffix.lower() not in METADATA:
        raise build(
            ArgumentError,
            "save",
            f"a file name that ends in {', '.join(METADATA)}",
            repr(str(save)),
            fix=f"write save={str(path.with_suffix('.png')) if path.name else 'picture.png'!r}",
        )
    if path.is_dir():
        raise build(
            ArgumentError,
            "save",
            "the name of a file",
            repr(str(save)),
            "a folder of this name exists",
        )
    return path


def finish(figure: Figure, path: Path | None) -> Figure:
    """Settle the figure's layout and write it where a path is given; folders are made.

    The picture is complete before the file is opened: an error never costs an older picture.
    """
    figure.draw_without_rendering()
    if path is not None:
        suffix = path.suffix.lower()
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=METADATA[suffix])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    return figure
