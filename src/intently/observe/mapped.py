"""A safetensors file that nobody vouches for: mapped into memory, refused with the reason."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from intently.errors import ArgumentError, DataError, StaleError, build
from intently.observe.writing import DTYPES

EMPTY = 2**28
"""How many entries a tensor without entries may pretend to have along its other axes."""

_FAULTS = (
    ("header too small", "too few bytes for a header: it is empty or was cut"),
    ("header too large", "no header, or one longer than any: it is another kind of file"),
    ("invalid header length", "an end within the header: it was cut"),
    ("file not fully covered", "more or fewer bytes than its tensors have: it was cut or extended"),
    ("invalid shape, data type", "a tensor whose shape, dtype and place do not agree"),
    ("invalid offset", "tensors that overlap, or with gaps between them"),
    ("overflow", "a tensor of a size that cannot be"),
    ("invalid JSON", "a header that does not describe tensors: it is damaged"),
    ("invalid UTF-8", "a header that is no text: it is damaged"),
)
"""What the safetensors library says, in part, and what we say."""


class Mapped:
    """The tensors of an open file by name; nothing is read but its header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._open()
        self._state = self._now()
        try:
            file = safe_open(path, "pt")
            self.metadata: Mapping[str, str] = file.metadata() or {}
            self.tensors = {key: self._tensor(file, key) for key in list(file.keys())}
        except SafetensorError as error:
            told = next((told for part, told in _FAULTS if part in str(error)), None)
            raise self.refusal(told or "what the safetensors library refuses") from None
        except OSError as error:
            raise self.refusal(f"a file that cannot be mapped ({error.strerror})") from None
        self.check()

    def check(self) -> None:
        """Raise `StaleError` if the file is not what it was: a shorter one cannot be read."""
        if self._now() != self._state:
            raise build(
                StaleError, str(self.path), "the file as it was when it was opened",
                "one that was written to since", fix="open it again: it.load_recording(path)",
            )  # fmt: skip

    def refusal(self, got: str, cause: str | None = None, fix: str | None = None) -> DataError:
        """Return the error that says why the file is not read."""
        expected = "a recording saved with Recording.save"
        return build(DataError, str(self.path), expected, got, cause, fix)

    def kept(self, x: Tensor) -> InFile:
        """One of ``tensors`` as recordings keep it."""
        return InFile(self, x)

    def __reduce__(self) -> Any:
        raise build(
            ArgumentError, str(self.path), "a recording in memory to copy or pickle",
            "one that is an open file", fix="open it again: it.load_recording(path)",
        )  # fmt: skip

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def _open(self) -> int:
        try:
            kind = os.stat(self.path).st_mode
            if not stat.S_ISREG(kind):
                raise self.refusal("a folder" if stat.S_ISDIR(kind) else "no ordinary file")
            return os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise self.refusal("no such file") from None
        except OSError as error:
            raise self.refusal(f"a file that cannot be opened ({error.strerror})") from None

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    def _tensor(self, file: Any, key: str) -> Tensor:
        part = file.get_slice(key)
        shape, dtype = part.get_shape(), part.get_dtype()
        if dtype not in DTYPES.values():
            raise self.refusal(f"a tensor of dtype {dtype}", "recordings have none")
        if not all(shape) and math.prod(n for n in shape if n) > EMPTY:
            raise self.refusal(f"a tensor of shape {tuple(shape)}", "nobody recorded that")
        return file.get_tensor(key)


class InFile:
    """A tensor in a recording's file, mapped and not read."""

    def __init__(self, file: Mapped, x: Tensor) -> None:
        self._file, self._x = file, x
        self._sound = self._x.dtype is not torch.bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, known without reading."""
        return tuple(self._x.shape)

    def check(self) -> None:
        """Raise `StaleError` where the file was written to since; nothing is read."""
        self._file.check()

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` where the file was written to since.

        Raises `DataError` for booleans that are neither True nor False.
        """
        self._file.check()
        if not self._sound and self._x.numel() and int(self._x.view(torch.uint8).max()) > 1:
            raise self._file.refusal("a boolean tensor with bytes that are neither 0 nor 1")
        self._sound = True
        return self._x
