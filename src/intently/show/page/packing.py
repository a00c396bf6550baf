"""Numbers as text in a page: little endian, bytes shuffled, deflated, base64.

Shuffling puts all first bytes of the numbers together, then all second bytes, and so on:
neighbouring exponents are similar and compress well (Alted 2010, "Why Modern CPUs Are Starving",
the shuffle of Blosc).
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Any

import numpy as np
from torch import Tensor

from intently.errors import MemoryRefused, build

DTYPES = {"float16": "<f2", "float32": "<f4", "float64": "<f8", "uint8": "u1", "bits": "u1"}
"""The dtypes of blocks; bits are packed eight to a byte, lowest first, row by row."""

LEVEL = 6
"""The level of deflate; higher levels take several times as long and gain a percent."""


LARGEST = 192 * 2**20
"""Most bytes of a page: browsers open it without delay."""


def check_size(size: int, cause: str | None = None) -> None:
    """Raise `MemoryRefused` for a page of more than `LARGEST` bytes."""
    if size > LARGEST:
        raise build(
            MemoryRefused,
            "page",
            f"at most {LARGEST / 1e6:,.0f} MB in one file",
            f"about {size / 1e6:,.0f} MB",
            cause,
            "show fewer layers (layers=…) or a shorter text; or seen.save('run.safetensors') and "
            "`intently explore run.safetensors`, which has no limit",
        )


class NumberBlocks:
    """The blocks of a page; equal blocks are stored once.

    ``kinds`` are their descriptions, ``packed`` their bytes.
    """

    def __init__(self) -> None:
        self.kinds: list[dict[str, Any]] = []
        self.packed: list[bytes] = []
        self._known: dict[bytes, int] = {}

    def add(self, numbers: Tensor | np.ndarray, dtype: str) -> int:
        """Return the index of the block that holds these numbers in this dtype.

        >>> import torch
        >>> blocks = NumberBlocks()
        >>> blocks.add(torch.ones(2, 3), "float16"), blocks.add(torch.ones(2, 3), "float16")
        (0, 0)
        >>> blocks.kinds
        [{'dtype': 'float16', 'shape': [2, 3]}]
        """
        array = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else numbers
        shape = list(array.shape)
        if dtype == "bits":
            array = np.packbits(array, axis=-1, bitorder="little")
        raw = shuffled(np.ascontiguousarray(array, DTYPES[dtype]))
        name = hashlib.sha256(f"{dtype}{shape}".encode() + raw).digest()
        if name not in self._known:
            self._known[name] = len(self.packed)
            self.kinds.append({"dtype": dtype, "shape": shape})
            self.packed.append(zlib.compress(raw, LEVEL))
        return self._known[name]


def shuffled(array: np.ndarray) -> bytes:
    """Return the bytes of an array, all first bytes of its numbers before all second ones.

    >>> shuffled(np.array([0x0102, 0x0304], "<u2")).hex()
    '02040103'
    """
    size = array.dtype.itemsize
    return array.reshape(-1).view(np.uint8).reshape(-1, size).T.tobytes()


def text(packed: bytes) -> str:
    """Return a block as base64, its form in the page."""
    return base64.b64encode(packed).decode("ascii")
