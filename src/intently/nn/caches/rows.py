"""Rows of a batch: selection, and their lengths."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from intently.core.masks import Mask, padding
from intently.core.masks.geometry import integers
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import valued

R = TypeVar("R", bound="CacheRows")


class CacheRows:
    """Base of frozen dataclasses of tensors that have the axis of the batch first."""

    def expand(self: R, index: Int[Tensor, " n"]) -> R:
        """Return rows ``index`` of the memory, for beams.

        Raises `ArgumentError` for rows out of range and `KindError` for anything but integers.
        """
        return type(self)(**{name: _expanded(x, index) for name, x in vars(self).items()})


class Padded(CacheRows):
    """States of a batch, some rows of which may be shorter."""

    lengths: Tensor | None

    @property
    def mask(self) -> Mask | None:
        """The padding of the states, None where there is none."""
        return None if self.lengths is None else padding(self.lengths)


def _expanded(x: Tensor | CacheRows | None, index: Tensor) -> Tensor | CacheRows | None:
    if isinstance(x, CacheRows):
        return x.expand(index)
    return None if x is None else picked(x, index)


def picked(x: Tensor, index: Tensor) -> Tensor:
    """Return rows ``index`` (n,) of x; raise `ArgumentError` or `KindError` for invalid rows.

    >>> picked(torch.tensor([5, 6, 7]), torch.tensor([2, 2, 0]))
    tensor([7, 7, 5])
    """
    check_index(index)
    if index.device != x.device:
        raise build(KindError, "index", f"row numbers on {x.device}", f"{index.device}")
    try:
        return x.index_select(0, index)
    except (RuntimeError, IndexError):
        least, most = (int(i) for i in index.aminmax()) if len(index) else (0, -1)
        if least < 0 or most >= len(x):
            raise build(
                ArgumentError, "index", f"rows from 0 to {len(x) - 1}", f"{least} to {most}"
            ) from None
        raise


def check_index(index: Tensor) -> None:
    """Raise unless an index is a vector of integers, as `Tensor.index_select` takes them."""
    if not (isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)):
        got = f"dtype {index.dtype}" if isinstance(index, Tensor) else type(index).__name__
        raise build(KindError, "index", "a tensor of row numbers (n,), int64", got)
    if index.ndim != 1:
        raise build(ArgumentError, "index", "row numbers (n,)", shape_of(index))


def row_lengths(lengths: Any, states: Tensor, name: str = "states") -> Tensor:
    """Return the lengths (b,) of the rows of states (b, s, …), or raise; lists are accepted. The
    range is checked only if that does not synchronise an accelerator.

    >>> row_lengths([3, 1], torch.zeros(2, 3, 4))
    tensor([3, 1])
    """
    found = integers(lengths, "lengths")
    b, s = states.shape[:2]
    if tuple(found.shape) != (b,):
        raise build(ArgumentError, "lengths", f"shape (b={b},)", shape_of(found))
    if found.device.type == "cpu" and len(found) and valued(found):
        least, most = (int(x) for x in found.aminmax())
        if least < 0 or most > s:
            expected = f"steps from 0 to s={s}, those of the {name}"
            raise build(ArgumentError, "lengths", expected, f"{least} to {most}")
    return found.to(states.device)
