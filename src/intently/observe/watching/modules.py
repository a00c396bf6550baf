"""The modules of a model: their names, those that run, and what these made of their inputs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from intently.errors import ArgumentError, KindError, build
from intently.nn import MultiHeadAttention
from intently.observe.watching.call import Call, Projected, given

OUTSIDE = "attention"
"""The name of attention that no module runs."""


class Running(list[nn.Module]):
    """The modules that run, the innermost last; ``numbers`` count their forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self.inputs: list[Inputs] = []
        self._count = 0

    def enter(self, inputs: Inputs) -> None:
        """Enter a forward."""
        self._count += 1
        self.numbers.append(self._count)
        self.inputs.append(inputs)
        self.append(inputs.module)

    def leave(self, result: Any) -> None:
        """Leave the innermost, which returned ``result``."""
        self.numbers.pop()
        self.pop()
        self.makes(next(self.inputs.pop().tensors(), None), result)

    def makes(self, x: Any, y: Any) -> None:
        """Remember in the innermost forward that y was made of x."""
        if self.inputs:
            self.inputs[-1].makes(x, y)


class Names:
    """The names of a model's modules, or of whatever runs if no model is watched.

    Raises `ArgumentError` with existing names for patterns that match nothing, and `KindError`
    for anything but a module.
    """

    def __init__(self, model: nn.Module | None, layers: str | Sequence[str] | None) -> None:
        if model is not None:
            check_module(model, "an nn.Module, or None for all attention")
        self._model = model
        self._names = {} if model is None else _named(model)
        self._patterns = None if layers is None else _patterns(layers)
        for pattern in (self._patterns or ()) if model is not None else ():
            self._check(pattern)

    def of(self, module: nn.Module | None, running: Sequence[nn.Module]) -> str | None:
        """The name of ``module``, else of the innermost running module; None outside the model."""
        if self._model is None:
            return _free_name(module, running)
        known = (self._names[m] for m in (module, *reversed(running)) if m in self._names)
        return next(known, None)

    def forward(self, module: nn.Module | None, running: Running) -> int | None:
        """The number of the forward of ``module``, else of the innermost running one with a name.

        None for calls that no module makes.
        """
        numbers = (
            number
            for inner, number in zip(reversed(running), reversed(running.numbers))
            if inner is module or (module is None and self.of(inner, ()) is not None)
        )
        return next(numbers, None)

    def wanted(self, name: str) -> bool:
        """Whether a pattern asks for the module."""
        return self._patterns is None or any(matches(name, p) for p in self._patterns)

    @property
    def modules(self) -> Mapping[nn.Module, str]:
        """The modules of the model, and their names."""
        return self._names

    def chosen(self) -> dict[nn.Module, str]:
        """The modules of the model that a pattern asks for, and their names."""
        return {module: name for module, name in self._names.items() if self.wanted(name)}

    def __contains__(self, module: nn.Module) -> bool:
        """Whether a module belongs to the watched model."""
        return module in self._names

    def _check(self, pattern: str) -> None:
        names = list(self._names.values())
        if not any(matches(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, 3, 0.3)
            some, told = (near, "the nearest") if near else (names[1:4] or names, "the first")
            fix = f"{told} are {', '.join(map(repr, some))}"
            expected = "names of modules, or patterns that match some"
            raise build(ArgumentError, "layers", expected, repr(pattern), fix=fix)


def check_module(model: object, expected: str = "an nn.Module") -> None:
    """Raise `KindError` for anything but a module, naming the modules inside it."""
    if isinstance(model, nn.Module):
        return
    held = getattr(model, "__dict__", {}).items()
    first = sorted(held, key=lambda item: item[0] not in ("model", "unet", "transformer"))
    inside = [name for name, x in first if isinstance(x, nn.Module)]
    if any(kind.__module__.split(".")[0] == "keras" for kind in type(model).__mro__):
        fix = "Keras models are nn.Modules on its torch backend only: set KERAS_BACKEND=torch"
    elif inside:
        fix = f"pass a module inside it: {', '.join(f'pipeline.{name}' for name in inside[:3])}"
    else:
        fix = "pass the module inside it, such as pipeline.model or pipeline.unet"
    raise build(KindError, "model", expected, type(model).__name__, fix=fix)


def _named(model: nn.Module) -> dict[nn.Module, str]:
    """The names of all modules, including Keras' layers, which `named_modules` does not list."""
    names = {m: name or type(m).__name__ for name, m in model.named_modules()}
    for layer in getattr(model, "_flatten_layers", list)():
        if layer not in names:
            path = layer.path or layer.name
            names[layer] = path.removeprefix(f"{getattr(model, 'name', '')}/").replace("/", ".")
    return names


def _free_name(module: nn.Module | None, running: Sequence[nn.Module]) -> str:
    """The class of the outermost running module, and the path to the innermost."""
    if not running:
        return OUTSIDE if module is None else type(module).__name__
    root = running[0]
    names = _named(root) | {root: ""}
    inner = next(m for m in (module, *reversed(running)) if m in names)
    return ".".join(filter(None, (type(root).__name__, names[inner])))


def _patterns(layers: str | Sequence[str]) -> tuple[str, ...]:
    listed = not isinstance(layers, str) and isinstance(layers, Iterable)
    patterns: tuple[Any, ...] = tuple(layers) if listed else (layers,)
    for pattern in patterns:
        if not isinstance(pattern, str):
            expected = "names of modules as text, or patterns of them"
            raise build(KindError, "layers", expected, type(pattern).__name__)
    return patterns


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the name of a module, or of a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: n + 1]), pattern) for n in range(len(parts)))


# --- where keys come from -------------------------------------------------------------------------

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
            alive, root = self._made.get(before._cdata, (None, None))
            if root is None or alive is None or alive.expired():
                root = StorageWeakRef(before)
            self._made[after._cdata] = StorageWeakRef(after), root

    def made(self, x: Tensor) -> bool:
        """Whether a part that ran in this forward made x."""
        return _memory(x) in self._made

    def root(self, x: Tensor) -> int | None:
        """The memory that x was made of in the end."""
        place = _memory(x)
        alive, root = self._made.get(place, (None, None)) if place is not None else (None, None)
        if root is None or alive is None:
            return place
        return None if alive.expired() or root.expired() else root.cdata


def comes_from_elsewhere(call: Call, around: Sequence[Inputs]) -> bool | None:
    """Whether the keys of a call come from elsewhere than its queries; None if that is not seen.

    ``around`` are the inputs of the running forwards, the innermost last.
    """
    q, k, v = map(given, (call.q, call.k, call.v))
    if q is k and isinstance(call.q, Projected):
        return False
    if _memory(q) is not None and _memory(q) in (_memory(k), _memory(v)):
        return False if any(inputs.made(q) for inputs in around) else None  # by one projection
    for n, inputs in reversed([*enumerate(around)]):
        taken = inputs.taken()
        if taken is not None:
            return _taken(*taken, around[n - 1] if n else None)
        key = next((x for x in (v, k) if inputs.made(x)), None)
        if key is not None:
            return _projected(inputs, q, key)
    return None


def _taken(queries: Tensor, keys: Tensor, values: Tensor, outer: Inputs | None) -> bool | None:
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
    given, home, asks = [_memory(x) for x in inputs.tensors()], inputs.root(key), inputs.root(q)
    if home is None or inputs.shared(home):
        return None
    if asks == home:
        return False
    return None if home not in given else home != (asks if asks in given else given[0])


def storage_of(x: Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor; None if it has none (sparse, under torch.func) or is nested."""
    if x.is_nested:
        return None
    try:
        return x.untyped_storage()
    except NotImplementedError:
        return None


def share(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are parts of one memory."""
    place = _memory(x)
    return place is not None and place == _memory(y)


def _view(x: Tensor) -> tuple[Any, ...]:
    return x.storage_offset(), x.shape


def _memory(x: Tensor) -> int | None:
    storage = storage_of(x)
    return None if storage is None else storage._cdata
