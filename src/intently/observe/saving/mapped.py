"""An untrusted safetensors file: mapped into memory, or refused with the reason."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from intently.errors import ArgumentError, DataError, StaleError, build
from intently.foundation.files import File, UnfitError, checksums, digest

SMALL = 2**22
"""Bytes up to which a tensor is read whole, to compare its checksum, when a part is wanted."""


AGAIN = "open it again: it.load_recording(path)"


class Mapped:
    """The tensors of an open file by name; only its header is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = File(path, "a recording saved with Recording.save", DataError)
        self.refusal = self.file.refusal
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
        """Raise `DataError` unless the header is as it was written; then use its checksums."""
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
        """Raise `StaleError` if the file has changed: a shorter one could not be read."""
        if self._now() != self._state:
            expected, got = "the file as it was when it was opened", "one that was written to since"
            raise build(StaleError, str(self.path), expected, got, fix=AGAIN)

    def verified(self, name: str) -> Tensor | None:
        """Return a tensor by its name, verified if small; tensors of masks are."""
        x = self.tensors.get(name)
        if x is not None:
            self.verify(x)
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


class InFile:
    """A tensor in a recording's file, mapped and not read."""

    def __init__(self, file: Mapped, x: Tensor) -> None:
        self._file, self._x, self._sound = file, x, False
        self.shape = tuple(x.shape)

    def check(self) -> None:
        """Raise `StaleError` if the file was written to since; nothing is read."""
        self._file.check()

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` if the file was written to since.

        Raises `DataError` if a small tensor has another checksum, and for booleans that are neither
        True nor False.
        """
        self._file.check()
        if not self._sound:
            self._file.verify(self._x)
            odd = self._x.dtype is torch.bool and self._x.numel()
            if odd and int(self._x.view(torch.uint8).max()) > 1:
                raise self._file.refusal("a boolean tensor with bytes that are neither 0 nor 1")
        self._sound = True
        return self._x
