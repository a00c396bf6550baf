"""Where operands are kept: own copies, references, or a file that is mapped into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from intently.errors import ArgumentError, StaleError, build, shape_of
from intently.foundation.checks import check_word
from intently.foundation.values import Value
from intently.observe.storage import mmap_pool
from intently.observe.watching.call import AttentionSpec, Projected

PIECE = 2**22
"""Bytes that are written to a file at a time."""

SMALL = 2**22
"""Entries up to which a tensor that seems unchanged is compared before its copy serves again."""


class Kept(Protocol):
    """A tensor that a store keeps."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` if it has changed."""
        ...


class Held:
    """A tensor that belongs to the recording."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape = tensor, tuple(tensor.shape)

    def get(self) -> Tensor:
        """Return the tensor."""
        return self.tensor

    def holds(self, x: Tensor) -> bool:
        """Whether it has the same bits as x."""
        return same(self.tensor, x.to(self.tensor.dtype))


class Referenced(Held):
    """A tensor of the model's own, refused once it was changed in place.

    PyTorch counts changes, but not those by ``x.data``, NumPy or a fused optimiser: those are
    noticed only if ``looked`` is True, by the sum of the bits. A permutation of the entries keeps
    that sum and goes unnoticed.
    """

    def __init__(self, tensor: Tensor, looked: bool = False) -> None:
        super().__init__(tensor.detach())
        self._version = None if tensor.is_inference() else tensor._version
        self._sum = self._summed() if looked else None

    def get(self) -> Tensor:
        """Return the tensor; raises `StaleError` if it has changed, or if it cannot tell."""
        if self._version is None:
            expected = "tensors that tell when they are changed in place"
            got = f"an inference tensor of {shape_of(self.tensor)}, which does not"
            fix = 'watch with store="copy", or run the model under torch.no_grad()'
            raise build(StaleError, "store", expected, got, fix=fix)
        if self.tensor._version != self._version or not self._same():
            raise self._changed()
        return self.tensor

    def holds(self, x: Tensor) -> bool:
        """Whether x, the same tensor, has not changed since."""
        return self._version is not None and self._same()

    def _same(self) -> bool:
        return self._sum is None or torch.equal(self._sum, self._summed())

    def _summed(self) -> Tensor:
        with torch.no_grad():
            return _bits(self.tensor).sum(dtype=torch.int64)

    def _changed(self) -> StaleError:
        return build(
            StaleError,
            "store",
            "q, k, mask and bias as the model left them",
            f"a tensor of {shape_of(self.tensor)} changed in place since",
            "the model writes into it again, as static caches do",
            'watch with store="copy"',
        )


class Weight(Referenced):
    """A weight of the model's own, from which operands are computed on demand."""

    def _changed(self) -> StaleError:
        return build(
            StaleError,
            "store",
            "the weights that the model had when it ran",
            f"a weight of {shape_of(self.tensor)} changed in place since",
            "a native operator keeps q and k to itself: they are computed when asked for",
            "read or save a recording before the model is trained or loaded",
        )


class OnDisk:
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

    def holds(self, x: Tensor) -> bool:
        """Whether it has the same bits as x."""
        return same(self.get(), x.to(self._dtype))


class Computed:
    """Heads that a native operator projects, computed from x and the weights."""

    def __init__(self, x: Kept, weight: Kept, bias: Kept | None, heads: int) -> None:
        self.x, self.weight, self.bias, self.heads = x, weight, bias, heads

    @property
    def shape(self) -> tuple[int, ...]:
        """(b, heads, steps, d)."""
        *lead, steps, _ = self.x.shape
        return (*lead, self.heads, steps, self.weight.shape[0] // self.heads)

    def get(self) -> Tensor:
        """Return the heads, computed; raises `StaleError` if the weights have changed."""
        bias = None if self.bias is None else self.bias.get()
        weight = self.weight.get()
        return Projected(self.x.get().to(weight.dtype), weight, bias, self.heads).tensor()


def packed(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of x that holds its entries and nothing else, in the order of their memory.

    Expanded axes stay expanded.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return packed(x, dtype)
    x = x.detach()
    part = _unexpanded(x)
    found = mmap_pool.empty_like(part, dtype or x.dtype).copy_(part)
    return found if part is x else found.expand(x.shape)


def _unexpanded(x: Tensor) -> Tensor:
    """X without its expanded axes: one entry along each axis of stride 0."""
    for axis, step in enumerate(x.stride()):
        if not step and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    return x


class Spool:
    """A temporary file of tensors that goes away with the last of them."""

    def __init__(self, folder: str | None = None) -> None:
        handle, path = tempfile.mkstemp(prefix="intently-", suffix=".watch", dir=folder)
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._size, self._map = 0, torch.empty(0, dtype=torch.uint8)
        self.path, self._owner = path, os.getpid()

    def write(self, x: Tensor, dtype: torch.dtype) -> int:
        """Append the entries of x and return where they begin; raises `OSError` when full."""
        before = self._size
        at = -(-before // 64) * 64
        axis = next((n for n, size in enumerate(x.shape) if size > 1), 0)
        x = x if x.ndim else x[None]
        steps = max(1, PIECE * x.shape[axis] // max(1, x.numel() * dtype.itemsize))
        try:
            self._put(b"\0" * (at - before))
            for part in x.split(steps, axis) if x.numel() else ():
                flat = _flat(part.to(dtype).cpu()).view(torch.uint8)
                self._put(flat.numpy().data)
        except OSError:
            self._cut(before)
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

    def _cut(self, size: int) -> None:
        """Give back the space of a failed write."""
        self._size = size
        with suppress(OSError):
            self._file.seek(size)
            self._file.truncate()

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

    Raises `ArgumentError` for an unknown strategy, for a ``dtype`` that is not floating-point, and
    for any ``dtype`` with references, which cannot change theirs.
    """

    def __init__(self, kind: str, dtype: torch.dtype | None) -> None:
        check_word(kind, "store", ("copy", "reference", "disk"))
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise build(ArgumentError, "dtype", "a floating-point dtype, or None", repr(dtype))
        if dtype is not None and kind == "reference":
            expected, cause = 'None with store="reference"', "a reference is the model's own tensor"
            fix = 'store="copy" keeps it in another dtype'
            raise build(ArgumentError, "dtype", expected, dtype, cause, fix)
        self.kind, self.dtype = kind, dtype
        self._spool = Spool() if kind == "disk" else None
        self._seen: dict[tuple[Any, ...], tuple[StorageWeakRef, Held | OnDisk | Referenced]] = {}

    def keep(self, x: Tensor | Projected) -> Kept:
        """Keep an operand."""
        if isinstance(x, Projected):
            bias = None if x.bias is None else self._weight(x.bias)
            return Computed(self.once(x.x, self.dtype), self._weight(x.weight), bias, x.heads)
        return Referenced(x) if self.kind == "reference" else self.own(x, self.dtype)

    def _weight(self, x: Tensor) -> Kept:
        return Weight(x, looked=True) if self.kind == "reference" else self.once(x, look=True)

    def own(self, x: Tensor, dtype: torch.dtype | None = None) -> Held | OnDisk:
        """Keep a copy of x, whatever the strategy."""
        if self._spool is None:
            return Held(packed(x, dtype))
        part, dtype = _unexpanded(x.detach()), dtype or x.dtype
        at = self._spool.write(part, dtype)
        return OnDisk(self._spool, at, dtype, part.shape, x.shape)

    def once(self, x: Tensor, dtype: torch.dtype | None = None, look: bool = False) -> Kept:
        """Keep x, or return the earlier copy of the same tensor.

        PyTorch does not count every change of a tensor: small tensors, inference tensors and those
        with ``look`` are compared with the copy.
        """
        key = identity(x)
        look = look or x.is_inference() or small(x)
        alive, kept = self._seen.get(key, (None, None))
        if kept is None or alive is None or alive.expired() or (look and not kept.holds(x)):
            kept = Referenced(x, look) if self.kind == "reference" else self.own(x, dtype)
            self._seen[key] = StorageWeakRef(x.untyped_storage()), kept
        return kept

    def how(self, how: AttentionSpec) -> KeptSpec:
        """Keep the tensors of score, mask, bias, scale and sinks, each once."""
        tensors: list[Kept] = []

        def change(x: Tensor) -> Tensor:
            kept = self.once(x)
            if self.kind == "reference":
                tensors.append(kept)
                return x.detach()
            return kept.get()

        changed = {
            field: value.replaced(change) if isinstance(value, Value) else change(value)
            for field in ("score", "mask", "bias", "scale", "sinks", "weights")
            if isinstance(value := getattr(how, field), (Value, Tensor))
        }
        return KeptSpec(replace(how, **changed) if changed else how, tuple(tensors))

    def join(self, parts: Sequence[Tensor]) -> Kept:
        """Keep tensors (…, n, d) one below the other, as one."""
        whole = mmap_pool.joined(parts)
        return self.own(whole, self.dtype) if self._spool else Held(whole)

    def forget(self) -> None:
        """Forget which tensors came before."""
        self._seen.clear()


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors (…) of one shape and dtype hold the same bits."""
    return torch.equal(_bits(a), _bits(b))


def small(x: Tensor) -> bool:
    """Whether a tensor is cheap to compare."""
    return _unexpanded(x).numel() <= SMALL


def _flat(x: Tensor) -> Tensor:
    """The entries of a tensor in a row; that of an expanded number has a stride of 1, too."""
    x = x.contiguous()
    return x.as_strided((x.numel(),), (1,))


def _bits(x: Tensor) -> Tensor:
    """The bits of a tensor (…), as int64 if they fit, which is faster."""
    flat = _flat(_unexpanded(x.detach())).view(torch.uint8)
    fits = not flat.numel() % 8 and not flat.storage_offset() % 8
    return flat.view(torch.int64) if fits else flat


def identity(x: Tensor) -> tuple[Any, ...]:
    """A key that stays the same while a tensor is unchanged and its storage lives."""
    version = None if x.is_inference() else x._version
    storage = x.untyped_storage()
    return storage._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype, version
