"""Where operands are kept: own copies, references, or a file that is mapped into memory.

Large copies have pages of their own, which a recording leaves to the next one: on the model's heap
it took 1.5 times its bytes, and touching memory for the first time costs more than the copy itself.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from intently.errors import ArgumentError, MemoryRefused, StaleError, build, shape_of
from intently.foundation.checks import check_word, whole_number
from intently.foundation.values import Value
from intently.observe.watching.call import AttentionSpec, Projected

LARGE, HUGE, LEFT, PIECE = 2**17, 2**22, 2**28, 2**22
"""Bytes from which a copy has pages of its own, and from which huge ones; that stay allocated at
most after their recordings are gone; and that are written to a file at a time."""

SMALL = 2**22
"""Entries up to which a tensor that seems unchanged is compared before its copy serves again."""

PENDING = 64
"""Steps that stay in memory before they are written to a file."""

# --- memory ---------------------------------------------------------------------------------------

_PRIVATE = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Shared pages, Python's default, would belong to a forked child too, and are never huge."""

_left: list[mmap.mmap] = []


def packed(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of x that holds its entries and nothing else, in the order of their memory.

    Expanded axes stay expanded.
    """
    x = x.detach()
    part = _unexpanded(x) if 0 in x.stride() else x
    strides = torch.empty_like(part, device="meta").stride()
    own = _empty(part.numel(), dtype or x.dtype, x.device).as_strided(part.shape, strides)
    return own.copy_(part).expand(x.shape)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return a copy of tensors (…, n, d), one below the other."""
    x, n = parts[0], sum(part.shape[-2] for part in parts)
    shape = (*x.shape[:-2], n, x.shape[-1])
    whole = _empty(math.prod(shape), x.dtype, x.device).view(shape)
    return torch.cat([part.detach() for part in parts], -2, out=whole)


def _empty(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``count`` entries (count,); only those that are written take memory."""
    size = count * dtype.itemsize
    if device.type != "cpu" or size < LARGE:
        return torch.empty(count, dtype=dtype, device=device)
    step = max(mmap.PAGESIZE, 1 << (size.bit_length() - 4))  # an eighth, so that pages fit again
    rounded = -(-size // step) * step
    for area in reversed(list(_left)):
        if len(area) == rounded:
            with suppress(ValueError):  # it was evicted meanwhile
                _left.remove(area)
                break
    else:
        area = mmap.mmap(-1, rounded, **_PRIVATE)
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            area.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(area)
    weakref.finalize(view, _leave, area).atexit = False
    return torch.frombuffer(view, dtype=dtype, count=count)


def _leave(area: mmap.mmap) -> None:
    """Keep pages that nobody reads any more, and evict the oldest; even inside `_empty`."""
    _left.append(area)
    while sum(map(len, list(_left))) > LEFT:
        with suppress(IndexError):
            _left.pop(0)


def pieces(x: Tensor, dtype: torch.dtype) -> Iterator[memoryview]:
    """The bytes of a tensor in the order of its axes, some at a time."""
    x = torch.atleast_1d(x.detach())
    axis = next((n for n, size in enumerate(x.shape) if size > 1), 0)
    steps = max(1, PIECE * x.shape[axis] // max(1, x.numel() * dtype.itemsize))
    for part in x.split(steps, axis) if x.numel() else ():
        yield _bytes(part.to(dtype).cpu()).numpy().data


def _bytes(x: Tensor) -> Tensor:
    """The bytes of a tensor in a row; an expanded number, too, gets a stride of 1."""
    return x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def _bits(x: Tensor) -> Tensor:
    """The bits of a tensor (…), as int64 if they fit, which is faster."""
    bits = _bytes(_unexpanded(x.detach()))
    fits = not bits.numel() % 8 and not bits.storage_offset() % 8
    return bits.view(torch.int64) if fits else bits


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors (…) of one shape and dtype hold the same bits."""
    return torch.equal(_bits(a), _bits(b))


def _unexpanded(x: Tensor) -> Tensor:
    """X without its expanded axes: one entry along each axis of stride 0."""
    return x[tuple([slice(None if n else 1) for n in x.stride()])] if 0 in x.stride() else x


def small(x: Tensor) -> bool:
    """Whether a tensor is cheap to compare."""
    return x.numel() <= SMALL or _unexpanded(x).numel() <= SMALL


def identity(x: Tensor) -> tuple[Any, ...]:
    """A key that stays the same while a tensor is unchanged and its storage lives."""
    version, storage = None if x.is_inference() else x._version, x.untyped_storage()
    return storage._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype, version


# --- tensors that are kept ------------------------------------------------------------------------


class Kept:
    """A tensor that a store keeps."""

    shape: tuple[int, ...]

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` if it has changed."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise the errors of `get`, and read and compute as little as possible."""
        self.get()

    def holds(self, x: Tensor) -> bool:
        """Whether it has the same bits as x."""
        own = self.get()
        return same(own, x.to(own.dtype))


class Held(Kept):
    """A tensor that belongs to the recording."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape = tensor, tuple(tensor.shape)

    def get(self) -> Tensor:
        return self.tensor


class Referenced(Held):
    """A tensor of the model's own, refused once it was changed in place.

    PyTorch counts changes, but not those by ``x.data``, NumPy or a fused optimiser: those are
    noticed only if ``looked`` is True, by the sum of the bits. A permutation of the entries keeps
    that sum and goes unnoticed.
    """

    def __init__(self, tensor: Tensor, looked: bool = False) -> None:
        super().__init__(tensor.detach())
        self._version = None if tensor.is_inference() else tensor._version
        self._sum = _bits(self.tensor).sum(dtype=torch.int64) if looked else None

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` if it has changed, or if it cannot tell."""
        if self._version is None:
            expected = "tensors that tell when they are changed in place"
            got = f"an inference tensor of {shape_of(self.tensor)}, which does not"
            fix = 'watch with store="copy", or run the model under torch.no_grad()'
            raise build(StaleError, "store", expected, got, fix=fix)
        if self.tensor._version != self._version or not self.holds(self.tensor):
            expected = "the tensors and weights that the model had when it ran"
            got = f"a tensor of {shape_of(self.tensor)} changed in place since"
            cause = "static caches, training and loading write into them"
            raise build(StaleError, "store", expected, got, cause, 'watch with store="copy"')
        return self.tensor

    def holds(self, x: Tensor) -> bool:
        """Whether x, the same tensor, has not changed since."""
        unseen = self._sum is None or torch.equal(self._sum, _bits(x).sum(dtype=torch.int64))
        return self._version is not None and unseen


class OnDisk(Kept):
    """A tensor in a file, of the shape ``stored`` there; expanded to ``shape``."""

    def __init__(self, file: Spool, x: Tensor, dtype: torch.dtype) -> None:
        part, self.shape = _unexpanded(x.detach()), tuple(x.shape)
        self._file, self._stored, self._dtype = file, part.shape, dtype
        self._at = file.write(part, dtype)

    def get(self) -> Tensor:
        """Return the tensor, mapped and not read."""
        end = self._at + self._stored.numel() * self._dtype.itemsize
        flat = self._file.mapped()[self._at : end].view(self._dtype)
        return flat.view(self._stored).expand(self.shape)


class Computed(Kept):
    """Heads (b, heads, steps, d) that a native operator projects, from x and the weights."""

    def __init__(self, x: Kept, weight: Kept, bias: Kept | None, heads: int) -> None:
        self._x, self._weight, self._bias, self._heads = x, weight, bias, heads
        *lead, steps, _ = x.shape
        self.shape = (*lead, heads, steps, weight.shape[0] // heads)

    def get(self) -> Tensor:
        """Return the heads, computed; raises `StaleError` if the weights have changed."""
        w, bias = self._weight.get(), self._bias and self._bias.get()
        return Projected(self._x.get().to(w.dtype), w, bias, self._heads).tensor()

    def check(self) -> None:
        for part in filter(None, (self._x, self._weight, self._bias)):
            part.check()


class Growing(Kept):
    """Rows (b, …, n, d) that grow along n, below those that were kept ``first``.

    A tensor for each step of a generation would lie between those that the model allocates and
    frees, and keep its heap from shrinking: 200 steps took 24 times their bytes. So those in memory
    are joined, each with all later ones when these are as many.
    """

    def __init__(self, first: Kept, store: Store) -> None:
        self._store, self.shape = store, first.shape
        self._parts: list[tuple[Kept, Tensor | None]] = [(first, None)]
        """Each with the row that every row continues, None for its own."""

    def get(self) -> Tensor:
        """Return the rows so far, joined for good, but only for now if the disk has no room."""
        if len(self._parts) > 1 or self._parts[0][1] is not None:
            whole, store = joined(self.parts()), self._store
            try:
                kept: Kept = Held(whole) if store.kind != "disk" else store.own(whole, store.dtype)
            except OSError:
                return whole
            self._parts = [(kept, None)]
        return self._parts[0][0].get()

    def check(self) -> None:
        for kept, _ in self._parts:
            kept.check()

    def parts(self, low: int = 0) -> list[Tensor]:
        """The rows from ``low`` on, part by part."""
        found = list[Tensor]()
        for kept, rows in self._parts:
            if low < kept.shape[-2]:
                x = kept.get()[..., max(low, 0) :, :]
                found.append(x if rows is None else x[rows])
            low -= kept.shape[-2]
        return found

    def settle(self) -> None:
        """Write many steps to the file of a disk; raises `OSError` if it is full."""
        kept, rows = self._parts[-1]
        if self._store.kind == "disk" and isinstance(kept, Held) and kept.shape[-2] >= PENDING:
            self._parts[-1] = self._store.own(kept.tensor), rows

    def append(self, x: Tensor | None, parents: Tensor | None = None) -> None:
        """Put x (b, …, m, d) below the rows, if any; row i continues row ``parents[i]``."""
        if parents is not None:
            self._parts = [(y, parents if own is None else own[parents]) for y, own in self._parts]
            self.shape = (len(parents), *self.shape[1:])
        if x is not None:
            self.shape = (*self.shape[:-2], self.shape[-2] + x.shape[-2], self.shape[-1])
            self._parts.append((Held(packed(x, self._store.dtype)), None))
        while len(self._parts) > 2:
            (old, _), (new, _) = self._parts[-2:]
            if not isinstance(old, Held) or old.shape[-2] > new.shape[-2]:
                break
            both = self.parts(self.shape[-2] - old.shape[-2] - new.shape[-2])
            self._parts[-2:] = [(Held(joined(both)), None)]

    def cropped(self, last: int) -> Growing:
        """The rows without the ``last`` ones."""
        made, parts = copy(self), [*self._parts]
        made.shape = (*self.shape[:-2], self.shape[-2] - last, self.shape[-1])
        while last:
            kept, rows = parts.pop()
            if last < kept.shape[-2]:
                x = kept.get()[..., :-last, :]
                parts.append((Referenced(x) if self._store.kind == "reference" else Held(x), rows))
            last = max(0, last - kept.shape[-2])
        made._parts = parts
        return made


@dataclass(frozen=True)
class KeptSpec:
    """The arguments of a call beside q and k, and the kept ``tensors`` among them."""

    how: AttentionSpec
    tensors: tuple[Kept, ...] = ()

    def get(self) -> AttentionSpec:
        """Return the arguments; raises `StaleError` if a tensor has changed."""
        for kept in self.tensors:
            kept.get()
        return self.how


# --- stores ---------------------------------------------------------------------------------------


class Spool:
    """A temporary file of tensors that goes away with the last of them."""

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(prefix="intently-", suffix=".watch")
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._size, self._map = 0, torch.empty(0, dtype=torch.uint8)
        self._owner = os.getpid()

    def write(self, x: Tensor, dtype: torch.dtype) -> int:
        """Append the entries of x and return where they begin; raises `OSError` when full."""
        before = self._size
        at = -(-before // 64) * 64
        try:
            self._put(bytes(at - before))
            for part in pieces(x, dtype):
                self._put(part)
        except OSError:
            self._size = before
            with suppress(OSError):  # give back the room
                self._file.seek(before)
                self._file.truncate()
            raise
        return at

    def mapped(self) -> Tensor:
        """The bytes written so far, mapped and not read."""
        if len(self._map) != self._size:
            self._map = torch.from_file(self.path, size=self._size, dtype=torch.uint8)
        return self._map

    def _put(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while len(left):
            n = self._file.write(left)
            self._size, left = self._size + n, left[n:]

    def __reduce__(self) -> Any:
        expected, cause = "a recording in memory to copy or pickle", "its file goes away with it"
        fix = "write one: seen.save(path), then it.load_recording(path)"
        raise build(ArgumentError, "store", expected, 'store="disk"', cause, fix)

    def __del__(self) -> None:
        self._file.close()
        if self._owner == os.getpid():  # a forked child leaves the file to its parent
            with suppress(OSError):
                os.unlink(self.path)


class Store:
    """Keeps tensors by one of three strategies, and a tensor that comes again unchanged once.

    Weights that are kept themselves fill ``budget`` bytes at most, but in a file. Raises
    `ArgumentError` for an unknown strategy, for a ``dtype`` that attention does not have, and for
    any ``dtype`` with references, which cannot change theirs.
    """

    def __init__(self, kind: str, dtype: torch.dtype | None, budget: int) -> None:
        check_word(kind, "store", ("copy", "reference", "disk"))
        if dtype not in (None, torch.float16, torch.bfloat16, torch.float32, torch.float64):
            expected = "float16, bfloat16, float32, float64, or None"
            raise build(ArgumentError, "dtype", expected, repr(dtype))
        if dtype is not None and kind == "reference":
            expected, cause = 'None with store="reference"', "a reference is the model's own tensor"
            fix = 'store="copy" keeps it in another dtype'
            raise build(ArgumentError, "dtype", expected, dtype, cause, fix)
        self.kind, self.dtype = kind, dtype
        self.budget, self._left = budget, whole_number(budget, "budget", 0)
        self._spool = Spool() if kind == "disk" else None
        self._seen: dict[tuple[Any, ...], tuple[StorageWeakRef, Kept]] = {}

    def keep(self, x: Tensor | Projected) -> Kept:
        """Keep an operand."""
        if isinstance(x, Projected):
            weight = self.once(x.weight, look=True)
            bias = None if x.bias is None else self.once(x.bias, look=True)
            return Computed(self.once(x.x, self.dtype), weight, bias, x.heads)
        return Referenced(x) if self.kind == "reference" else self.own(x, self.dtype)

    def own(self, x: Tensor, dtype: torch.dtype | None = None) -> Kept:
        """Keep a copy of x, whatever the strategy."""
        if self._spool is None:
            return Held(packed(x, dtype))
        return OnDisk(self._spool, x, dtype or x.dtype)

    def once(self, x: Tensor, dtype: torch.dtype | None = None, look: bool = False) -> Kept:
        """Keep x, or return the earlier copy of the same tensor.

        PyTorch does not count every change of a tensor: small tensors, inference tensors and those
        with ``look`` are compared with the copy.
        """
        key = identity(x)
        kept = self._known(x, key, look)
        if kept is None:
            kept = Referenced(x, look) if self.kind == "reference" else self.own(x, dtype)
            self._seen[key] = StorageWeakRef(x.untyped_storage()), kept
        return kept

    def _known(self, x: Tensor, key: tuple[Any, ...], look: bool = False) -> Kept | None:
        alive, kept = self._seen.get(key, (None, None))
        if kept is None or alive is None or alive.expired():
            return None
        look = look or x.numel() <= SMALL or x.is_inference() or small(x)
        return kept if not look or kept.holds(x) else None

    def how(self, how: AttentionSpec) -> KeptSpec:
        """Keep the tensors of score, mask, bias, scale, sinks, weights and softmax, once.

        Raises `MemoryRefused`, and keeps none, if the budget has no room for the weights.
        """
        if how.weights is not None and self._spool is None:
            weights = AttentionSpec(weights=how.weights, softmax=how.softmax).tensors()
            new = [x for x in weights if self._known(x, identity(x)) is None]
            size = sum(_unexpanded(x).nbytes for x in new)
            if size > self._left:
                left = f"at most the {self._left:,} bytes that are left of budget={self.budget:,}"
                cause = "no queries and keys give them, so that each of them is kept"
                fix = 'raise budget=, choose fewer layers=, or keep them in a file, store="disk"'
                raise build(MemoryRefused, "weights", left, f"{size:,} bytes", cause, fix)
            self._left -= size
        tensors: list[Kept] = []

        def change(x: Tensor) -> Tensor:
            tensors.append(self.once(x))
            return x.detach() if self.kind == "reference" else tensors[-1].get()

        changed = {
            name: x.replaced(change) if isinstance(x, Value) else change(x)
            for name, x in vars(how).items()
            if isinstance(x, Value | Tensor)
        }
        return KeptSpec(replace(how, **changed) if changed else how, tuple(tensors))

    def forget(self) -> None:
        """Forget which tensors came before."""
        self._seen.clear()
