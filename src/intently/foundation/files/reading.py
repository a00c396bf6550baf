"""`File`: a file that is verified on reading, and refused in one line; headers of safetensors."""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from intently.errors import CheckpointError, IntentlyError, build, one_line
from intently.foundation.files.plain_data import SEAL, UnfitError, digest, fault, parsed, plain

if TYPE_CHECKING:
    from torch import Tensor

HEADER = 10**8
"""Largest header, in bytes, as in the safetensors library."""

CHECKS = "checksums"
"""The metadata key under which a sealed header holds the SHA-256 of each tensor."""

HOLLOW = 2**28
"""Largest product of the other axes of a tensor with an axis of size 0."""

AXES = 64
"""Most axes of a tensor, as in PyTorch."""

DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
"""The dtypes that Intently stores: their names in PyTorch, and bytes per number."""


class Stored(NamedTuple):
    """The entry of a tensor in a safetensors header; ``begin`` and ``end`` are after it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """A verified safetensors header: metadata, and the tensors by name."""

    metadata: dict[str, str]
    tensors: dict[str, Stored]

    def plain(self) -> dict[str, Any]:
        """Return the header as the JSON that safetensors stores."""
        places = {
            name: {"dtype": x.dtype, "shape": list(x.shape), "data_offsets": [x.begin, x.end]}
            for name, x in self.tensors.items()
        }
        return {"__metadata__": self.metadata, **places}

    def blank(self) -> dict[str, Tensor]:
        """Return tensors of these shapes and dtypes on the meta device."""
        import torch

        return {
            name: torch.empty(x.shape, dtype=getattr(torch, DTYPES[x.dtype][0]), device="meta")
            for name, x in self.tensors.items()
        }


def sealed_header(header: Header, checks: Mapping[str, str]) -> Header:
    """Return the header with the checksums of its tensors and its own in the metadata."""
    told = {**header.metadata, CHECKS: json.dumps(dict(checks), separators=(",", ":"))}
    return Header({**told, SEAL: _digest(told, header)}, header.tensors)


def checksums(header: Header) -> dict[str, str]:
    """Return the checksums of the tensors in a sealed header.

    Raises UnfitError where its own checksum is wrong, or tensors have none.
    """
    told = {name: text for name, text in header.metadata.items() if name != SEAL}
    if header.metadata.get(SEAL) != _digest(told, header):
        raise UnfitError("a header with another checksum than it was written with")
    checks = parsed(told.get(CHECKS, "").encode())
    why = fault(checks, {name: str for name in header.tensors})
    if why:
        raise UnfitError(f"other checksums than of its tensors: {why}")
    return checks


def _digest(metadata: dict[str, str], header: Header) -> str:
    return digest(plain(Header(metadata, header.tensors).plain()))


_TENSOR = {"dtype": str, "shape": [range(2**63)], "data_offsets": [range(2**63), range(2**63)]}


def read_header(handle: BinaryIO, most: int = HEADER) -> Header:
    """Return the header of a safetensors file, and read nothing else.

    Raises UnfitError with the reason where lengths, shapes, dtypes and offsets do not agree with
    each other and with the length of the file, or the header has more than ``most`` bytes.
    """
    size = handle.seek(0, os.SEEK_END)
    handle.seek(0)
    if size < 8:
        raise UnfitError("too few bytes for a header: it is empty or was cut")
    length = int.from_bytes(handle.read(8), "little")
    if length > most:
        raise UnfitError("no header, or one longer than any: it is another kind of file")
    if 8 + length > size:
        raise UnfitError("an end within the header: it was cut")
    try:
        found = parsed(handle.read(length))
    except UnfitError as error:
        raise UnfitError(f"a header that does not describe tensors: {error}") from None
    why = fault(found, {"__metadata__?": {str: str}, str: _TENSOR})
    if why:
        raise UnfitError(f"a header that does not describe tensors: {why}")
    metadata = found.pop("__metadata__", {})
    tensors = {name: _stored(name, about) for name, about in found.items()}
    at = 0
    for x in sorted(tensors.values(), key=lambda x: (x.begin, x.end)):
        if x.begin != at:
            raise UnfitError("tensors that overlap, or with gaps between them")
        at = x.end
    if 8 + length + at != size:
        raise UnfitError("more or fewer bytes than its tensors have: it was cut or extended")
    return Header(metadata, tensors)


def _stored(name: str, about: dict[str, Any]) -> Stored:
    x = Stored(about["dtype"], tuple(about["shape"]), *about["data_offsets"])
    if x.dtype not in DTYPES:
        raise UnfitError(f"a tensor of dtype {x.dtype[:20]}, which Intently does not write")
    most = 2**60 if all(x.shape) else HOLLOW
    if len(x.shape) > AXES or math.prod(n for n in x.shape if n) > most:
        raise UnfitError(f"a tensor of a size that cannot be, {x.shape[:9]}")
    if math.prod(x.shape) * DTYPES[x.dtype][1] != x.end - x.begin:
        raise UnfitError(f"a tensor whose shape, dtype and place do not agree, {name[:80]!r}")
    return x


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
