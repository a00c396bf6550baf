"""Indices of a lazy matrix: leading axes as PyTorch takes them, rows and columns orthogonally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from intently.errors import ArgumentError, RangeError, build, shape_of
from intently.foundation.arrays import valued
from intently.foundation.tokens import bare

SHOWN = 12
"""Most labels that a message lists."""

KINDS = "ints, slices, lists, tensors and …"

Entry: TypeAlias = int | slice | Tensor


def split(index: Any, ndim: int) -> tuple[tuple[Entry, ...], Entry | None, Entry | None]:
    """Split an index into its leading part, rows and columns; None means all of t or s."""
    entries = list(index) if isinstance(index, tuple) else [index]
    dots = [n for n, i in enumerate(entries) if i is Ellipsis]
    if len(dots) > 1:
        raise _wrong("at most one …", len(dots))
    before = [_entry(i) for i in (entries[: dots[0]] if dots else entries)]
    after = [_entry(i) for i in (entries[dots[0] + 1 :] if dots else [])]
    missing = ndim - sum(map(_axes, before + after))
    if missing < 0:
        raise _wrong(f"at most {ndim} axes", ndim - missing)
    *lead, rows, cols = before + [slice(None)] * missing + after
    for i in (rows, cols):
        if _axes(i) != 1:
            got, fix = f"a boolean of {shape_of(i)} over them", "index the dense matrix: "
            raise _wrong("rows and columns of one axis each", got, fix=fix + "A.dense()[mask]")
    for i in lead:
        if isinstance(i, slice) and (i.step or 1) < 0:
            cause, fix = "PyTorch has no views that run backwards", "give the positions: "
            raise _wrong("steps > 0 along leading axes", i, cause, fix + "A[[2, 1, 0]]")
    while lead and _is_all(lead[-1]):
        lead.pop()
    return tuple(lead), None if _is_all(rows) else rows, None if _is_all(cols) else cols


def named(index: Any, ndim: int, labels: Sequence[Sequence[str] | None]) -> Any:
    """Return an index with labels of rows and columns (texts, or lists of them) as positions.

    The first text after fewer entries than there are leading axes names a row. Raises
    `ArgumentError` for texts of an axis without labels, unknown ones and those that occur twice.

    >>> named(("it", "road"), 3, (("it", "is"), ("the", "road")))
    (Ellipsis, 0, 1)
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    texts = [n for n, i in enumerate(entries) if _is_text(i)]
    if not texts:
        return index
    first = texts[0]
    if Ellipsis not in entries and len(entries) < ndim:
        entries = [*entries[:first], Ellipsis, *entries[first:]]
        entries += [slice(None)] * (first + 3 - len(entries))
    dots = entries.index(Ellipsis) if Ellipsis in entries else -1
    for n, entry in enumerate(entries):
        if _is_text(entry):
            axis = n - len(entries) if n > dots else n - ndim
            entries[n] = _places(entry, axis, labels)
    return tuple(entries)


def _is_text(entry: Any) -> bool:
    return isinstance(entry, str) or (
        isinstance(entry, list) and bool(entry) and all(isinstance(i, str) for i in entry)
    )


def _places(text: str | list[str], axis: int, labels: Sequence[Sequence[str] | None]) -> Any:
    if isinstance(text, list):
        return [_places(one, axis, labels) for one in text]
    side = {-2: "rows", -1: "columns"}.get(axis)
    if side is None:
        raise _wrong("positions along leading axes", repr(text))
    names = labels[axis]
    if names is None:
        fix = "name them first: A.label(rows, columns)"
        raise _wrong("positions", repr(text), f"the {side} have no labels", fix)
    at = [n for n, label in enumerate(names) if label == text]
    at = at or [n for n, label in enumerate(names) if bare(label) == text]
    if len(at) == 1:
        return at[0]
    if at:
        fix = f"give one of these positions, such as A[..., {at[0]}{', :' * (axis == -2)}]"
        raise _wrong("a label that occurs once", f"{text!r} at {', '.join(map(str, at))}", fix=fix)
    known = ", ".join(map(repr, names[:SHOWN])) + ", …" * (len(names) > SHOWN)
    raise _wrong(f"one of the labels of {side}, {known}", repr(text))


def _wrong(
    expected: str, got: object, cause: str | None = None, fix: str | None = None
) -> ArgumentError:
    return build(ArgumentError, "index", expected, got, cause, fix)


def positions(index: Entry | None, size: int, name: str, device: torch.device) -> Tensor | None:
    """Turn an index of an axis (``name``, of ``size``) into positions; None means all of it."""
    if index is None:
        return None
    if isinstance(index, slice):
        picked = range(size)[index]
        return torch.arange(len(picked), device=device) * picked.step + picked.start
    found = torch.as_tensor(index, device=device)
    if found.dtype is torch.bool:
        if found.shape != (size,):
            raise _wrong(f"a boolean ({name}={size},)", shape_of(found))
        return found.nonzero()[:, 0]
    if found.is_floating_point() or found.ndim > 1:
        raise _wrong(f"integers (n,) along {name}", f"{found.dtype}, {shape_of(found)}")
    if found.numel() and valued(found):
        least, most = (int(x) for x in found.aminmax())
        if least < -size or most >= size:
            expected = f"positions from −{size} to {size - 1} along {name}={size}"
            raise build(RangeError, "index", expected, f"{least} to {most}")
    return (found.long() % max(1, size)).reshape(-1)


def take(
    tile: Callable[[Tensor | None, Tensor | None], Tensor],
    rows: Entry | None,
    cols: Entry | None,
    shape: tuple[int, ...],
    device: torch.device,
) -> Tensor:
    """Return ``tile`` at some rows and columns; an int drops its axis."""
    block = tile(positions(rows, shape[-2], "t", device), positions(cols, shape[-1], "s", device))
    block = block[..., 0] if _is_one(cols) else block
    return block.select(-1 if _is_one(cols) else -2, 0) if _is_one(rows) else block


def _entry(i: Any) -> Entry:
    if isinstance(i, slice):
        return i
    if isinstance(i, (list, range, np.ndarray)):
        i = _array(i)
    if isinstance(i, Tensor) and not (i.ndim == 0 and i.dtype is torch.bool):
        if i.is_floating_point() or i.is_complex():
            raise _wrong("integers, or booleans", f"dtype {i.dtype}")
        return i
    if isinstance(i, (int, np.integer)) and not isinstance(i, bool):
        return int(i)
    raise _wrong(KINDS, "None (a new axis)" if i is None else repr(i))


def _array(i: list[Any] | range | np.ndarray) -> Tensor:
    """A list or an array of indices as a tensor: int64, or booleans."""
    array = np.array(i, order="C") if len(i) else np.zeros(0, np.int64)
    try:
        return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array)
    except (TypeError, ValueError):
        raise _wrong(KINDS, f"dtype {array.dtype}") from None


def _axes(i: Entry) -> int:
    return i.ndim if isinstance(i, Tensor) and i.dtype is torch.bool else 1


def _is_all(i: Entry) -> bool:
    return isinstance(i, slice) and i == slice(None)


def _is_one(i: Entry | None) -> bool:
    return isinstance(i, int) or (isinstance(i, Tensor) and i.ndim == 0)
