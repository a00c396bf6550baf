"""The arguments of figures: lazy matrices, or plain numbers, which are converted to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor
from intently.matrix import Dense, LazyMatrix

PLAIN = (Tensor, np.ndarray, np.generic, list, tuple, range)
"""The types of plain numbers."""


class Plain(Dense):
    """Plain numbers (…, t, s), which may or may not be weights."""

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        return Plain(self.weights[index])

    def mean_heads(self) -> LazyMatrix:
        """Return the mean over axis −3, plain numbers too."""
        return Plain(self.weights.mean(-3), self.labels)

    def no_weights(self, part: bool = False) -> str:
        """Return why the numbers are not attention weights; "" if they are.

        Weights are not below 0, and a row sums to 1 or is all zeros; with ``part`` it may sum to
        less, as in a part of a matrix. NaN does not count.
        """
        w = self.weights.detach()
        if bool(w.isinf().any()):
            return "one of them is infinite"
        w = torch.where(w.isfinite(), w, 0).double()
        rough = 1e-3 if self.dtype.itemsize >= 4 else 2e-2
        lowest, sums = float(w.min()), w.sum(-1)
        if lowest < 0:
            return f"the lowest number is {_said(lowest)}"
        wrong = sums[(sums > 1 + rough) | ((sums < 1 - rough) & (sums > 0) & (not part))]
        return f"a row sums to {_said(float(wrong[0]))}" if len(wrong) else ""


def as_matrix(value: object, argument: str) -> LazyMatrix:
    """Return a lazy matrix unchanged; an array or nested lists of numbers (…, t, s) as `Plain`.

    Raises KindError for anything but real numbers, ArgumentError for fewer than two axes.
    """
    if isinstance(value, LazyMatrix):
        return value
    if not isinstance(value, PLAIN):
        raise build(
            KindError,
            argument,
            "a lazy matrix, or weights as a tensor, an array or nested lists",
            type(value).__name__,
        )
    found = as_tensor(value, argument)
    if found.ndim < 2:
        raise build(ArgumentError, argument, "shape (…, t, s)", shape_of(found))
    return Plain(found)


def as_weights(value: object, argument: str) -> LazyMatrix:
    """Return `as_matrix`; raise ArgumentError for plain numbers that cannot be weights."""
    found = as_matrix(value, argument)
    if isinstance(found, Plain) and found.weights.numel() and (why := found.no_weights(part=True)):
        raise build(
            ArgumentError,
            argument,
            "attention weights, not below 0, at most 1 in a row together",
            why,
            "these numbers are not weights",
            "scores become weights by .softmax(-1); intently.show.heatmap draws any numbers",
        )
    return found


def as_numbers(value: Numbers, argument: str, beside: object = None) -> Tensor:
    """Return plain numbers as a tensor; lists and arrays get the dtype and device of ``beside``.

    A tensor keeps its dtype and device, and a module may refuse it. Raises KindError for anything
    but real numbers.
    """
    if not isinstance(value, PLAIN):
        raise build(KindError, argument, "a tensor, an array or nested lists", type(value).__name__)
    like = next(beside.parameters(), None) if isinstance(beside, nn.Module) else None
    found = as_tensor(value, argument, like)
    return found if like is None or isinstance(value, Tensor) else found.to(like.dtype)


def one_item(value: Numbers, argument: str, axes: int, beside: object = None) -> Tensor:
    """Return `as_numbers` of one item without leading axes of size 1: (t, c) of (1, t, c)."""
    found = as_numbers(value, argument, beside)
    while found.ndim > axes and len(found) == 1:
        found = found[0]
    return found


def as_truths(value: Any, argument: str) -> Any:
    """Return an array or nested lists of booleans as a tensor; anything else unchanged.

    Raises KindError for lists and arrays of other types.
    """
    if not isinstance(value, np.ndarray | list | tuple):
        return value
    try:
        found = np.array(value)
    except ValueError:
        found = np.empty(0, object)
    if found.dtype != bool:
        raise build(
            KindError,
            argument,
            "booleans, in rows of one length",
            "a ragged list" if found.dtype == object else f"dtype {found.dtype}",
            "True means attend",
        )
    return torch.from_numpy(found)


def _said(number: float) -> str:
    return f"{number:.3g}".replace("-", "−")
