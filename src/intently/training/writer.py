"""One writer at a time: a command locks the folder it writes; readers never wait.

Two files in the folder::

    .intently.lock   locked by the system while a command writes, released when its process ends
    .intently.json   which command holds the lock, and which files here are Intently's
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock, Timeout

from intently.errors import ArgumentError, IntentlyError, build, one_line
from intently.foundation.files import File, replace_file, sealed
from intently.training.processes import joined

LOCK, ABOUT = ".intently.lock", ".intently.json"

UNLOCKABLE = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems that cannot lock, such as some network file systems."""

READ = 2**16
"""Largest size of `ABOUT`, in bytes."""

SHAPE = {"writes": [str], "process?": int, "host?": str, "command?": str, "since?": str}
"""The shape of `ABOUT`; see `intently.foundation.files.fault`."""

RUNS = ("checkpoints/step-*/manifest.json", "*/checkpoints/step-*/manifest.json")
"""Files of runs, and of folders of runs, that are older than `ABOUT`."""


class InUseError(IntentlyError, RuntimeError):
    """Another command writes to the folder."""


class LostFolderError(IntentlyError, RuntimeError):
    """The folder that a command writes was deleted, moved or replaced meanwhile."""

    status = 1


class Writer:
    """The holder of a folder: claims files in it, and checks that it is still the same folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = Path(os.path.realpath(out))  # absolute: the working directory may change
        self._locked: tuple[int, int] | None = None
        self._claimed: set[str] = set()

    def check(self) -> None:
        """Raise `LostFolderError` if the folder is gone or was replaced."""
        found = self._identity()
        if found is None or found != self._locked:
            lost = "no such folder" if not self.folder.is_dir() else f"a folder without its {LOCK}"
            raise build(
                LostFolderError,
                "out",
                f"the folder {self.out} that this command writes",
                lost if found is None else "another folder of that name",
                "it was deleted or moved meanwhile",
                "nothing more is written",
            )

    def claim(self, writes: Collection[str]) -> None:
        """Record this command and its files, after checking that no file belongs to the user."""
        if self._claimed.issuperset(writes):
            return
        about, unfit = self._about()
        own = set(about.get("writes", ()))
        strange = [n for n in writes if n not in own and (self.folder / n).exists()]
        old = not about and any(next(self.folder.glob(run), None) for run in RUNS)
        if strange and unfit is not None:
            raise unfit
        if strange and not old:
            raise build(
                ArgumentError,
                "out",
                f"a folder without {strange[0]}, or one that Intently wrote",
                f"{self.out} with {strange[0]}",
                "it would be overwritten",
                "choose another folder",
            )
        self._claimed.update(own, writes)
        self._tell(
            process=os.getpid(),
            host=socket.gethostname(),
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            since=datetime.now().astimezone().isoformat(" ", "seconds"),
        )

    @contextlib.contextmanager
    def held(self, writes: Collection[str]) -> Iterator[None]:
        """Make and lock the folder, and claim the files to be written."""
        _check_place(self.out, writes)
        with contextlib.ExitStack() as stack:
            self._make(stack)
            new = not (self.folder / ABOUT).exists()
            there = [name for name in writes if (self.folder / name).exists()]
            self._lock(stack)
            self._locked = self._identity()
            try:
                self.claim(writes)
                yield
            finally:
                now = [name for name in writes if (self.folder / name).exists()]
                with contextlib.suppress(OSError):
                    self._leave(nothing=new and now == there)

    def _leave(self, nothing: bool) -> None:
        """Remove the record of this command; remove both files if it wrote nothing."""
        if self._identity() != self._locked:
            return
        if nothing:
            (self.folder / ABOUT).unlink(missing_ok=True)
            (self.folder / LOCK).unlink()
        elif self._claimed:
            self._tell()

    def _tell(self, **holder: object) -> None:
        replace_file(self.folder / ABOUT, sealed({**holder, "writes": sorted(self._claimed)}))

    def _identity(self) -> tuple[int, int] | None:
        """Return device and inode of the lock, None where it is gone."""
        try:
            found = (self.folder / LOCK).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _make(self, stack: contextlib.ExitStack) -> None:
        """Make the folder and its parents; at the end, remove the folders that are still empty."""
        for path in (*reversed(self.folder.parents), self.folder):
            try:
                path.mkdir()
            except OSError as error:
                if not path.is_dir():
                    raise self._unwritable(error) from None
            else:
                stack.callback(_remove_empty, path)

    def _lock(self, stack: contextlib.ExitStack) -> None:
        path = self.folder / LOCK
        if path.exists() and not path.is_file():
            expected, fix = f"a folder whose {LOCK} is a file", "choose another folder"
            raise build(
                ArgumentError, "out", expected, f"{self.out} with another kind of it", fix=fix
            )
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise self._in_use() from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNLOCKABLE:
                raise self._unwritable(error) from None
            warnings.warn(
                f"the file system of {self.out} cannot lock it ({error}): make sure that no other "
                "command writes to it",
                stacklevel=2,
            )
        stack.callback(lock.release)

    def _about(self) -> tuple[dict[str, Any], IntentlyError | None]:
        """Return the content of `ABOUT`, or {} and an error that says why it is not trusted."""
        expected = "Intently's record of the files beside it"
        fix = "delete it where all of these are Intently's, or choose another folder"
        file = File(self.folder / ABOUT, expected, ArgumentError, fix)
        try:
            return file.sealed(SHAPE, file.read(READ), old=True) if file.exists() else {}, None
        except ArgumentError as error:
            return {}, error

    def _in_use(self) -> InUseError:
        about, _ = self._about()
        process, host, since, command = (
            about.get(name, "?") for name in ("process", "host", "since", "command")
        )
        held = f"held by process {process} on {host} since {since}: {command}"
        return one_line(
            build(
                InUseError,
                "out",
                "a folder to which no other command writes",
                f"{self.out}, {held}",
                fix="wait for its end, or choose another folder",
            )
        )

    def _unwritable(self, error: OSError) -> ArgumentError:
        return build(
            ArgumentError,
            "out",
            "a folder that can be written to",
            f"{self.out} ({error.strerror or error})",
            fix="choose another folder",
        )


_HELD: ContextVar[Mapping[Path, Writer | None]] = ContextVar("held", default=MappingProxyType({}))


@contextlib.contextmanager
def sole_writer(out: Path | str, writes: Collection[str]) -> Iterator[Writer | None]:
    """Hold the folder ``out`` as its only writer; make it if needed.

    ``writes`` names the files that the command writes there, and its folders with a trailing ``/``.
    Existing files of these names must be Intently's: the user's files are never overwritten. A
    nested call for the same folder already holds it. Of several processes, the first holds the
    folder and gets the `Writer`, all others get None. A folder to which nothing was written is left
    unchanged.

    Raises `InUseError` if another command or thread holds the folder, `ArgumentError` if the folder
    cannot be written to. Warns if the file system cannot lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, sole_writer(folder, ["result.json"]) as one:
    ...     with sole_writer(folder, ["result.json"]) as other:
    ...         one is other
    True
    """
    if str(out) == "":
        fix = 'write "." for the one you are in'
        raise build(ArgumentError, "out", "the name of a folder", "''", fix=fix)
    with joined(Path(out)) as here, contextlib.ExitStack() as stack:
        held, key = _HELD.get(), Path(os.path.realpath(out))
        writer = held.get(key) or Writer(Path(out))

        def hold() -> None:
            if key in held:
                writer.claim(writes)
            else:
                stack.enter_context(writer.held(writes))

        here.from_first(hold)
        found = writer if here.first else None
        token = _HELD.set({**held, key: found})
        try:
            yield found
        finally:
            _HELD.reset(token)


def _check_place(folder: Path, writes: Collection[str]) -> None:
    """Raise if a file has the name of a required folder, or a folder the name of a file."""
    folders = [folder / name for name in writes if name.endswith("/")]
    for path in (*reversed(folder.parents), folder, *folders):
        if path.is_file():
            raise build(
                ArgumentError,
                "out",
                "a folder, new or of a run",
                f"the file {path}",
                fix="choose another folder",
            )
    for path in (folder / name for name in writes if not name.endswith("/")):
        if path.is_dir():
            raise build(
                ArgumentError,
                "out",
                f"a folder in which {path.name} can be a file",
                f"the folder {path}",
                fix="choose another folder",
            )


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
