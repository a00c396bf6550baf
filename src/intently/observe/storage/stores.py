"""Where operands are kept: own copies, references, or a file that is mapped into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from intently.errors import ArgumentError, MemoryRefused, StaleError, build, shape_of
from intently.foundation.checks import check_word, whole_number
from intently.foundation.values import Value
from intently.observe.storage import memory
from intently.observe.watching.call import AttentionSpec, Projected

LEAST = 64
"""Steps that a piece of `Growing` has room for at least; later ones for a quarter of all before."""

SMALL = 2**22
"""Entries up to which a tensor that seems unchanged is compared before its copy serves again."""


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

    def __init__(
        self, file: Spool, at: int, dtype: torch.dtype, stored: torch.Size, shape: torch.Size
    ) -> None:
        self._file, self._at, self._dtype, self._stored = file, at, dtype, stored
        self.shape = tuple(shape)

    def get(self) -> Tensor:
        """Return the tensor, mapped and not read."""
        size = self._stored.numel() * self._dtype.itemsize
        flat = self._file.mapped()[self._at : self._at + size].view(self._dtype)
        return flat.view(self._stored).expand(self.shape)


class Computed(Kept):
    """Heads (b, heads, steps, d) that a native operator projects, from x and the weights."""

    def __init__(self, x: Kept, weight: Kept, bias: Kept | None, heads: int) -> None:
        self._parts: tuple[Kept, Kept, Kept | None] = (x, weight, bias)
        self._heads = heads
        *lead, steps, _ = x.shape
        self.shape = (*lead, heads, steps, weight.shape[0] // heads)

    def get(self) -> Tensor:
        """Return the heads, computed; raises `StaleError` if the weights have changed."""
        x, weight, bias = self._parts
        w = weight.get()
        return Projected(x.get().to(w.dtype), w, bias and bias.get(), self._heads).tensor()

    def check(self) -> None:
        for part in self._parts:
            if part is not None:
                part.check()


class Growing(Kept):
    """Rows (b, …, n, d) that grow along n, the first axis in memory, stored in a few large pieces.

    A tensor for each step of a generation would lie between those that the model allocates and
    frees, and keep its heap from shrinking: 200 steps took 24 times their bytes.
    """

    def __init__(self, x: Tensor, dtype: torch.dtype) -> None:
        self._dtype, self._pieces = dtype, list[Tensor]()
        self.shape = (*x.shape[:-2], 0, x.shape[-1])
        self.append(x)

    def get(self) -> Tensor:
        """Return a copy of the rows so far."""
        return memory.joined(self.parts())

    def parts(self) -> list[Tensor]:
        """The rows so far, piece by piece, as they lie in memory."""
        sizes = [len(piece) for piece in self._pieces]
        sizes[-1] -= sum(sizes) - self.shape[-2]
        return [piece[:n].movedim(0, -2) for piece, n in zip(self._pieces, sizes)]

    def append(self, x: Tensor, parents: Tensor | None = None) -> None:
        """Put x (b, …, m, d) below the rows; row i of x continues row ``parents[i]``."""
        if parents is not None:
            for n, piece in enumerate(self._pieces):
                rows = piece.index_select(1, parents)
                self._pieces[n] = piece.copy_(rows) if rows.shape == piece.shape else rows
        left, n = x.detach().movedim(-2, 0), self.shape[-2]
        while len(left):
            room = sum(map(len, self._pieces)) - n
            if not room:
                room = max(len(left), LEAST, n // 4)
                piece = memory.empty((room, *left.shape[1:]), self._dtype, x.device)
                self._pieces.append(piece)
            last, m = self._pieces[-1], min(len(left), room)
            last[len(last) - room :][:m] = left[:m]
            left, n = left[m:], n + m
        self.shape = (*x.shape[:-2], n, x.shape[-1])

    def cropped(self, last: int) -> Growing:
        """Drop the ``last`` rows, and return self."""
        n = self.shape[-2] - last
        while sum(map(len, self._pieces[:-1])) >= n:
            self._pieces.pop()
        self.shape = (*self.shape[:-2], n, self.shape[-1])
        return self


def packed(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of x that holds its entries and nothing else, in the order of their memory.

    Expanded axes stay expanded.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return packed(x, dtype)
    x = x.detach()
    part = _unexpanded(x) if 0 in x.stride() else x
    found = memory.empty_like(part, dtype or x.dtype).copy_(part)
    return found if part is x else found.expand(x.shape)


def _unexpanded(x: Tensor) -> Tensor:
    """X without its expanded axes: one entry along each axis of stride 0."""
    for axis, step in enumerate(x.stride()):
        if not step and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    return x


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
            for part in memory.pieces(x, dtype):
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
            self._size += n
            left = left[n:]

    def __reduce__(self) -> Any:
        expected, cause = "a recording in memory to copy or pickle", "its file goes away with it"
        fix = "write one: seen.save(path), then it.load_recording(path)"
        raise build(ArgumentError, "store", expected, 'store="disk"', cause, fix)

    def __del__(self) -> None:
        self._file.close()
        if self._owner == os.getpid():  # a forked child leaves the file to its parent
            with suppress(OSError):
                os.unlink(self.path)


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


class Store:
    """Keeps tensors by one of three strategies, and a tensor that comes again unchanged once.

    Weights that are kept themselves fill ``budget`` bytes at most, but in a file. Raises
    `ArgumentError` for an unknown strategy, for a ``dtype`` that is not floating-point, and for any
    ``dtype`` with references, which cannot change theirs.
    """

    def __init__(self, kind: str, dtype: torch.dtype | None, budget: int) -> None:
        check_word(kind, "store", ("copy", "reference", "disk"))
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise build(ArgumentError, "dtype", "a floating-point dtype, or None", repr(dtype))
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
        part, dtype = _unexpanded(x.detach()), dtype or x.dtype
        return OnDisk(self._spool, self._spool.write(part, dtype), dtype, part.shape, x.shape)

    def once(self, x: Tensor, dtype: torch.dtype | None = None, look: bool = False) -> Kept:
        """Keep x, or return the earlier copy of the same tensor.

        PyTorch does not count every change of a tensor: small tensors, inference tensors and those
        with ``look`` are compared with the copy.
        """
        kept = self._known(x, look)
        if kept is None:
            kept = Referenced(x, look) if self.kind == "reference" else self.own(x, dtype)
            self._seen[identity(x)] = StorageWeakRef(x.untyped_storage()), kept
        return kept

    def _known(self, x: Tensor, look: bool = False) -> Kept | None:
        look = look or x.is_inference() or small(x)
        alive, kept = self._seen.get(identity(x), (None, None))
        if kept is None or alive is None or alive.expired() or (look and not kept.holds(x)):
            return None
        return kept

    def _spend(self, weights: Sequence[Tensor]) -> None:
        """Take the room of weights from the budget; raises `MemoryRefused` where it has none."""
        size = sum(_unexpanded(x).nbytes for x in weights if self._known(x) is None)
        if size > self._left:
            expected = f"at most the {self._left:,} bytes that are left of budget={self.budget:,}"
            cause = "no queries and keys give them, so that each of them is kept"
            fix = 'raise budget=, choose fewer layers=, or keep them in a file, store="disk"'
            raise build(MemoryRefused, "weights", expected, f"{size:,} bytes", cause, fix)
        self._left -= size

    def how(self, how: AttentionSpec) -> KeptSpec:
        """Keep the tensors of score, mask, bias, scale, sinks, weights and softmax, once.

        Raises `MemoryRefused` for weights that the budget has no room for.
        """
        if how.weights is not None and self._spool is None:
            self._spend(AttentionSpec(weights=how.weights, softmax=how.softmax).tensors())
        tensors: list[Kept] = []

        def change(x: Tensor) -> Tensor:
            kept = self.once(x)
            if self.kind == "reference":
                tensors.append(kept)
                return x.detach()
            return kept.get()

        changed = {
            name: x.replaced(change) if isinstance(x, Value) else change(x)
            for name, x in vars(how).items()
            if isinstance(x, (Value, Tensor))
        }
        return KeptSpec(replace(how, **changed) if changed else how, tuple(tensors))

    def join(self, parts: Sequence[Tensor]) -> Kept:
        """Keep tensors (…, n, d) one below the other, as one."""
        whole = memory.joined(parts)
        return self.own(whole, self.dtype) if self._spool else Held(whole)

    def forget(self) -> None:
        """Forget which tensors came before."""
        self._seen.clear()


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors (…) of one shape and dtype hold the same bits."""
    return torch.equal(_bits(a), _bits(b))


def small(x: Tensor) -> bool:
    """Whether a tensor is cheap to compare."""
    return x.numel() <= SMALL or _unexpanded(x).numel() <= SMALL


def _bits(x: Tensor) -> Tensor:
    """The bits of a tensor (…), as int64 if they fit, which is faster."""
    bits = memory.flat(_unexpanded(x.detach())).view(torch.uint8)
    fits = not bits.numel() % 8 and not bits.storage_offset() % 8
    return bits.view(torch.int64) if fits else bits


def identity(x: Tensor) -> tuple[Any, ...]:
    """A key that stays the same while a tensor is unchanged and its storage lives."""
    version = None if x.is_inference() else x._version
    storage = x.untyped_storage()
    return storage._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype, version
