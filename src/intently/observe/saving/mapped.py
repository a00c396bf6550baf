"""A safetensors file that nobody vouches for: mapped into memory, refused with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from intently.errors import ArgumentError, DataError, IntentlyError, StaleError, build
from intently.foundation.files import File, UnfitError, checksums, digest

SMALL = 2**22
"""Bytes up to which a tensor is read as a whole, to compare its checksum, when a part is wanted."""


class Mapped:
    """The tensors of an open file by name; nothing is read but its header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = File(path, "a recording saved with Recording.save", DataError)
        self._handle = self.file.open()
        self._state = self._now()
        self._header = self.file.header()
        self.metadata: Mapping[str, str] = self._header.metadata
        try:
            file = safe_open(path, "pt")
            self.tensors = {key: file.get_tensor(key) for key in self._header.tensors}
        except (SafetensorError, RuntimeError) as error:
            raise self.refusal(f"what the safetensors library refuses ({error})") from None
        except OSError as error:
            raise self.file.unreadable(error) from error
        self._names = {id(x): name for name, x in self.tensors.items()}
        self._checks: dict[str, str] = {}
        self.check()

    def sealed(self) -> None:
        """Raise `DataError` unless the header is as it was written; its checksums count then."""
        try:
            self._checks = checksums(self._header)
        except UnfitError as error:
            raise self.file.damaged(str(error)) from None

    def verify(self, x: Tensor, most: int = SMALL) -> None:
        """Raise `DataError` unless a tensor of at most ``most`` bytes is as it was written."""
        name = self._names.get(id(x), "")  # a mask may have made another one of it
        check = self._checks.get(name)
        if check is None or x.nbytes > most:
            return
        data = x.contiguous().view(-1).view(torch.uint8).numpy().data if x.numel() else b""
        if digest(data) != check:
            raise self.file.damaged(f"another checksum of {name!r} than it was written with")

    def check(self) -> None:
        """Raise `StaleError` if the file is not what it was: a shorter one cannot be read."""
        if self._now() != self._state:
            raise build(
                StaleError,
                str(self.path),
                "the file as it was when it was opened",
                "one that was written to since",
                fix="open it again: it.load_recording(path)",
            )

    def refusal(self, got: str, cause: str | None = None, fix: str | None = None) -> IntentlyError:
        """Return the error that says why the file is not read."""
        return self.file.refusal(got, cause, fix)

    def kept(self, x: Tensor) -> InFile:
        """One of ``tensors`` as recordings keep it."""
        return InFile(self, x)

    def __reduce__(self) -> Any:
        raise build(
            ArgumentError,
            str(self.path),
            "a recording in memory to copy or pickle",
            "one that is an open file",
            fix="open it again: it.load_recording(path)",
        )

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._handle.fileno())
        return found.st_size, found.st_mtime_ns


class Verified(Mapping[str, Tensor]):
    """The same tensors, each verified when it is taken: small ones that a mask rests on."""

    def __init__(self, file: Mapped) -> None:
        self._file = file

    def __getitem__(self, name: str) -> Tensor:
        x = self._file.tensors[name]
        self._file.verify(x)
        return x

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.tensors)

    def __len__(self) -> int:
        return len(self._file.tensors)


class InFile:
    """A tensor in a recording's file, mapped and not read."""

    def __init__(self, file: Mapped, x: Tensor) -> None:
        self._file, self._x = file, x
        self._sound = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, known without reading."""
        return tuple(self._x.shape)

    def check(self) -> None:
        """Raise `StaleError` where the file was written to since; nothing is read."""
        self._file.check()

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` where the file was written to since.

        Raises `DataError` where a small one is not what was written, and for booleans that are
        neither True nor False.
        """
        self._file.check()
        if not self._sound:
            self._file.verify(self._x)
            odd = self._x.dtype is torch.bool and self._x.numel()
            if odd and int(self._x.view(torch.uint8).max()) > 1:
                raise self._file.refusal("a boolean tensor with bytes that are neither 0 nor 1")
        self._sound = True
        return self._x
