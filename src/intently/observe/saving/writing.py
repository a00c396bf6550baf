"""Writing a safetensors file: tensor after tensor, in little memory, then renamed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from intently.errors import ArgumentError, build
from intently.foundation.files import HEADER, Header, Stored, replacing, sealed_header

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names in the format of the dtypes that recordings hold."""

ALIGNED = 64
"""Bytes of which the start of the tensors is a multiple."""

NONE = "0" * 64
"""Placeholder for the checksum of a tensor that is still to be written."""

PIECE = 2**22
"""Bytes that are written at a time, or one head if it is larger."""


class Planned(NamedTuple):
    """A tensor to be written, and the function that returns it at its turn."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    get: Callable[[], Tensor]

    @property
    def size(self) -> int:
        """Its bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write(path: Path, tensors: Mapping[str, Planned], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file: whole, or not at all.

    The metadata get a checksum of each tensor ("checksums") and one of the whole header
    ("sha256"). Raises `ArgumentError` for the name of a folder and for more names and tokens than
    a header holds, `WriteError` if the file cannot be written.
    """
    if path.is_dir():
        raise build(ArgumentError, "path", "the name of a file", f"{str(path)!r}, a folder")
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    checks = dict.fromkeys(order, NONE)
    with replacing(path) as file:
        file.write(_header(tensors, metadata, checks))  # of the same length as the right one
        for name in order:
            checks[name] = _put(file, tensors[name])
        file.seek(0)
        file.write(_header(tensors, metadata, checks))


def _header(
    tensors: Mapping[str, Planned], metadata: Mapping[str, str], checks: Mapping[str, str]
) -> bytes:
    """The length of the header, and the header with the place of each tensor of ``checks``."""
    stored, at = {}, 0
    for name in checks:
        planned = tensors[name]
        end = at + planned.size
        stored[name] = Stored(DTYPES[planned.dtype], planned.shape, at, end)
        at = end
    sealed = sealed_header(Header(dict(metadata), stored), checks)
    text = json.dumps(sealed.plain(), separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    if len(text) > HEADER:
        expected = f"names and tokens of at most {HEADER:,} bytes"
        cause = "the header of a safetensors file holds no more"
        fix = "watch fewer layers or calls at a time: watch(model, layers=…)"
        raise build(ArgumentError, "save", expected, f"{len(text):,}", cause, fix)
    return len(text).to_bytes(8, "little") + text


def _put(file: BinaryIO, planned: Planned) -> str:
    """Write the entries of a tensor in the order of its axes; return their SHA-256."""
    x = planned.get().detach()
    x = x if x.ndim else x[None]
    if tuple(x.shape) != (planned.shape or (1,)) or x.dtype != planned.dtype:
        expected, cause = f"a tensor of shape {planned.shape} as before", "the recording grew"
        fix = "save when the watched block is done"
        raise build(ArgumentError, "save", expected, tuple(x.shape), cause, fix)
    sum_of = hashlib.sha256()
    axis = next((n for n, size in enumerate(x.shape) if size > 1), 0)
    steps = max(1, PIECE * x.shape[axis] // max(1, planned.size))
    for part in x.split(steps, axis) if x.numel() else ():
        data = part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        sum_of.update(data)
        file.write(data)
    return sum_of.hexdigest()
