"""Checks of arguments: numbers within bounds, and words from a list."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Any

from intently.errors import ArgumentError, KindError, build


def whole_number(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Return an int from ``least`` to ``most``; raise for anything else, booleans included.

    >>> whole_number(0, "heads", 1)
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: heads: expected an int ≥ 1; got 0.
    """
    expected = f"an int ≥ {least}" if most is None else f"an int from {least} to {most:,}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise build(KindError, name, expected, repr(value))
    if value < least or (most is not None and value > most):
        raise build(ArgumentError, name, expected, value)
    return value


def divisor(value: Any, name: str, of: str, size: int) -> int:
    """Return an int ≥ 1 that divides ``size``, the size of the argument ``of``; else raise.

    >>> divisor(3, "kv_heads", "heads", 8)
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: kv_heads: expected a divisor of heads=8; got 3.
    """
    if size % whole_number(value, name, 1):
        raise build(ArgumentError, name, f"a divisor of {of}={size}", value)
    return value


def check_kind(
    value: object,
    kind: type | UnionType | tuple[type, ...],
    name: str,
    expected: str,
    cause: str | None = None,
    fix: str | None = None,
) -> None:
    """Raise `KindError` unless a value is of this kind, or of one of these kinds.

    >>> check_kind("4", int, "heads", "an int")
    Traceback (most recent call last):
    ...
    intently.errors.KindError: heads: expected an int; got str.
    """
    if not isinstance(value, kind):
        raise build(KindError, name, expected, type(value).__name__, cause, fix)


def is_number(value: object) -> bool:
    """Whether this is an int or a float, but not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def probability(value: float, name: str) -> float:
    """Return a number in [0, 1), or raise."""
    if not is_number(value) or not 0 <= value < 1:
        raise build(ArgumentError, name, "a probability in [0, 1)", repr(value))
    return value


def check_word(value: object, name: str, known: Iterable[str], cause: str | None = None) -> None:
    """Raise unless an option is one of its allowed words.

    >>> check_word("mid", "norm", ("pre", "post"))
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: norm: expected "pre" or "post"; got 'mid'.
    """
    words = [f'"{word}"' for word in known]
    if f'"{value}"' not in words or not isinstance(value, str):
        few = f"{', '.join(words[:-1])} or {words[-1]}" if 1 < len(words) < 4 else None
        expected = few or f"one of {', '.join(words)}"
        raise build(ArgumentError, name, expected, repr(value), cause)
