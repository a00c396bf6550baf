"""Where figures go: PNG, SVG or PDF by suffix, with equal bytes for equal figures."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from intently.errors import ArgumentError, KindError, build

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
    """Return the path to save to; call it before drawing, so that a wrong path costs nothing.

    Raises ArgumentError for another suffix, a folder, and a place where nothing can be written;
    KindError for what is no path.
    """
    if save is None:
        return None
    if not isinstance(save, str | os.PathLike):
        raise build(KindError, "save", "a path", type(save).__name__)
    path, known = Path(save), list(suffixes)
    if path.suffix.lower() not in known:
        example = str(path.with_suffix(known[0])) if path.name else name + known[0]
        raise build(
            ArgumentError, "save",
            f"a file name that ends in {', '.join(known[:-1])} or {known[-1]}",
            repr(str(save)), fix=f"write save={example!r}",
        )  # fmt: skip
    if _is_folder(path):
        raise build(
            ArgumentError, "save", "the name of a file", repr(str(save)),
            "a folder of this name exists",
        )  # fmt: skip
    return path


def _is_folder(path: Path) -> bool:
    """Say so, having made sure that a file could be written there."""
    try:
        with contextlib.suppress(FileNotFoundError):
            folder = stat.S_ISDIR(path.stat().st_mode)
            if not folder:
                path.open("ab").close()
            return folder
        above = next(folder for folder in path.absolute().parents if folder.exists())
        with TemporaryFile(dir=above):
            return False
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: Exception) -> ArgumentError:
    cause = getattr(error, "strerror", None) or str(error)
    return build(ArgumentError, "save", "a file that can be written", repr(str(path)), cause)


def write(path: Path, content: bytes) -> None:
    """Write a file whose content is complete; folders are made.

    Raises ArgumentError where the system refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise _refused(path, error) from error


def finish(figure: Figure, path: Path | None) -> Figure:
    """Settle the figure's layout and write it where a path is given; folders are made.

    The picture is complete before the file is opened: an error never costs an older picture.
    """
    if path is None:
        figure.draw_without_rendering()
    else:
        suffix = path.suffix.lower()
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], metadata=METADATA[suffix])
        write(path, buffer.getvalue())
    return figure
