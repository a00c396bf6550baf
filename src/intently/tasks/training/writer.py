"""One writer at a time: a command locks the folder it writes; readers never wait.

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
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from intently.errors import ArgumentError, IntentlyError, build, one_line
from intently.foundation.files import File, replace_file, sealed
from intently.tasks.training.processes import joined

LOCK, ABOUT = ".intently.lock", ".intently.json"

UNLOCKABLE = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems that cannot lock, such as some network file systems."""

SHAPE = {"writes": [str], "holder": str}
"""The shape of `ABOUT`; see `intently.foundation.files.fault`."""

_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""The folders that this thread holds."""


class InUseError(IntentlyError, RuntimeError):
    """Another command writes to the folder."""


@contextmanager
def sole_writer(out: Path | str, writes: Collection[str]) -> Iterator[None]:
    """Hold the folder ``out`` as its only writer; make it if needed.

    ``writes`` names the files that the command writes there, and its folders with a trailing ``/``.
    Existing files of these names must be Intently's: the user's files are never overwritten. A
    nested call for the same folder already holds it. Of several processes, the first holds the
    folder for all. A folder to which nothing was written is left unchanged.

    Raises `InUseError` if another command or thread holds the folder, `ArgumentError` if the folder
    cannot be written to. Warns if the file system cannot lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, sole_writer(folder, ["result.json"]):
    ...     (Path(folder) / LOCK).exists()
    True
    """
    if str(out) == "":
        fix = 'write "." for the one you are in'
        raise build(ArgumentError, "out", "the name of a folder", "''", fix=fix)
    with joined(Path(out)) as here, ExitStack() as stack:
        held, folder = _HELD.get(), Path(os.path.realpath(out))

        def hold() -> None:
            if folder not in held:
                _check_place(Path(out), writes)
                stack.enter_context(_locked(folder, out))
            _claim(folder, out, writes)

        here.from_first(hold)
        token = _HELD.set(held | {folder})
        try:
            yield
        finally:
            _HELD.reset(token)


@contextmanager
def _locked(folder: Path, out: Path | str) -> Iterator[None]:
    """Make and lock a folder; at the end, remove what was made if nothing was written."""
    lock = FileLock(folder / LOCK)
    with ExitStack() as stack:
        try:
            for path in (*reversed(folder.parents), folder):
                if not path.is_dir():
                    path.mkdir()
                    stack.callback(_remove_empty, path)
            lock.acquire(timeout=0)
        except Timeout:
            raise _in_use(folder, out) from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNLOCKABLE:
                got = f"{out} ({error.strerror or error})"
                expected, fix = "a folder that can be written to", "choose another folder"
                raise build(ArgumentError, "out", expected, got, fix=fix) from None
            warnings.warn(
                f"the file system of {out} cannot lock it ({error}): make sure that no other "
                "command writes to it",
                stacklevel=2,
            )
        stack.callback(lock.release)
        try:
            yield
        finally:
            with suppress(OSError, ArgumentError):
                if not any((folder / name).exists() for name in _about(folder).get("writes", ())):
                    (folder / ABOUT).unlink(missing_ok=True)
                    (folder / LOCK).unlink()


def _claim(folder: Path, out: Path | str, writes: Collection[str]) -> None:
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
    about = {"holder": holder, "writes": sorted({*ours, *writes})}
    replace_file(folder / ABOUT, sealed(about))


def _about(folder: Path) -> dict[str, Any]:
    """Return the content of `ABOUT`, {} where there is none; raises `ArgumentError`."""
    expected = "Intently's record of the files beside it"
    fix = "delete it where all of these are Intently's, or choose another folder"
    file = File(folder / ABOUT, expected, ArgumentError, fix)
    return file.sealed(SHAPE) if file.exists() else {}


def _in_use(folder: Path, out: Path | str) -> InUseError:
    holder = "another command"
    with suppress(ArgumentError):
        holder = _about(folder).get("holder", holder)
    expected = "a folder to which no other command writes"
    fix = "wait for its end, or choose another folder"
    return one_line(build(InUseError, "out", expected, f"{out}, held by {holder}", fix=fix))


def _check_place(folder: Path, writes: Collection[str]) -> None:
    """Raise if a file has the name of a required folder, or a folder the name of a file."""
    folders = [folder / name for name in writes if name.endswith("/")]
    file = next((p for p in (*reversed(folder.parents), folder, *folders) if p.is_file()), None)
    files = [folder / name for name in writes if not name.endswith("/")]
    wrong = next((path for path in files if path.is_dir()), None)
    expected, got = "a folder, new or of a run", f"the file {file}"
    if file is None and wrong is not None:
        expected, got = f"a folder in which {wrong.name} can be a file", f"the folder {wrong}"
    if file is not None or wrong is not None:
        raise build(ArgumentError, "out", expected, got, fix="choose another folder")


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
