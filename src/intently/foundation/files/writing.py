"""Atomic writes of files, and advice where they fail."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from intently.errors import ArgumentError, KindError, WriteError, build, one_line

_ADVICE = {
    errno.ENOENT: "make that folder first, or write elsewhere",
    errno.ENOSPC: "free some room on that disk, or write elsewhere",
    errno.EDQUOT: "free some of your quota on that disk, or write elsewhere",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or write elsewhere",
}


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` once it is complete and on the disk.

    Until then an error, a full disk or a kill leaves ``path`` as it was. Links are followed, and a
    file keeps its mode; devices, pipes and the file that standard output or standard error goes to
    get the content once it is complete. Drafts of the same file that a kill left are removed.
    Raises `WriteError` that names the path and says what to do.
    """
    try:
        if _is_special(path):
            with TemporaryFile() as file:
                yield file
                file.seek(0)
                with open(_opened(path), "wb") as out:
                    shutil.copyfileobj(file, out)
            return
        final = Path(os.path.realpath(path))
        file, draft = _begun(final)
        try:
            with file:
                with suppress(FileNotFoundError):
                    os.chmod(draft, stat.S_IMODE(final.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
                if fcntl is None:  # an open file cannot be renamed
                    file.close()
                os.replace(draft, final)
            sync_folder(final.parent)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise unwritten(path, error) from error


def _is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe, or what standard output or standard error goes to."""
    try:
        return not stat.S_ISREG(path.stat().st_mode) or _stream(path) is not None
    except FileNotFoundError:
        return False


def _stream(path: Path) -> int | None:
    """Return the descriptor of the standard output or error that goes to a path."""
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(stream)):
                return stream
    return None


def _opened(path: Path) -> int:
    """Return a descriptor of a special path; that of a stream goes on where the stream is."""
    stream = _stream(path)
    if stream is None:
        return os.open(path, os.O_WRONLY)
    for printed in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # None, or closed
            printed.flush()
    return os.dup(stream)


def _begun(final: Path) -> tuple[BinaryIO, Path]:
    """Return a new draft of a file, locked as long as it is open, and its path.

    Removes other drafts of the file whose lock is free: those of killed writers.
    """
    start = f".writing-{final.name[:40]}-"
    left = re.compile(re.escape(start) + "[0-9a-f]{8}")
    with suppress(OSError):  # a folder that may be written but not listed
        for name in filter(left.fullmatch, os.listdir(final.parent)):
            _remove_left(final.parent / name)
    mode = stat.S_IMODE(final.stat().st_mode) if final.exists() else 0o666
    while True:
        draft = final.with_name(f"{start}{secrets.token_hex(4)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(draft, flags, mode), "wb")
        with suppress(OSError):  # a file system without locks
            _lock(file, wait=True)
        if draft.exists():  # nobody removed it before it was locked
            return file, draft
        file.close()


def _remove_left(draft: Path) -> None:
    """Remove a draft if it is an ordinary file whose lock is free."""
    with suppress(OSError):
        if stat.S_ISREG(draft.lstat().st_mode):
            with draft.open("rb") as file:
                _lock(file, wait=False)
                draft.unlink()


def _lock(file: BinaryIO, wait: bool) -> None:
    """Lock an open file; where the system cannot, an open file cannot be removed either."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new, even after a crash."""
    with replacing(path) as file:
        file.write(content)


def replace_files(folder: Path, contents: Mapping[str, bytes], last: str) -> None:
    """Write files into a folder; ``last`` is the file that describes the rest. All are written
    under temporary names first, so a full disk changes nothing. A kill leaves the old files, the
    new ones, or a folder without ``last``, but never a mixture.
    """
    names = [*(name for name in contents if name != last), last]
    drafts = {folder / name: folder / f".writing-{name}" for name in names}
    make_folder(folder)
    try:
        for final, draft in drafts.items():
            replace_file(draft, contents[final.name])
    except BaseException:
        for draft in drafts.values():
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        raise
    (folder / last).unlink(missing_ok=True)
    for final, draft in drafts.items():
        os.replace(draft, final)
    sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents; raises WriteError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(folder, error) from error


def destination(
    path: str | os.PathLike[str], argument: str, suffixes: Iterable[str], example: str
) -> Path:
    """Return the path of a file to write; call it first, to refuse a wrong path early.

    Raises ArgumentError, naming the ``argument``, for other ``suffixes``, a folder, and a place
    that cannot be written to; KindError for anything but a path.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes):
        raise build(KindError, argument, "a path", type(path).__name__)
    final, known = Path(path), list(suffixes)
    if final.suffix.lower() not in known:
        endings = " or ".join(filter(None, (", ".join(known[:-1]), known[-1])))
        better = str(final.with_suffix(known[0])) if final.name else example + known[0]
        raise build(
            ArgumentError,
            argument,
            f"a file name that ends in {endings}",
            repr(str(path)),
            fix=f"write {argument}={better!r}",
        )
    if _is_folder(final, argument):
        raise build(
            ArgumentError,
            argument,
            "the name of a file",
            repr(str(path)),
            "a folder of this name exists",
        )
    return final


def _is_folder(path: Path, argument: str) -> bool:
    """Whether the path is a folder; raises where no file could be written there."""
    try:
        with suppress(FileNotFoundError):
            mode = path.stat().st_mode
            if stat.S_ISREG(mode):
                path.open("ab").close()
            return stat.S_ISDIR(mode)
        above = next(folder for folder in path.absolute().parents if folder.exists())
        with TemporaryFile(dir=above):
            return False
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        expected = "a file that can be written"
        raise build(ArgumentError, argument, expected, repr(str(path)), cause) from error


def sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on the disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and renames are synced anyway
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except PermissionError:  # it may be written but not listed
            return
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
