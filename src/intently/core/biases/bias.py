"""The base class of biases (evaluate, check, slice, add), and the bias that is a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.core.masks.geometry import Cut, Geometry, check_broadcast, cut_right, entries, pick
from intently.core.masks.over import Pair, Picked, Rule
from intently.foundation.arrays import Kind, Numbers, as_tensor


class Bias(Rule):
    """A rule that gives the number added to the score of each query and key."""

    shown = ("at", "tile")

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Bias of some rows and columns, broadcastable to (…, len(rows), len(cols)).

        It is differentiable in the tensors of the rule. Without ``dtype``, the result has the
        rule's own dtype: float64 for numbers computed from a formula.
        """
        raise NotImplementedError

    def picked(self, index: Tensor, *lead: int) -> Bias:
        """Return the bias at picked indices of the leading axes."""
        return PickedBias(self, index, *lead)

    def _repr_html_(self) -> str:
        from intently.show.notebook import bias_html

        return bias_html(self)

    def __add__(self, other: Bias | Tensor | Numbers) -> Bias:
        """The sum of both biases."""
        return Sum(self, as_bias(other))

    def __radd__(self, other: Tensor | Numbers) -> Bias:
        return Sum(as_bias(other), self)


class TensorBias(Bias):
    """A tensor that broadcasts to (…, h, t, s) as NumPy does; its gradient has its own shape.

    Arrays, lists and integers are copied. Raises `KindError` for values that are not numbers:
    booleans are masks.

    >>> TensorBias(torch.zeros(4, 1, 6))
    TensorBias(4×1×6 tensor)
    """

    def __init__(self, tensor: Tensor | Numbers, like: Kind | None = None) -> None:
        tensor = as_tensor(tensor, "bias", like)
        super().__init__(tensor)
        self.tensor = tensor

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        x = self.tensor.reshape((1,) * (2 - self.tensor.ndim) + self.tensor.shape)
        picks = [(-2, rows), (-1, cols)]
        if len(rows) * x.shape[-1] > len(cols) * x.shape[-2]:
            picks.reverse()
        for axis, index in picks:
            x = entries(x, axis, index)
        return x if dtype is None else x.to(dtype)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return pick(g, self.tensor, (*lead, i, j)[len(lead) + 2 - self.tensor.ndim :])

    def check(self, g: Geometry) -> None:
        check_broadcast(self.tensor, g, "bias")

    def part(self, cut: Cut, g: Geometry) -> TensorBias:
        return TensorBias(cut_right(self.tensor, cut)) if self.tensor.ndim > 2 else self

    def __repr__(self) -> str:
        return f"TensorBias({shown(self.tensor)})"


class Sum(Pair[Bias], Bias):
    """``left + right``."""

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        return self.left.tile(g, rows, cols, dtype) + self.right.tile(g, rows, cols, dtype)

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self.left.at(g, lead, i, j) + self.right.at(g, lead, i, j)

    def __repr__(self) -> str:
        right = f"({self.right!r})" if isinstance(self.right, Sum) else repr(self.right)
        return f"{self.left!r} + {right}"


class PickedBias(Picked[Bias], Bias):
    """The bias at picked leading indices."""

    def tile(
        self, g: Geometry, rows: Tensor, cols: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        return self.taken(self.inner.tile(self.whole(g), rows, cols, dtype))


def as_bias(bias: Bias | Tensor | Numbers, like: Kind | None = None) -> Bias:
    """Return a bias unchanged, numbers as `TensorBias` with the dtype and device of `as_tensor`."""
    return bias if isinstance(bias, Bias) else TensorBias(bias, like)


def shown(tensor: Tensor) -> str:
    """Describe a tensor by its shape."""
    return f"{'×'.join(map(str, tensor.shape)) or 'scalar'} tensor"
