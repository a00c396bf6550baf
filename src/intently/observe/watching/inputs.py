"""Whether the keys of a call come from elsewhere than its queries, by the memory of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from intently.nn import MultiHeadAttention
from intently.observe.watching.call import Call, Projected

TAKEN = {nn.MultiheadAttention: ("query", "key", "value"), MultiHeadAttention: ("x", "context")}
"""Modules that project in ways that are not seen, and what they take."""


class Inputs:
    """What the forward of a module was given, and of what the parts that ran in it made others."""

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.module, self._args, self._kwargs = module, args, kwargs
        self._made: dict[int, tuple[StorageWeakRef, StorageWeakRef]] = {}

    def tensors(self) -> Iterator[Tensor]:
        """The tensors it was given, in order."""
        return (x for x in (*self._args, *self._kwargs.values()) if isinstance(x, Tensor))

    def taken(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Queries, keys and values as one of `TAKEN` gets them; None for other modules."""
        names = next((x for kind, x in TAKEN.items() if isinstance(self.module, kind)), ())
        given = dict(zip(names, self._args)) | dict(self._kwargs)
        found = [given[name] for name in names if isinstance(given.get(name), Tensor)]
        return (found[0], found[1], found[-1]) if len(found) == len(names) > 0 else None

    def shared(self, place: int) -> bool:
        """Whether it was given several parts of one memory, which need not be of one text."""
        return len({_view(x) for x in self.tensors() if _memory(x) == place}) > 1

    def makes(self, x: Any, y: Any) -> None:
        """Remember that ``y``, or the first of several, was made of x."""
        y = y[0] if isinstance(y, (tuple, list)) and y else y
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            return
        before, after = storage_of(x), storage_of(y)
        if before is not None and after is not None and before._cdata != after._cdata:
            known = self._made.get(before._cdata)
            root = known[1] if known and not known[0].expired() else StorageWeakRef(before)
            self._made[after._cdata] = StorageWeakRef(after), root

    def made(self, x: Tensor) -> bool:
        """Whether a part that ran in this forward made x."""
        return _memory(x) in self._made

    def root(self, x: Tensor) -> int | None:
        """The memory that x was made of in the end."""
        place = _memory(x)
        found = None if place is None else self._made.get(place)
        if found is None:
            return place
        return None if any(x.expired() for x in found) else found[1].cdata


def comes_from_elsewhere(call: Call, around: Sequence[Inputs]) -> bool | None:
    """Whether the keys of a call come from elsewhere than its queries; None if that is not seen.

    ``around`` are the inputs of the running forwards, the innermost last.
    """
    q, k, v = (x.x if isinstance(x, Projected) else x for x in (call.q, call.k, call.v))
    if q is k and isinstance(call.q, Projected):
        return False
    if _memory(q) is not None and _memory(q) in (_memory(k), _memory(v)):
        return False if any(inputs.made(q) for inputs in around) else None  # by one projection
    for n, inputs in reversed([*enumerate(around)]):
        taken = inputs.taken()
        if taken is not None:
            return _given(*taken, around[n - 1] if n else None)
        key = next((x for x in (v, k) if inputs.made(x)), None)
        if key is not None:
            return _projected(inputs, q, key)
    return None


def _given(queries: Tensor, keys: Tensor, values: Tensor, outer: Inputs | None) -> bool | None:
    """The same of tensors that a module got, in the forward ``outer``."""
    for x in (keys, values):
        if _memory(queries) == _memory(x):
            return False if _view(queries) == _view(x) else None
    if outer is None:
        return True
    home = outer.root(queries)
    if home is None or home not in map(outer.root, (keys, values)):
        return True
    return None if outer.shared(home) else False


def _projected(inputs: Inputs, q: Tensor, key: Tensor) -> bool | None:
    """The same of keys that a part of a module made: its first input is what queries come from."""
    given, home = [_memory(x) for x in inputs.tensors()], inputs.root(key)
    asks = inputs.root(q)
    if home is None or inputs.shared(home):
        return None
    if asks == home:
        return False
    if home not in given:
        return None
    return home != (asks if asks in given else given[0])


def storage_of(x: Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor; None if it has none (sparse, under torch.func) or is nested."""
    if x.is_nested:
        return None
    try:
        return x.untyped_storage()
    except NotImplementedError:
        return None


def _view(x: Tensor) -> tuple[Any, ...]:
    return x.storage_offset(), x.shape


def _memory(x: Tensor) -> int | None:
    storage = storage_of(x)
    return None if storage is None else storage._cdata
