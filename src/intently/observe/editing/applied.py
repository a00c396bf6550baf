"""The rows that edits changed: computed again, put in place, and told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from intently.attention_matrix import Attention
from intently.edits import Scene
from intently.matrix import LazyMatrix

Part: TypeAlias = tuple[Tensor, Tensor]
"""Heads (n,) and the rows (m,) of them that are computed again."""

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
    """Return the heads that share the rows in which their output is computed again."""
    needed = scene.touched
    for over, _ in scene.outputs:
        needed = needed & ~over
    kinds, kind = needed.unique(dim=0, return_inverse=True)
    numbered = ((kind == i).nonzero()[:, 0] for i in range(len(kinds)))
    parts = ((heads, rows.nonzero()[:, 0]) for heads, rows in zip(numbered, kinds))
    return [part for part in parts if len(part[1])]


def edited_rows(
    scene: Scene, parts: Sequence[Part], y: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Return y (…, h, t, e) with edited rows in place; y has only ``rows`` (n,) if given."""
    y = y.clone()
    for heads, places in parts:
        made = _computed(scene, heads, places).to(y.dtype)
        at = places if rows is None else torch.searchsorted(rows, places)
        if y.ndim > 2:
            y[..., heads[:, None], at, :] = made
        else:
            y[at] = made
    for over, given in scene.outputs:
        over = over if rows is None else over.index_select(-1, rows)
        if rows is not None and given.ndim:
            given = given.index_select(-2, rows)
        over = over if y.ndim > 2 else over[0]
        y = torch.where(over[..., None], given.to(y.dtype), y)
    return y


def _computed(scene: Scene, heads: Tensor, rows: Tensor) -> Tensor:
    """The rows (…, n, m, e) of some heads; many rows at once by a kernel, few by their weights."""
    matrix, v, t = of_heads(scene.matrix, heads), scene.values, scene.touched.shape[-1]
    if v.ndim > 2 and v.shape[-3] > 1:
        v = v.index_select(-3, heads // (len(scene.touched) // v.shape[-3]))
    if len(rows) > t // 2:
        return (matrix @ v).index_select(-2, rows)
    return matrix[..., rows, :].to(v.dtype) @ v


def of_heads(matrix: LazyMatrix, heads: Tensor) -> LazyMatrix:
    """Return some heads of a matrix (…, h, t, s)."""
    lead = len(matrix.shape) - 2
    if not lead or len(heads) == matrix.shape[-3]:
        return matrix
    return matrix[(*[slice(None)] * (lead - 1), heads)]


def _plan(scene: Scene, heads: Tensor, rows: Tensor) -> str:
    """Which heads and rows are computed again, how, and what that costs."""
    h, t = scene.touched.shape
    s = scene.matrix.shape[-1]
    said = f"{len(heads)} of {h} heads, {len(rows)} of {t} rows: "
    matrix = of_heads(scene.matrix, heads)
    if len(rows) <= t // 2:
        return f"{said}their weights over {s} keys"
    if isinstance(matrix, Attention):
        return f"{said}{matrix.plan().kernel}"
    return f"{said}t · s weights, in blocks of rows"
