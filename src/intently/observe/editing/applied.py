"""The rows that edits changed: computed again, put in place, and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.kernels.operands import no_autocast
from intently.core.matrix import Dense, LazyMatrix
from intently.observe.edits import Scene
from intently.observe.edits.edit import fit

Part: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Batch rows (k,), and heads (n,) and rows (m,) of them, that are computed again."""

PLANNED = 4
"""Lines of a plan at most that are kept of one module."""


@dataclass
class Applied:
    """What edits did to the calls of one module, to be printed."""

    name: str
    said: str
    calls: int = 0
    plans: dict[str, None] = field(default_factory=dict)

    def add(self, scene: Scene, parts: Sequence[Part]) -> None:
        """Note a call that was changed."""
        self.calls += 1
        if len(self.plans) < PLANNED:
            self.plans |= dict.fromkeys(_plan(scene, *part) for part in parts)

    def __str__(self) -> str:
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return "\n  ".join([f"{self.name}  {calls}  {self.said}", *self.plans])


def groups(scene: Scene) -> list[Part]:
    """Return the batch rows and heads that share the rows whose output is computed again."""
    needed = scene.touched
    for over, _ in scene.outputs:
        needed = needed & ~over
    everywhere = torch.arange(scene.batch.total, device=needed.device)
    return [
        (batch if len(needed) > 1 else everywhere, heads, rows.nonzero()[:, 0])
        for batch, of_batch in _alike(needed)
        for heads, rows in _alike(of_batch)
        if bool(rows.any())
    ]


def _alike(x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield which entries of x (n, …) are equal, and the entry."""
    kinds, kind = x.unique(dim=0, return_inverse=True)
    for i, one in enumerate(kinds):
        yield (kind == i).nonzero()[:, 0], one


def edited_rows(
    scene: Scene, parts: Sequence[Part], y: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Return y (…, h, t, e) with edited rows in place; y has only ``rows`` (n,) if given."""
    y = y.clone()
    for batch, heads, places in parts:
        made = _computed(scene, batch, heads, places).to(y.dtype)
        at = places if rows is None else torch.searchsorted(rows, places)
        if len(batch) < scene.batch.total:
            y[..., batch[:, None, None], heads[:, None], at, :] = made
        elif y.ndim > 2:
            y[..., heads[:, None], at, :] = made
        else:
            y[at] = made
    for over, given in scene.outputs:
        over = over if rows is None else over.index_select(-1, rows)
        if rows is not None and given.ndim:
            given = given.index_select(-2, rows)
        y = torch.where(fit(over, y.ndim - 1)[..., None], given.to(y.dtype), y)
    return y


def _computed(scene: Scene, batch: Tensor, heads: Tensor, rows: Tensor) -> Tensor:
    """The rows (…, k, n, m, e) of some heads and batch rows."""
    v = scene.values
    if v.ndim > 3 and v.shape[-4] > len(batch):
        v = v.index_select(-4, batch)
    if v.ndim > 2 and v.shape[-3] > 1 and len(heads) < scene.heads.total:
        v = v.index_select(-3, heads // (scene.heads.total // v.shape[-3]))
    passed = scene.passed
    if passed is not None:
        whole = Dense(passed().expand(scene.matrix.shape))
        passed = lambda: of_part(whole, batch, heads).dense()  # noqa: E731
    return mixed_rows(of_part(scene.matrix, batch, heads), v, rows, passed)


def mixed_rows(
    matrix: LazyMatrix, v: Tensor, rows: Tensor, passed: Callable[[], Tensor] | None
) -> Tensor:
    """Return rows of matrix @ v; many at once by a kernel, few by their weights."""
    if passed is None and len(rows) > matrix.shape[-2] // 2:
        return (matrix @ v.to(matrix.dtype)).index_select(-2, rows)
    weights = matrix[..., rows, :]
    if passed is not None:
        weights = weights * passed().index_select(-2, rows)
    if v.ndim > 2 and v.shape[-3] not in (1, weights.shape[-3]):
        v = v.repeat_interleave(weights.shape[-3] // v.shape[-3], -3)
    with no_autocast(v.device):
        return weights.to(v.dtype) @ v


def of_part(matrix: LazyMatrix, batch: Tensor, heads: Tensor) -> LazyMatrix:
    """Return some batch rows and heads of a matrix (…, b, h, t, s)."""
    for axis, some in ((matrix.ndim - 4, batch), (matrix.ndim - 3, heads)):
        if axis >= 0 and len(some) < matrix.shape[axis]:
            matrix = matrix[(*[slice(None)] * axis, some)]
    return matrix


def _plan(scene: Scene, batch: Tensor, heads: Tensor, rows: Tensor) -> str:
    """Which heads and rows are computed again, how, and what that costs."""
    b, (_, h, t) = scene.batch.total, scene.touched.shape
    s = scene.matrix.shape[-1]
    said = f"{len(batch)} of {b} batch rows, " if len(batch) < b else ""
    said += f"{len(heads)} of {h} heads, {len(rows)} of {t} rows: "
    matrix = of_part(scene.matrix, batch, heads)
    if len(rows) <= t // 2:
        return f"{said}their weights over {s} keys"
    if isinstance(matrix, Attention):
        return f"{said}{matrix.plan().kernel}"
    return f"{said}t · s weights, in blocks of rows"
