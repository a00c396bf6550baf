"""A safetensors file written in one piece: tensor after tensor, in little memory, then renamed."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from intently.errors import ArgumentError, build

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""What the format calls the dtypes that recordings hold."""

ALIGNED = 64
"""The tensors begin at a multiple of so many bytes."""

HEADER = 10**8
"""Bytes of a header that the safetensors library reads at most."""

PIECE = 2**22
"""Bytes that are written at a time, but for a head whose rows are more."""


class Planned(NamedTuple):
    """A tensor to be written, and the function that gives it when its turn comes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    get: Callable[[], Tensor]

    @property
    def size(self) -> int:
        """Its bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write(path: Path, tensors: Mapping[str, Planned], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file: whole, or not at all.

    It is written under another name in the same folder and renamed when it is on the disk; where
    that fails, what was at ``path`` is still there, and nothing else. Raises `ArgumentError` for
    the name of a folder and for more names and tokens than a header holds, and what the system
    raises, with the name of the file.
    """
    if path.is_dir():
        raise build(ArgumentError, "path", "the name of a file", f"{str(path)!r}, a folder")
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    header = _header(tensors, order, metadata)
    draft = path.with_name(f".writing-{path.name[:64]}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(header)
            for name in order:
                _put(file, tensors[name])
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        _sync_folder(path.parent)
    except OSError as error:
        _remove(draft)
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from None
    except BaseException:
        _remove(draft)
        raise


def _header(tensors: Mapping[str, Planned], order: list[str], metadata: Mapping[str, str]) -> bytes:
    """The length of the header and the header: where each tensor stands behind it."""
    about: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        planned = tensors[name]
        about[name] = {
            "dtype": DTYPES[planned.dtype],
            "shape": list(planned.shape),
            "data_offsets": [at, at + planned.size],
        }
        at += planned.size
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    if len(text) > HEADER:
        raise build(
            ArgumentError, "save", f"names and tokens of at most {HEADER:,} bytes",
            f"{len(text):,}", "the header of a safetensors file holds no more",
            "watch fewer layers or calls at a time: watch(model, layers=…)",
        )  # fmt: skip
    return len(text).to_bytes(8, "little") + text


def _put(file: BinaryIO, planned: Planned) -> None:
    """Write the entries of a tensor in the order of its axes."""
    x = planned.get().detach()
    x = x if x.ndim else x[None]
    if tuple(x.shape) != (planned.shape or (1,)) or x.dtype != planned.dtype:
        raise build(
            ArgumentError, "save", f"a tensor of shape {planned.shape} as before", tuple(x.shape),
            "the recording grew meanwhile", "save when the watched block is done",
        )  # fmt: skip
    if not x.numel():
        return
    axis = next((n for n, size in enumerate(x.shape) if size > 1), 0)
    steps = max(1, PIECE * x.shape[axis] // planned.size)
    for part in x.split(steps, axis):
        flat = part.cpu().contiguous().view(-1).view(torch.uint8)
        file.write(flat.numpy().data)


def _remove(draft: Path) -> None:
    with suppress(OSError):
        draft.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and renames are synced anyway
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
