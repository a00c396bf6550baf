"""Where the numbers of a tensor come from: which entry of which earlier tensor each is a copy of.

Every operation that moves numbers (slices, joins, gathers, pads, copies) is done once more, on the
places of the numbers: whole numbers that stand for a tensor and an entry of its memory. Views share
the memory of what they view and need nothing. What computes new numbers starts anew, except that
sums, factors and masks entry by entry keep the places of the first tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

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


class Origins:
    """The places of all numbers in the memories that were seen.

    ``replaced`` are places, and those that were written over them.
    """

    def __init__(self) -> None:
        self.replaced: list[tuple[Tensor, Tensor]] = []
        self._held: dict[int, tuple[StorageWeakRef, int | Tensor]] = {}
        self._count = 0

    def of(self, x: Tensor) -> Tensor:
        """The places (int64) of the numbers of x, in its shape."""
        held = self._known(x)
        if held is None:
            held = self.begin(x) if x.ndim else NOWHERE
        if isinstance(held, Tensor):
            return held.as_strided(x.shape, x.stride(), x.storage_offset())
        if held == NOWHERE:
            return torch.full((), NOWHERE, device=x.device).expand(x.shape)
        found = torch.full((), (held << BITS) + int(x.storage_offset()), device=x.device)
        for axis, (n, step) in enumerate(zip(x.shape, x.stride())):
            places = torch.arange(n, device=x.device) * step
            found = found + places.view(-1, *(1,) * (x.ndim - 1 - axis))
        return found.expand(x.shape)

    def begin(self, x: Tensor) -> int:
        """Let the memory of x be an origin, and return its number."""
        self._count += 1
        self._keep(x, self._count)
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
            self._keep(out, NOWHERE)
        else:
            self._held.pop(_place(out), None)

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any, out: Tensor) -> None:
        if name == "_to_copy" or name == "clone":
            made = self.of(args[0])
        elif name == "constant_pad_nd":
            made = func(self.of(args[0]), args[1], NOWHERE)
        else:
            made = func(*(self._shadow(x) for x in args), **kwargs)
        flat = torch.full((_length(out),), NOWHERE, dtype=torch.int64, device=out.device)
        flat.as_strided(out.shape, out.stride(), out.storage_offset()).copy_(made)
        self._keep(out, flat)

    def _written(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        target = args[0]
        held = self._known(target)
        if not isinstance(held, Tensor):
            whole = target.as_strided((_length(target),), (1,), 0)
            held = self.of(whole).clone()
            self._keep(target, held)
        place = held.as_strided(target.shape, target.stride(), target.storage_offset())
        if name in ("fill", "zero"):
            place.fill_(NOWHERE)
            return
        before = place.clone()
        if name == "copy":
            place.copy_(self.of(args[1]))
        else:
            func(place, *(self._shadow(x) for x in args[1:]), **kwargs)
        other = (before != place) & (before != NOWHERE) & (place != NOWHERE)
        if bool(other.any()):
            self.replaced.append((before[other], place[other]))

    def _same(self, args: Any, out: Tensor) -> None:
        tensors = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        full = [x for x in tensors if x.shape == out.shape and not self._is_constant(x)]
        held = self._known(full[0]) if full else None
        if held is None:
            self._held.pop(_place(out), None)
            return
        x = full[0]
        alike = (x.stride(), x.storage_offset(), _length(x)) == (
            out.stride(),
            out.storage_offset(),
            _length(out),
        )
        if isinstance(held, int) and alike:
            self._keep(out, held)
            return
        self._moved("clone", None, [x], {}, out)

    def _shadow(self, x: Any) -> Any:
        """An argument with places instead of numbers; indices stay as they are."""
        if isinstance(x, Tensor) and x.is_floating_point():
            return self.of(x)
        if isinstance(x, (list, tuple)):
            return [self._shadow(y) for y in x]
        return NOWHERE if isinstance(x, float) else x

    def _is_constant(self, x: Tensor) -> bool:
        held = self._known(x)
        return isinstance(held, int) and held == NOWHERE

    def _known(self, x: Tensor) -> int | Tensor | None:
        alive, held = self._held.get(_place(x), (None, None))
        return None if alive is None or alive.expired() else held

    def _keep(self, x: Tensor, held: int | Tensor) -> None:
        if len(self._held) % 64 == 63:
            self._held = {k: pair for k, pair in self._held.items() if not pair[0].expired()}
        self._held[_place(x)] = StorageWeakRef(x.untyped_storage()), held


def _place(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _length(x: Tensor) -> int:
    """How many numbers the memory of x holds."""
    return x.untyped_storage().nbytes() // x.element_size()


def _plain(x: Tensor) -> bool:
    return x.layout == torch.strided and not x.is_nested and x.device.type != "meta"
