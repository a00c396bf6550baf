"""The header of a safetensors file, checked before anything behind it is believed."""

from __future__ import annotations

import math
import os
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from intently.files.plain_data import UnfitError, fault, parsed

HEADER = 10**8
"""Bytes of a header at most, as in the safetensors library."""

HOLLOW = 2**28
"""How many entries a tensor without entries may pretend to have along its other axes."""

AXES = 64
"""Axes of a tensor at most, as in PyTorch."""

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""The dtypes that Intently stores, and their names in safetensors."""

_NAMED = {name: dtype for dtype, name in DTYPES.items()}


class Stored(NamedTuple):
    """What a safetensors header says of a tensor: where its bytes stand behind the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """A safetensors header that fits its file: metadata, and the tensors by name."""

    metadata: dict[str, str]
    tensors: dict[str, Stored]

    def plain(self) -> dict[str, Any]:
        """Return it as the JSON that safetensors stores."""
        places = {
            name: {"dtype": x.dtype, "shape": list(x.shape), "data_offsets": [x.begin, x.end]}
            for name, x in self.tensors.items()
        }
        return {"__metadata__": self.metadata, **places}

    def blank(self) -> dict[str, Tensor]:
        """Return tensors of these shapes and dtypes that have no memory."""
        return {
            name: torch.empty(x.shape, dtype=_NAMED[x.dtype], device="meta")
            for name, x in self.tensors.items()
        }


_TENSOR = {
    "dtype": str,
    "shape": [range(2**63)],
    "data_offsets": [range(2**63), range(2**63)],
}


def read_header(handle: BinaryIO, most: int = HEADER) -> Header:
    """Return the header of a safetensors file, of which nothing else is read.

    Raises UnfitError with the reason where lengths, shapes, dtypes and places do not agree with
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
    if x.dtype not in _NAMED:
        raise UnfitError(f"a tensor of dtype {x.dtype[:20]}, which Intently does not write")
    most = 2**60 if all(x.shape) else HOLLOW
    if len(x.shape) > AXES or math.prod(n for n in x.shape if n) > most:
        raise UnfitError(f"a tensor of a size that cannot be, {x.shape[:9]}")
    if math.prod(x.shape) * _NAMED[x.dtype].itemsize != x.end - x.begin:
        raise UnfitError(f"a tensor whose shape, dtype and place do not agree, {name[:80]!r}")
    return x
