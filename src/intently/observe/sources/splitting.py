"""Views of scores: an axis split into two, and one of size 1 put between others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from intently.observe.sources.followed import Scores


def split(
    scores: Scores, held: list[int], layout: list[tuple[int, ...]], mine: list[int], size: int
) -> tuple[Scores, list[int], list[tuple[int, ...]], list[int]]:
    """Split the axis ``held[-1]`` into the rest and one of ``size``."""
    axis, parts = held[-1], [scores.axes[held[-1]] // size, size]

    def cut(x: Tensor) -> Tensor:
        return x.unflatten(axis, (1, 1) if x.shape[axis] == 1 else parts)

    def later(i: int) -> int:
        return i + (i > axis)

    if axis < scores.rows[0]:
        made = scores.changed(cut)
    else:
        grid = [tuple(scores.axes[i] for i in axes) for axes in (scores.rows, scores.keys)]
        which = int(axis in scores.keys)
        at = axis - (scores.rows, scores.keys)[which][0]
        grid[which] = (*grid[which][:at], *parts, *grid[which][at + 1 :])
        made = replace(scores, grid=(grid[0], grid[1]))
    moved = [tuple(map(later, axes)) for axes in layout]
    return made, [*map(later, held[:-1]), axis, axis + 1], moved, [later(i) for i in mine]


def widened(
    scores: Scores, layout: list[tuple[int, ...]], axis: int
) -> tuple[Scores, list[tuple[int, ...]], list[int]]:
    """Put a leading axis of size 1 before ``axis``: a batch of one."""
    made = scores.changed(lambda x: x.unsqueeze(axis))
    return made, [tuple(i + (i >= axis) for i in axes) for axes in layout], [axis]
