"""Frames between two scenes: shapes with the same key move and change, others fade in or out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from intently.show.animate.shapes import Grid, Scene, Shape


def between(before: Scene, after: Scene, share: float) -> list[Shape]:
    """Return the shapes at ``share`` (0 … 1) of the way from one scene to the next.

    >>> from intently.show.animate.shapes import Text
    >>> first = Scene("", (Text("a", 0, 0, "x"),), 1.0)
    >>> second = Scene("", (Text("a", 10, 0, "x"), Text("b", 0, 0, "y")), 1.0)
    >>> [(shape.x, shape.opacity) for shape in between(first, second, 0.5)]
    [(5.0, 1.0), (0, 0.5)]
    """
    eased = share * share * (3 - 2 * share)
    left = {shape.key: shape for shape in before.shapes}
    kept = {shape.key for shape in after.shapes}
    found = [_faded(shape, 1 - eased) for shape in before.shapes if shape.key not in kept]
    for shape in after.shapes:
        found += _changed(left.get(shape.key), shape, eased)
    return found


def _changed(old: Shape | None, new: Shape, share: float) -> Iterator[Shape]:
    if old is None:
        yield _faded(new, share)
    elif old == new:
        yield new
    elif type(old) is not type(new) or _cells(old) != _cells(new):
        yield _faded(old, 1 - share)
        yield _faded(new, share)
    else:
        parts = {f.name: (getattr(old, f.name), getattr(new, f.name)) for f in fields(new)}
        yield replace(new, **{name: _mixed(*both, share) for name, both in parts.items()})


def _cells(shape: Shape) -> tuple[int, int] | None:
    return (len(shape.shades), len(shape.shades[0])) if isinstance(shape, Grid) else None


def _mixed(old: Any, new: Any, share: float) -> Any:
    """Mix two numbers, or tuples of them; anything else, hatching included, switches half way."""
    if old == new:
        return new
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        return tuple(_mixed(a, b, share) for a, b in zip(old, new, strict=True))
    if isinstance(old, float | int) and isinstance(new, float | int) and old == old and new == new:
        return old + (new - old) * share
    return new if share >= 0.5 else old


def _faded(shape: Shape, share: float) -> Shape:
    return replace(shape, opacity=shape.opacity * share)
