"""One writer of each folder: a command locks the folder it writes; readers never wait.

Two files in the folder::

    .intently.lock   locked by the system while a command writes, released when its process ends
    .intently.json   the command that took the lock last, and which files here are Intently's
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from intently.errors import ArgumentError, IntentlyError, build, one_line
from intently.foundation.files import File, replace_file, sealed
from intently.tasks.training.processes import Processes, joined

LOCK, ABOUT = ".intently.lock", ".intently.json"

UNLOCKABLE = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems that cannot lock, such as some network file systems."""


class InUseError(IntentlyError, RuntimeError):
    """Another command writes to the folder."""


class LostFolderError(IntentlyError, RuntimeError):
    """The folder that a command writes was deleted, moved or replaced meanwhile."""

    status = 1


_held: dict[Path, tuple[int, int] | None] = {}
"""The locks of this process: device and inode, by folder."""


def check_held(out: Path | str) -> None:
    """Raise `LostFolderError` if the held folder ``out`` was deleted, moved or replaced."""
    folder = Path(os.path.realpath(out))
    there = _identity(folder)
    if there != _held.get(folder):
        got = "another folder of that name" if there else "no such folder"
        expected, cause = f"the folder {out} that is written", "it was deleted or moved meanwhile"
        raise build(LostFolderError, "out", expected, got, cause, "nothing more is written")


def _identity(folder: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        lock = (folder / LOCK).stat()
        return lock.st_dev, lock.st_ino
    return None


@contextmanager
def sole_writer(out: Path | str, writes: Collection[str]) -> Iterator[Processes]:
    """Hold the folder ``out`` as its only writer, and yield this of the `joined` processes.

    The folder is made if needed. ``writes`` names the files that the command writes there, and its
    folders with a trailing ``/``. Existing files of these names must be Intently's: the user's
    files are never overwritten. A nested call for the same folder already holds it. Of several
    processes, the first holds the folder for all. A folder to which nothing was written is left
    unchanged.

    Raises `InUseError` if another command or thread holds the folder, `ArgumentError` if the folder
    cannot be written to. Warns if the file system cannot lock. `check_held` raises where the folder
    is another one meanwhile.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, sole_writer(folder, ["result.json"]):
    ...     (Path(folder) / LOCK).exists()
    True
    """
    if str(out) == "":
        fix = 'write "." for the one you are in'
        raise build(ArgumentError, "out", "the name of a folder", "''", fix=fix)
    with joined(Path(out)) as here, ExitStack() as stack:
        here.from_first(lambda: _hold(Path(out), writes, stack))
        yield here


def _hold(out: Path, writes: Collection[str], stack: ExitStack) -> None:
    """Make, lock and claim a folder; the ``stack`` releases it, and removes it if it is empty."""
    _check_place(out, writes)
    folder = Path(os.path.realpath(out))
    lock = FileLock(folder / LOCK, is_singleton=True)  # which its thread may take again
    try:
        for path in (*reversed(folder.parents), folder):
            if not path.is_dir():
                path.mkdir()
                stack.callback(_remove_empty, path)
        lock.acquire(timeout=0)
    except Timeout:
        holder = "another command"
        with suppress(ArgumentError):
            holder = _about(folder).get("holder", holder)
        expected = "a folder to which no other command writes"
        fix = "wait for its end, or choose another folder"
        got = f"{out}, held by {holder}"
        raise one_line(build(InUseError, "out", expected, got, fix=fix)) from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in UNLOCKABLE:
            got = f"{out} ({error.strerror or error})"
            expected, fix = "a folder that can be written to", "choose another folder"
            raise build(ArgumentError, "out", expected, got, fix=fix) from None
        warnings.warn(
            f"the file system of {out} cannot lock it ({error}): make sure that no other command "
            "writes to it",
            stacklevel=2,
        )
    stack.callback(lock.release)
    if folder not in _held:
        _held[folder] = _identity(folder)
        stack.callback(_forget_unwritten, folder)
    _claim(folder, out, writes)


def _check_place(out: Path, writes: Collection[str]) -> None:
    """Raise if a file has the name of a required folder, or a folder the name of a file."""
    folders = (out / name for name in writes if name.endswith("/"))
    for path in (*reversed(out.parents), out, *folders):
        if path.is_file():
            expected, got = "a folder, new or of a run", f"the file {path}"
            raise build(ArgumentError, "out", expected, got, fix="choose another folder")
    for path in (out / name for name in (LOCK, *writes) if not name.endswith("/")):
        if path.exists() and not path.is_file():
            expected, got = f"a folder in which {path.name} can be a file", f"{path}, which is none"
            raise build(ArgumentError, "out", expected, got, fix="choose another folder")


def _claim(folder: Path, out: Path, writes: Collection[str]) -> None:
    """Record this command and its files, after checking that no file belongs to the user."""
    unfit, ours = None, set[str]()
    try:
        ours.update(_about(folder).get("writes", ()))
    except ArgumentError as error:
        unfit = error
    strange = [name for name in writes if name not in ours and (folder / name).exists()]
    if strange:
        expected = f"a folder without {strange[0]}, or one that Intently wrote"
        cause, fix = "it would be overwritten", "choose another folder"
        raise unfit or build(ArgumentError, "out", expected, f"{out} with {strange[0]}", cause, fix)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    holder = f"process {os.getpid()} on {socket.gethostname()} since {since}: {command}"
    replace_file(folder / ABOUT, sealed({"holder": holder, "writes": sorted({*ours, *writes})}))


def _about(folder: Path) -> dict[str, Any]:
    """Return the content of `ABOUT`, {} where there is none; raises `ArgumentError`."""
    fix = "delete it where all of these are Intently's, or choose another folder"
    file = File(folder / ABOUT, "Intently's record of the files beside it", ArgumentError, fix)
    return file.sealed({"writes": [str], "holder": str}) if file.exists() else {}


def _forget_unwritten(folder: Path) -> None:
    """Remove the two files where nothing was written beside them."""
    ours = _held.pop(folder) == _identity(folder)
    with suppress(OSError, ArgumentError):
        if ours and not any((folder / name).exists() for name in _about(folder).get("writes", ())):
            (folder / ABOUT).unlink(missing_ok=True)
            (folder / LOCK).unlink()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
