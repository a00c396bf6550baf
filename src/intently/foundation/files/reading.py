"""`File`: a file that is verified on reading, and refused in one line."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from intently.errors import CheckpointError, IntentlyError, build, one_line
from intently.foundation.files.plain_data import SEAL, UnfitError, digest, fault, parsed, plain
from intently.foundation.files.tensors import HEADER, Header, read_header

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 2**24
"""Largest size of a JSON, TOML or text file, in bytes, unless the caller allows more."""


@dataclass(frozen=True)
class File:
    """A file to be read, with the words of its errors.

    ``expected`` describes the file, ``error`` is the class raised for any other file, and ``fix``
    says what to do if the file is damaged.

    >>> File(Path("nowhere.json"), "the options of a run").json()
    Traceback (most recent call last):
    ...
    intently.errors.CheckpointError: nowhere.json: expected the options of a run; got no such file.
    """

    path: Path
    expected: str
    error: type[IntentlyError] = CheckpointError
    fix: str | None = None

    def refusal(self, got: str, cause: str | None = None, fix: str | None = None) -> IntentlyError:
        """Return the error, one printable line, for what was found instead."""
        where = str(self.path)
        return one_line(build(self.error, where, self.expected, got, cause, fix or self.fix))

    def damaged(self, got: str) -> IntentlyError:
        """Return the error for content that has changed since it was written."""
        return self.refusal(got, "it is damaged or was changed")

    def unreadable(self, error: OSError) -> IntentlyError:
        """Return the error for a file that cannot be read."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return self.refusal("no such file")
        why = error.strerror or str(error)
        if isinstance(error, PermissionError):
            fix = "it need not be damaged: give yourself the right to read it, and try again"
        else:
            fix = "it need not be damaged: look after the disk, keep the file, and try again"
        return self.refusal(f"a file that cannot be read ({why})", fix=fix)

    def exists(self) -> bool:
        """Whether the path exists; raises if the system does not tell."""
        return self._status() is not None

    def is_folder(self) -> bool:
        """Whether the path is a folder; raises if the system does not tell."""
        found = self._status()
        return found is not None and stat.S_ISDIR(found.st_mode)

    def _status(self) -> os.stat_result | None:
        try:
            return os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # no file can have such a name
            return None
        except OSError as error:
            raise self.unreadable(error) from error

    def names(self) -> list[str]:
        """Return the sorted entries of a folder, none if it does not exist."""
        try:
            return sorted(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self.unreadable(error) from error

    def open(self) -> BinaryIO:
        """Open an ordinary file; a pipe, a device or a folder is refused and never waited for."""
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            folder = os.path.isdir(self.path)
            descriptor = -1 if folder else os.open(self.path, flags)
        except OSError as error:
            raise self.unreadable(error) from error
        except ValueError:
            raise self.refusal("a name that no file can have") from None
        if folder:
            raise self.refusal("a folder")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self.refusal("no ordinary file")
        return os.fdopen(descriptor, "rb")

    def read(self, most: int | None = LONGEST, exactly: int | None = None) -> bytes:
        """Return the content: at most ``most`` bytes, or ``exactly`` this many."""
        try:
            with self.open() as handle:
                size = os.fstat(handle.fileno()).st_size
                if exactly is not None and size != exactly:
                    raise self.damaged(f"{size} bytes instead of {exactly}")
                if most is not None and size > most:
                    raise self.refusal(f"{size:,} bytes where at most {most:,} belong")
                return handle.read(max(1, size))  # size 0 may be wrong
        except OSError as error:
            raise self.unreadable(error) from error

    def text(self) -> str:
        """Return the content as UTF-8."""
        content = self.read()
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"no UTF-8 at byte {error.start}") from None

    def toml(self) -> dict[str, Any]:
        """Return the content of a TOML file."""
        import tomllib

        text = self.text()
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.refusal(f"no TOML ({error})") from None

    def json(self, shape: Any = object, content: bytes | None = None) -> Any:
        """Return the value in a JSON file, or in ``content``; `fault` explains shapes."""
        try:
            found = parsed(self.read() if content is None else content)
        except UnfitError as error:
            raise self.damaged(str(error)) from None
        self.check(found, shape)
        return found

    def sealed(self, shape: Any = object, content: bytes | None = None) -> dict[str, Any]:
        """Return a JSON object that holds its own checksum, without the checksum."""
        found = self.json({str: object}, content)
        if found.pop(SEAL, None) != digest(plain(found)):
            raise self.damaged("another checksum than it was written with")
        self.check(found, shape)
        return found

    def check(self, value: Any, shape: Any) -> None:
        """Raise unless plain data have a shape, see `fault`."""
        why = fault(value, shape)
        if why:
            raise self.damaged(why)

    def header(self, content: bytes | None = None, most: int = HEADER) -> Header:
        """Return the header of a safetensors file, or of ``content``."""
        try:
            with self.open() if content is None else io.BytesIO(content) as handle:
                return read_header(handle, most)
        except OSError as error:
            raise self.unreadable(error) from error
        except UnfitError as error:
            raise self.damaged(str(error)) from None

    def tensors(self, content: bytes) -> dict[str, Tensor]:
        """Return the tensors in the content of a safetensors file."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        self.header(content)
        try:
            return load(content)
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise self.damaged(f"what the safetensors library refuses ({error})") from None
