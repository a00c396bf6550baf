"""A safetensors file: written tensor after tensor in little memory; mapped, and not trusted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from intently.errors import ArgumentError, DataError, StaleError, build
from intently.foundation.files import (
    DTYPES,
    HEADER,
    File,
    Header,
    Stored,
    UnfitError,
    checksums,
    digest,
    replacing,
    sealed_header,
)
from intently.observe.storage.stores import Kept, pieces

NAMES = {getattr(torch, kind): name for name, (kind, _) in DTYPES.items()}
"""The names in the format of the dtypes that recordings hold."""

ALIGNED = 64
"""Bytes of which the start of the tensors is a multiple."""

SMALL = 2**22
"""Bytes up to which a tensor is read whole, to compare its checksum, when a part is wanted."""

AGAIN = "open it again: it.load_recording(path)"


class Planned(NamedTuple):
    """A tensor to be written, and the function that returns it at its turn."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    get: Callable[[], Tensor]


def write(path: Path, tensors: Mapping[str, Planned], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file: whole, or not at all.

    The metadata get a checksum of each tensor ("checksums") and one of the whole header
    ("sha256"). Raises `ArgumentError` for the name of a folder and for more names and tokens than
    a header holds, `WriteError` if the file cannot be written.
    """
    if path.is_dir():
        raise build(ArgumentError, "path", "the name of a file", f"{str(path)!r}, a folder")
    stored: dict[str, Stored] = {}
    at = 0
    for name, (shape, dtype, _) in sorted(tensors.items(), key=lambda x: -x[1].dtype.itemsize):
        begin, at = at, at + torch.Size(shape).numel() * dtype.itemsize
        stored[name] = Stored(NAMES[dtype], shape, begin, at)
    header, checks = Header(dict(metadata), stored), dict.fromkeys(stored, "0" * 64)
    with replacing(path) as file:
        file.write(_packed(header, checks))  # of the same length as the right one
        for name in stored:
            shape, dtype, get = tensors[name]
            x, sum_of = get(), hashlib.sha256()
            if (tuple(x.shape), x.dtype) != (shape, dtype):
                expected, cause = f"a tensor of shape {shape} as before", "the recording grew"
                fix = "save when the watched block is done"
                raise build(ArgumentError, "save", expected, tuple(x.shape), cause, fix)
            for part in pieces(x, dtype):
                sum_of.update(part)
                file.write(part)
            checks[name] = sum_of.hexdigest()
        file.seek(0)
        file.write(_packed(header, checks))


def _packed(header: Header, checks: Mapping[str, str]) -> bytes:
    """The length of the header, and the header with the checksums of its tensors and its own."""
    text = json.dumps(sealed_header(header, checks).plain(), separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    if len(text) > HEADER:
        expected = f"names and tokens of at most {HEADER:,} bytes"
        cause = "the header of a safetensors file holds no more"
        fix = "watch fewer layers or calls at a time: watch(model, layers=…)"
        raise build(ArgumentError, "save", expected, f"{len(text):,}", cause, fix)
    return len(text).to_bytes(8, "little") + text


class Mapped:
    """The tensors of an open file by name; only its header is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = File(path, "a recording saved with Recording.save", DataError)
        self._handle = self.file.open()
        self._state = self._now()
        self.header = self.file.header()
        try:
            file = safe_open(path, "pt")
            self.tensors = {key: file.get_tensor(key) for key in self.header.tensors}
        except (SafetensorError, RuntimeError) as error:
            got = f"what the safetensors library refuses ({error})"
            raise self.file.refusal(got) from None
        except OSError as error:
            raise self.file.unreadable(error) from error
        self._checks: dict[str, str] = {}
        self.check()

    def sealed(self) -> None:
        """Raise `DataError` unless the header is as it was written; then use its checksums."""
        try:
            self._checks = checksums(self.header)
        except UnfitError as error:
            raise self.file.damaged(str(error)) from None

    def check(self) -> None:
        """Raise `StaleError` if the file has changed: a shorter one could not be read."""
        if self._now() != self._state:
            expected, got = "the file as it was when it was opened", "one that was written to since"
            raise build(StaleError, str(self.path), expected, got, fix=AGAIN)

    def get(self, name: str, most: int = SMALL) -> Tensor | None:
        """Return a tensor by its name, compared with its checksum if it has at most so many bytes.

        Raises `DataError` if it has another one, or holds booleans that are neither True nor False.
        """
        x = self.tensors.get(name)
        if x is None or x.nbytes > most or name not in self._checks:
            return x
        data = x.contiguous().view(-1).view(torch.uint8) if x.numel() else torch.empty(0)
        if digest(data.numpy().data) != self._checks[name]:
            raise self.file.damaged(f"another checksum of {name!r} than it was written with")
        if x.dtype is torch.bool and x.numel() and int(data.max()) > 1:
            raise self.file.refusal("a boolean tensor with bytes that are neither 0 nor 1")
        del self._checks[name]
        return x

    def __reduce__(self) -> Any:
        expected, got = "a recording in memory to copy or pickle", "one that is an open file"
        raise build(ArgumentError, str(self.path), expected, got, fix=AGAIN)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._handle.fileno())
        return found.st_size, found.st_mtime_ns


class InFile(Kept):
    """A tensor in a recording's file, mapped and not read."""

    def __init__(self, file: Mapped, name: str) -> None:
        self._file, self._name, self.shape = file, name, tuple(file.tensors[name].shape)

    def check(self) -> None:
        """Raise `StaleError` if the file was written to since; nothing is read."""
        self._file.check()

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` if the file was written to since.

        Raises `DataError` if a small tensor has another checksum.
        """
        self._file.check()
        x = self._file.get(self._name)
        assert x is not None
        return x
