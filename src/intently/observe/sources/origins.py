"""Where the numbers of a tensor come from: which entry of which earlier tensor each is a copy of.

Every operation that moves numbers (slices, joins, gathers, pads, copies) is noted, and done once
more when somebody asks, on the places of the numbers: whole numbers that stand for a tensor and an
entry of its memory. Views share the memory of what they view and need nothing. What computes new
numbers starts anew, except that sums, factors and masks entry by entry keep the places of the first
tensor. The same operations on the same places are the same `Memory`, so layers that are alike share
what is known of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from intently.observe.watching.inputs import storage_of

BITS = 40
"""Bits of a place that count entries; the ones above are the number of a tensor."""
NOWHERE = -1
"""The place of a constant, such as padding."""

MOVES = frozenset(
    (
        *("cat", "stack", "clone", "gather", "index", "index_select", "constant_pad_nd", "repeat"),
        *("roll", "flip", "_to_copy", "take", "slice_scatter", "select_scatter", "index_put"),
        *("scatter", "unfold_copy", "narrow_copy", "slice_copy", "im2col", "_unsafe_index"),
    )
)
"""Operations that move numbers into a new memory."""
LAYS = frozenset(
    ("gather", "index_select", "constant_pad_nd", "roll", "take", "unfold_copy", "im2col")
)
"""Those that lay numbers out anew, as in blocks or shifted windows."""
WRITES = frozenset(("copy", "index_put", "scatter", "fill", "zero", "_index_put_impl"))
"""Operations that write into the memory of their first argument."""
FRESH = ("zeros", "ones", "full", "empty", "new_", "scalar_tensor", "arange", "tril", "triu")
"""How the names of operations begin that make constants."""
SAME = frozenset(
    (
        *("mul", "div", "add", "sub", "neg", "masked_fill", "where", "native_dropout", "tanh"),
        *("clamp", "clamp_min", "clamp_max", "maximum", "minimum", "nan_to_num", "bernoulli"),
    )
)
"""Operations entry by entry, after which each number stands for the same place."""

Shape: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""The sizes, steps and offset of a view."""


class Memory:
    """The places of a memory: those of one tensor, or made by an operation when asked.

    ``numbers`` are the tensors that they may be of, ``origin`` the only one, whose memory it is.
    ``before`` is what a write changed.
    """

    def __init__(
        self,
        origin: int | None,
        numbers: frozenset[int],
        make: Callable[[], Tensor] | None = None,
        before: Memory | None = None,
    ) -> None:
        self.origin, self.numbers, self.before = origin, numbers, before
        self._make, self._made = make, None
        self.users = 0

    def flat(self) -> Tensor:
        """The places (n,) of all entries."""
        if self._made is None:
            assert self._make is not None
            self._made = self._make()
        return self._made

    def handed(self) -> Tensor:
        """The same, to be written over: a copy if somebody else needs them."""
        made = self.flat()
        if self.users > 1:
            return made.clone()
        self._made = None
        return made

    def forget(self) -> None:
        """Free the places, which can be made again."""
        self._made = None


@dataclass(frozen=True)
class View:
    """A tensor whose places are known: those of a memory, seen in a shape."""

    memory: Memory
    shape: Shape
    device: torch.device

    def kept(self) -> View:
        """The same, counted as a use of its memory."""
        self.memory.users += 1
        return self

    def places(self) -> Tensor:
        """The places (int64), in the shape of the tensor."""
        (sizes, steps, offset), origin = self.shape, self.memory.origin
        if origin is None:
            return self.memory.flat().as_strided(*self.shape)
        if origin == NOWHERE:
            return torch.full((), NOWHERE, device=self.device).expand(sizes)
        found = torch.full((), (origin << BITS) + offset, device=self.device)
        for axis, (n, step) in enumerate(zip(sizes, steps)):
            some = torch.arange(n, device=self.device) * step
            found = found + some.view(-1, *(1,) * (len(sizes) - 1 - axis))
        return found.expand(sizes)


class Index:
    """An argument that says which numbers move, compared by what it holds."""

    def __init__(self, x: Tensor) -> None:
        self.tensor = x.clone()
        some = x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())]
        self._held = tuple(x.shape), x.dtype, some.cpu().contiguous().numpy().tobytes()

    def __hash__(self) -> int:
        return hash(self._held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and self._held == other._held


class Origins:
    """The memories of a module, by what was done to them.

    ``known`` are those of the layers before, ``writes`` those that were changed.
    """

    def __init__(self, known: dict[Any, Memory]) -> None:
        self.writes: list[Memory] = []
        self.laid: dict[int, str] = {}
        """The operation that laid out the numbers of a tensor, by the number of the tensor."""
        self._all = known
        self._held: dict[int, tuple[StorageWeakRef, Memory]] = {}
        self._count = 0

    def view(self, x: Tensor) -> View:
        """How the places of x will be found."""
        memory = self._known(x)
        if memory is None:
            number = self.begin(x) if x.ndim else NOWHERE
            memory = self._origin(number)
        return View(memory, _shape(x), x.device)

    def begin(self, x: Tensor) -> int:
        """Let the memory of x be an origin, and return its number."""
        self._count += 1
        self._keep(x, self._origin(self._count))
        return self._count

    def saw(self, name: str, func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> None:
        """Follow the numbers through one operation."""
        out = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(out, Tensor) or not out.is_floating_point() or not _plain(out):
            return
        first = args[0] if args else None
        if isinstance(first, Tensor) and _place(first) == _place(out):
            if name in WRITES and func._schema.is_mutable:
                self._written(name, func, args, kwargs)
        elif name in MOVES:
            self._moved(name, func, args, kwargs, out)
        elif name in SAME:
            self._same(args, out)
        elif name.startswith(FRESH):
            self._keep(out, self._origin(NOWHERE))
        else:
            self._held.pop(_place(out), None)

    def forget(self) -> None:
        """Free all places, which can be made again."""
        for memory in self._all.values():
            memory.forget()

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any, out: Tensor) -> None:
        if name in ("_to_copy", "clone"):
            func, args, kwargs = None, args[:1], {}
        elif name == "constant_pad_nd":
            args = *args[:2], float(NOWHERE)
        shape, length = _shape(out), _length(out)
        given = tuple(map(self._frozen, args))
        if name in LAYS:
            self.laid |= {n: name for view in _views(given) for n in view.memory.numbers}
        key = func, given, tuple(sorted(kwargs.items())), shape, length
        made = partial(_moved, func, given, kwargs, shape, length, out.device)
        self._keep(out, self._memory(key, given, made))

    def _written(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        target = args[0]
        before = self.view(target.as_strided((_length(target),), (1,), 0))
        given = () if name in ("fill", "zero") else tuple(map(self._frozen, args[1:]))
        key = func, before, _shape(target), given, tuple(sorted(kwargs.items()))
        made = partial(_written, name, func, before, _shape(target), given, kwargs)
        memory = self._memory(key, (before, *given), made, before.memory)
        self._keep(target, memory)
        self.writes.append(memory)

    def _same(self, args: Any, out: Tensor) -> None:
        tensors = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        full = [x for x in tensors if x.shape == out.shape and not self._is_constant(x)]
        memory = self._known(full[0]) if full else None
        if memory is None:
            self._held.pop(_place(out), None)
        elif (_shape(full[0]), _length(full[0])) == (_shape(out), _length(out)):
            self._keep(out, memory)
        else:
            self._moved("clone", None, full[:1], {}, out)

    def _frozen(self, x: Any) -> Any:
        """An argument that can be compared; numbers that are no indices do not matter."""
        if isinstance(x, Tensor):
            return self.view(x) if x.is_floating_point() else Index(x)
        if isinstance(x, (list, tuple)):
            return tuple(map(self._frozen, x))
        return NOWHERE if isinstance(x, float) else x

    def _memory(
        self, key: Any, given: Any, make: Callable[[], Tensor], before: Memory | None = None
    ) -> Memory:
        found = self._all.get(key)
        if found is None:
            parts = [view.memory for view in _views(given)]
            for part in parts:
                part.users += 1
            numbers = frozenset[int]().union(*(part.numbers for part in parts))
            found = self._all[key] = Memory(None, numbers, make, before)
        return found

    def _origin(self, number: int) -> Memory:
        if number not in self._all:
            numbers = frozenset(() if number == NOWHERE else (number,))
            self._all[number] = Memory(number, numbers)
        return self._all[number]

    def _is_constant(self, x: Tensor) -> bool:
        memory = self._known(x)
        return memory is not None and memory.origin == NOWHERE

    def _known(self, x: Tensor) -> Memory | None:
        alive, memory = self._held.get(_place(x), (None, None))
        return None if alive is None or alive.expired() else memory

    def _keep(self, x: Tensor, memory: Memory) -> None:
        if len(self._held) % 64 == 63:
            self._held = {k: pair for k, pair in self._held.items() if not pair[0].expired()}
        self._held[_place(x)] = StorageWeakRef(x.untyped_storage()), memory


def replaced(write: Memory) -> tuple[Tensor, Tensor]:
    """Places that a write replaced, and those that it wrote over them."""
    assert write.before is not None
    old, new = write.before.flat(), write.flat()
    other = (old != new) & (old != NOWHERE) & (new != NOWHERE)
    return old[other], new[other]


def _moved(
    func: Any, given: Any, kwargs: Any, shape: Shape, length: int, device: torch.device
) -> Tensor:
    args = [_thawed(x) for x in given]
    made = args[0] if func is None else func(*args, **kwargs)
    if made.is_contiguous() and shape == _shape(made) and made.numel() == length:
        return made.flatten() if func is not None else made.clone().flatten()
    flat = torch.full((length,), NOWHERE, dtype=torch.int64, device=device)
    flat.as_strided(*shape).copy_(made)
    return flat


def _written(name: str, func: Any, before: View, shape: Shape, given: Any, kwargs: Any) -> Tensor:
    if before.memory.origin is None:
        flat = before.memory.handed()
    else:
        flat = before.places().clone(memory_format=torch.contiguous_format)
    place = flat.as_strided(*shape)
    if name in ("fill", "zero"):
        place.fill_(NOWHERE)
    elif name == "copy":
        place.copy_(given[0].places())
    else:
        func(place, *map(_thawed, given), **kwargs)
    return flat


def _thawed(x: Any) -> Any:
    """An argument with places instead of numbers."""
    if isinstance(x, tuple):
        return [_thawed(y) for y in x]
    return x.places() if isinstance(x, View) else x.tensor if isinstance(x, Index) else x


def _views(given: Any) -> list[View]:
    if isinstance(given, tuple):
        return [view for x in given for view in _views(x)]
    return [given] if isinstance(given, View) else []


def _shape(x: Tensor) -> Shape:
    return tuple(x.shape), x.stride(), int(x.storage_offset())


def _place(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _length(x: Tensor) -> int:
    """How many numbers the memory of x holds."""
    return x.untyped_storage().nbytes() // x.element_size()


def _plain(x: Tensor) -> bool:
    if x.layout != torch.strided or x.is_nested or x.device.type == "meta":
        return False
    return storage_of(x) is not None
