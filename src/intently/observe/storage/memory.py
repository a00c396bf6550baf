"""Memory for copies: large ones have private pages, which a recording leaves to the next one.

On the model's heap a recording took 1.5 times its bytes, and touching memory for the first time
costs more than the copy itself.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

LARGE = 2**17
"""Bytes from which a copy has pages of its own."""

HUGE = 2**22
"""Bytes from which the system is asked for huge pages."""

LEFT = 2**28
"""Bytes at most that stay allocated after their recordings are gone."""

PIECE = 2**22
"""Bytes that are written to a file at a time."""

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
    x, n = parts[0], sum(part.shape[-2] for part in parts)
    whole = empty((*x.shape[:-2], n, x.shape[-1]), x.dtype, x.device)
    return torch.cat([part.detach() for part in parts], -2, out=whole)


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


def flat(x: Tensor) -> Tensor:
    """The entries of a tensor in a row; that of an expanded number has a stride of 1, too."""
    x = x.contiguous()
    return x.as_strided((x.numel(),), (1,))


def pieces(x: Tensor, dtype: torch.dtype) -> Iterator[memoryview]:
    """The bytes of a tensor in the order of its axes, some at a time."""
    axis = next((n for n, size in enumerate(x.shape) if size > 1), 0)
    x = x.detach() if x.ndim else x.detach()[None]
    steps = max(1, PIECE * x.shape[axis] // max(1, x.numel() * dtype.itemsize))
    for part in x.split(steps, axis) if x.numel() else ():
        yield flat(part.to(dtype).cpu()).view(torch.uint8).numpy().data
