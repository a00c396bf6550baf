"""Writing files in one piece, and saying what to do where that fails."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from intently.errors import WriteError, build, one_line

_ADVICE = {
    errno.ENOSPC: "free some room on that disk, or write elsewhere",
    errno.EDQUOT: "free some of your quota on that disk, or write elsewhere",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or write elsewhere",
}


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a new file that takes the place of ``path`` once it is complete and on the disk.

    Whatever happens before that (an error, a full disk, a kill), what was at ``path`` is as it
    was. Raises `WriteError` that names the path and says what to do.
    """
    draft = path.with_name(f".writing-{path.name[:40]}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one piece: a reader, or a crash, sees the old content or the new."""
    with replacing(path) as file:
        file.write(content)


def replace_files(folder: Path, contents: Mapping[str, bytes], last: str) -> None:
    """Put files into a folder, the one that describes them ``last``.

    All are written under other names first, so that a full disk costs nothing. A kill leaves the
    old files, the new ones, or a folder without ``last``: never a mixture with it.
    """
    names = [*(name for name in contents if name != last), last]
    drafts = {folder / name: folder / f".writing-{name}" for name in names}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for final, draft in drafts.items():
            replace_file(draft, contents[final.name])
    except BaseException as error:
        for draft in drafts.values():
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, WriteError):
            raise unwritten(folder, error) from error
        raise
    (folder / last).unlink(missing_ok=True)
    for final, draft in drafts.items():
        os.replace(draft, final)
    sync_folder(folder)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file under a name that nobody reads yet, and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and renames are synced anyway
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unwritten(path: Path, error: OSError) -> WriteError:
    """Return the error for a file that could not be written."""
    fix = _ADVICE.get(error.errno or 0, "choose a place where you may write files")
    got = error.strerror or str(error)
    cause = "what was there before is as it was"
    expected = "a place where the file can be written"
    return one_line(build(WriteError, str(path), expected, got, cause, fix))
