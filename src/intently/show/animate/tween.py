"""Frames between two scenes: shapes with the same key move and change, others fade in or out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from intently.show.animate.shapes import Curve, Grid, Scene, Shade, Shape, Text


def between(before: Scene, after: Scene, share: float) -> list[Shape]:
    """Return the shapes at ``share`` (0 … 1) of the way from one scene to the next.

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
    elif isinstance(old, Text) and isinstance(new, Text):
        told = new if share >= 0.5 else old
        place = {name: _mixed(old, new, name, share) for name in ("x", "y", "size", "opacity")}
        yield replace(told, **place)
    elif isinstance(old, Curve) and isinstance(new, Curve):
        names = ("x", "y", "x2", "y2", "width", "shade", "rise", "opacity")
        yield replace(new, **{name: _mixed(old, new, name, share) for name in names})
    elif isinstance(old, Grid) and isinstance(new, Grid) and _alike(old, new):
        told = new if share >= 0.5 else old
        place = {name: _mixed(old, new, name, share) for name in ("x", "y", "size", "opacity")}
        cell = tuple(a + (b - a) * share for a, b in zip(old.cell, new.cell))
        yield replace(told, **place, cell=cell, shades=_shades(old, new, share))
    else:
        yield _faded(old, 1 - share)
        yield _faded(new, share)


def _mixed(old: Shape, new: Shape, name: str, share: float) -> float:
    first, last = getattr(old, name), getattr(new, name)
    return first + (last - first) * share


def _alike(old: Grid, new: Grid) -> bool:
    return len(old.shades) == len(new.shades) and len(old.shades[0]) == len(new.shades[0])


def _shades(old: Grid, new: Grid, share: float) -> tuple[tuple[Shade, ...], ...]:
    if old.shades == new.shades:
        return new.shades
    return tuple(
        tuple(_shade(a, b, share) for a, b in zip(*rows)) for rows in zip(old.shades, new.shades)
    )


def _shade(old: Shade, new: Shade, share: float) -> Shade:
    """Mix two shades; clear and hatched ones (not equal to themselves) change half way."""
    if old is None or new is None or old != old or new != new:
        return new if share >= 0.5 else old
    return old + (new - old) * share


def _faded(shape: Shape, share: float) -> Shape:
    return replace(shape, opacity=shape.opacity * share)
