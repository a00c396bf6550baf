"""`Value`, the base of masks, scores and biases: an immutable value made of its arguments.

The arguments are kept in ``parts``. They determine the tensors that a value holds, the same value
with other tensors, and a text that a compiled graph can carry instead of the object.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Self

from torch import Tensor


class Value:
    """An immutable rule; ``type(self)(*self.parts)`` recreates it."""

    _kinds: ClassVar[dict[str, type[Value]]] = {}
    _kind: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._kind = f"{cls.__module__}:{cls.__qualname__}:{len(Value._kinds)}"
        Value._kinds[cls._kind] = cls

    parts: tuple[Any, ...] = ()

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def remade(self) -> bool:
        """Whether the parts recreate the value: a class outside the package may omit some."""
        if type(self).__module__.startswith("intently."):
            return all(part.remade() for part in self.parts if isinstance(part, Value))
        try:
            mine, other = vars(self), vars(type(self)(*self.parts))
        except TypeError:
            return False
        same = mine.keys() == other.keys()
        return same and all(mine[n] is other[n] or _equal(mine[n], other[n]) for n in mine)

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors the value holds, its inner values' included."""
        found: list[Tensor] = []
        for part in self.parts:
            if isinstance(part, Tensor):
                found.append(part)
            elif isinstance(part, Value):
                found.extend(part.tensors())
        return tuple(found)

    def replaced(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same value with every tensor x in it replaced by ``change(x)``."""
        if not self.tensors():
            return self
        return type(self)(
            *[
                change(p)
                if isinstance(p, Tensor)
                else p.replaced(change)
                if isinstance(p, Value)
                else p
                for p in self.parts
            ]
        )

    def frozen(self) -> tuple[Any, ...]:
        """Return the value as nested tuples of plain data; an empty list stands for each tensor."""
        return (
            self._kind,
            *[
                [] if isinstance(p, Tensor) else p.frozen() if isinstance(p, Value) else p
                for p in self.parts
            ],
        )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(x is y or _equal(x, y) for x, y in zip(a, b))
    return isinstance(a, (int, float, str, bool, type(None))) and type(a) is type(b) and a == b


def freeze(*values: Value | None) -> tuple[str, list[Tensor]]:
    """Return values as a text and the tensors in them, for `thaw`."""
    form = repr(tuple(None if value is None else value.frozen() for value in values))
    return form, [x for value in values if value is not None for x in value.tensors()]


def thaw(form: str, tensors: Sequence[Tensor]) -> list[Value | None]:
    """Recreate the values that `freeze` turned into text, with these tensors."""
    left = iter(tensors)
    return [None if value is None else _thaw(value, left) for value in _read(form)]


def _thaw(form: tuple[Any, ...], left: Iterator[Tensor]) -> Value:
    kind, *parts = form
    made = [
        _thaw(p, left) if isinstance(p, tuple) else next(left) if isinstance(p, list) else p
        for p in parts
    ]
    return Value._kinds[kind](*made)


@lru_cache(maxsize=1024)
def _read(form: str) -> tuple[Any, ...]:
    return ast.literal_eval(form)
