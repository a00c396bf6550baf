"""What edits changed: the part of a call that is computed again, and how that is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from intently.core.attention import Attention
from intently.core.matrix import LazyMatrix
from intently.observe.edits import Scene

PLANNED = 4
"""Lines of a plan at most that are kept of one module."""


class Part(NamedTuple):
    """The batch rows (k,), heads (n,) and rows (m,) of a call that are computed again."""

    batch: Tensor
    heads: Tensor
    rows: Tensor

    @staticmethod
    def edited(scene: Scene) -> Part | None:
        """The least part that holds every row whose weights or values edits changed."""
        needed = scene.touched
        for over, _ in scene.outputs:
            needed = needed & ~over
        needed = needed.expand(scene.batch.total, -1, -1)
        found = [needed.any(axes).nonzero()[:, 0] for axes in ((1, 2), (0, 2), (0, 1))]
        return Part(*found) if len(found[0]) else None

    def at(self, axes: int) -> tuple[Tensor, ...]:
        """The part as indices of the last ``axes`` of batch, heads and rows."""
        every = self.batch[:, None, None], self.heads[:, None], self.rows
        return every[max(0, 3 - axes) :]

    def of(self, x: Tensor) -> Tensor:
        """The part (k, n, m) of x (b, h, t)."""
        return x[self.at(3)]

    def matrix(self, matrix: LazyMatrix) -> LazyMatrix:
        """The batch rows and heads of a matrix (…, b, h, t, s)."""
        for axis, some in ((matrix.ndim - 4, self.batch), (matrix.ndim - 3, self.heads)):
            if axis >= 0 and len(some) < matrix.shape[axis]:
                matrix = matrix[(*[slice(None)] * axis, some)]
        return matrix

    def values(self, v: Tensor, h: int) -> Tensor:
        """The batch rows and heads of values (…, b, g, s, e) of h query heads."""
        if v.ndim > 3 and v.shape[-4] > len(self.batch):
            v = v.index_select(-4, self.batch)
        if v.ndim > 2 and v.shape[-3] > 1 and len(self.heads) < h:
            v = v.index_select(-3, self.heads // (h // v.shape[-3]))
        return v


@dataclass
class Applied:
    """What edits did to the calls of one module, to be printed."""

    name: str
    said: str
    calls: int = 0
    plans: dict[str, None] = field(default_factory=dict)

    def add(self, scene: Scene, part: Part | None) -> None:
        """Note a call that was changed."""
        self.calls += 1
        if part is not None and len(self.plans) < PLANNED:
            self.plans[_plan(scene, part)] = None

    def __str__(self) -> str:
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return "\n  ".join([f"{self.name}  {calls}  {self.said}", *self.plans])


def _plan(scene: Scene, part: Part) -> str:
    """Which heads and rows are computed again, how, and what that costs."""
    b, (_, h, t) = scene.batch.total, scene.touched.shape
    batch, heads, rows = map(len, part)
    said = f"{batch} of {b} batch rows, " if batch < b else ""
    said += f"{heads} of {h} heads, {rows} of {t} rows: "
    if rows <= t // 2:
        return f"{said}their weights over {scene.matrix.shape[-1]} keys"
    matrix = part.matrix(scene.matrix)
    if isinstance(matrix, Attention):
        return f"{said}{matrix.plan().kernel}"
    return f"{said}t · s weights, in blocks of rows"
