"""Names of modules, patterns over them, and the modules that run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from intently.errors import ArgumentError, KindError, build
from intently.observe.watching.inputs import Inputs

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
        for pattern in self._patterns or ():
            if model is not None:
                self._check(pattern)

    def of(self, module: nn.Module | None, running: Sequence[nn.Module]) -> str | None:
        """The name of ``module``, else of the innermost running module; None outside the model."""
        if self._model is None:
            return _free_name(module, running)
        if module is not None and module in self._names:
            return self._names[module]
        for candidate in reversed(running):
            if candidate in self._names:
                return self._names[candidate]
        return None

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
    inside = [
        name for name, x in getattr(model, "__dict__", {}).items() if isinstance(x, nn.Module)
    ]
    inside.sort(key=lambda name: name not in ("model", "unet", "transformer"))
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
    patterns = (layers,) if isinstance(layers, str) else tuple(layers)
    for pattern in patterns:
        if not isinstance(pattern, str):
            expected = "names of modules as text, or patterns of them"
            raise build(KindError, "layers", expected, type(pattern).__name__)
    return patterns


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the name of a module, or of a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: n + 1]), pattern) for n in range(len(parts)))
