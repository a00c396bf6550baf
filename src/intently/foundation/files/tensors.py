"""The header of a safetensors file, verified before any tensor is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

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
