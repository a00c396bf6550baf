"""Memory for large copies: private pages, which a recording leaves to the next one.

On the model's heap a recording took 1.5 times its bytes, and touching memory for the first time
costs more than the copy itself.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

LARGE = 2**17
"""Bytes from which a copy has pages of its own."""

HUGE = 2**22
"""Bytes from which the system is asked for huge pages."""

LEFT = 2**28
"""Bytes at most that stay allocated after their recordings are gone."""

_PRIVATE = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Shared pages, Python's default, would belong to a forked child too, and are never huge."""

_left: dict[int, list[mmap.mmap]] = {}


def empty_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uninitialised memory for a copy of x, in the order of its memory."""
    shape, strides, step = x.shape, [1] * x.ndim, 1
    for axis in sorted(reversed(range(x.ndim)), key=x.stride().__getitem__):
        strides[axis], step = step, step * shape[axis]
    return _empty(step, dtype, x.device).as_strided(shape, strides)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return a copy of tensors (…, n, d), one below the other."""
    x, ends = parts[0], list(accumulate(part.shape[-2] for part in parts))
    found = empty((*x.shape[:-2], ends[-1], x.shape[-1]), x.dtype, x.device)
    for part, end in zip(parts, ends):
        found[..., end - part.shape[-2] : end, :] = part
    return found


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised tensor; a large one has pages of its own."""
    return _empty(math.prod(shape), dtype, device).view(shape)


def _empty(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``count`` entries (count,); only those that are written take memory."""
    size = count * dtype.itemsize
    if device.type != "cpu" or size < LARGE:
        return torch.empty(count, dtype=dtype, device=device)
    rounded = _rounded(size)
    try:
        area = _left[rounded].pop()
    except (KeyError, IndexError):
        area = mmap.mmap(-1, rounded, **_PRIVATE)
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            area.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(area)
    weakref.finalize(view, _leave, area, rounded).atexit = False
    return torch.frombuffer(view, dtype=dtype, count=count)


def _leave(area: mmap.mmap, size: int) -> None:
    """Keep pages that nobody reads any more, and evict the least recently used sizes.

    A finaliser may run at any time, even inside `_empty`: each list of areas is changed in place,
    so that an area which `_empty` takes from it is in no other list.
    """
    same = _left.pop(size, [])
    same.append(area)
    _left[size] = same  # now the last of the sizes
    over = sum(n * len(areas) for n, areas in list(_left.items())) - LEFT
    for n, areas in list(_left.items()):
        gone = min(len(areas), max(0, -(-over // n)))
        del areas[:gone]
        over -= n * gone
        if not areas:
            _left.pop(n, None)


def _rounded(size: int) -> int:
    """The size rounded up by an eighth at most, so that pages fit again."""
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
