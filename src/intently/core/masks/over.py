"""`Rule`: the base of masks and biases, and rules composed of other rules."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from intently.core.masks.geometry import Cut, Geometry, cut_left, pick
from intently.foundation.values import Value


class Rule(Value):
    """A rule for each query and key: a mask or a bias."""

    shown: ClassVar[tuple[str, ...]] = ()
    """The methods that `dir` lists; the others serve kernels and recordings."""

    def __dir__(self) -> list[str]:
        return [*self.shown, *(name for name in super().__dir__() if name.startswith("__"))]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        """The rule at single entries: index tensors, one for each axis of (…, t, s).

        They broadcast together; only arithmetic, comparisons and indexing are used, so that
        FlexAttention can trace the rule.
        """
        raise NotImplementedError

    def check(self, g: Geometry) -> None:
        """Raise `ArgumentError` or `KindError` if the rule does not fit the matrix ``g``."""

    def part(self, cut: Cut, g: Geometry) -> Any:
        """The same rule for the matrix whose leading axes were cut.

        ``cut`` has one slice, or one int which drops its axis, for each leading axis of ``g``. The
        tensors of the rule are aligned with the leftmost leading axes unless a subclass differs.
        """
        return self.replaced(lambda x: cut_left(x, cut))

    def picked(self, index: Tensor, *lead: int) -> Any:
        """The rule at picked indices of the leading axes ``lead``."""
        raise NotImplementedError


R = TypeVar("R", bound=Rule)


class Pair(Rule, Generic[R]):
    """Two rules joined into one."""

    def __init__(self, left: R, right: R) -> None:
        super().__init__(left, right)
        self.left, self.right = left, right

    def check(self, g: Geometry) -> None:
        """Check both rules."""
        self.left.check(g)
        self.right.check(g)

    def part(self, cut: Cut, g: Geometry) -> Any:
        """Return the parts of both, joined."""
        return type(self)(self.left.part(cut, g), self.right.part(cut, g))


class Over(Rule, Generic[R]):
    """A mask or bias over another one, ``inner``, which is asked about the matrix ``whole(g)``."""

    def __init__(self, inner: R, *parts: Any) -> None:
        super().__init__(inner, *parts)
        self.inner = inner

    def whole(self, g: Geometry) -> Geometry:
        """The geometry of the inner rule."""
        return g

    def check(self, g: Geometry) -> None:
        """Check the inner rule against its own geometry."""
        self.inner.check(self.whole(g))

    def part(self, cut: Cut, g: Geometry) -> Any:
        """Return the same over the part of the inner rule."""
        return type(self)(self.inner.part(cut, self.whole(g)), *self.parts[1:])


class Picked(Over[R]):
    """A rule at picked leading indices of the matrix it was laid over, as lists of indices pick.

    ``index`` (n, …) holds one index tensor for each of the n leading axes ``axes`` of that matrix.
    """

    def __init__(self, inner: R, index: Tensor, *axes: int) -> None:
        super().__init__(inner, index, *axes)
        self.index, self.axes = index, axes

    def whole(self, g: Geometry) -> Geometry:
        return g._replace(lead=self.axes)

    def taken(self, block: Tensor) -> Tensor:
        """Take the picked leading indices of a block (…, n, m)."""
        return block.expand(*self.axes, *block.shape[-2:])[tuple(self.index.to(block.device))]

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        """Return the inner rule at single entries of the matrix it was picked from."""
        index = tuple(pick(g, x, lead) for x in self.index)
        return self.inner.at(self.whole(g), index, i, j)

    def check(self, g: Geometry) -> None:
        """Nothing to do: the rule was checked before it was picked."""

    def part(self, cut: Cut, g: Geometry) -> Any:
        """Return the same under fewer of the picked indices."""
        return type(self)(self.inner, self.index[(slice(None), *cut)], *self.axes)

    def __repr__(self) -> str:
        return f"({self.inner!r})[{'×'.join(map(str, self.index.shape[1:]))} picked]"


def indexed(rule: R, whole: Geometry, index: tuple[Any, ...]) -> R:
    """Return a mask or bias of the matrix ``whole`` under an index of its leading axes."""
    if all(isinstance(i, (int, slice)) for i in index):
        return rule.part((*index, *[slice(None)] * (len(whole.lead) - len(index))), whole)
    every = [torch.arange(n, device=whole.device) for n in whole.lead]
    grids = torch.meshgrid(*every, indexing="ij")
    return rule.picked(torch.stack([x[index] for x in grids]), *whole.lead)
