"""`Edit`: a change of what a model attends, and `Scene`, the call that it changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, KindError, build
from intently.observe.edits.places import Axis, Steps, Whole


@dataclass
class Scene:
    """One attention call that edits change: weights (…, h, t, s) and values (…, g, s, e).

    ``name`` is that of the module, ``index`` the number of its call. Query i stands at position
    ``first + i`` of its text, key j at ``first_key + j``; ``across`` says that these are two texts.
    The queries of beams that share their keys are as many ``texts``, one after the other.
    ``touched`` (b, h, t) collects the rows that edits changed, b = 1 if in all batch rows alike;
    ``passed`` is what multiplies weights before they meet values, such as dropout's factors;
    ``outputs`` are rows of A @ v that an edit gives itself: which (b, h, t), and what (…, h, t, e).
    """

    name: str
    index: int
    matrix: LazyMatrix
    values: Tensor
    first: int = 0
    first_key: int = 0
    texts: int = 1
    across: bool = False
    row_tokens: Sequence[str] | None = None
    key_tokens: Sequence[str] | None = None
    passed: Callable[[], Tensor] | None = None
    touched: Tensor = field(init=False)
    outputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        *lead, t, _ = self.matrix.shape
        h = lead[-1] if lead else 1
        self.touched = torch.zeros(1, h, t, dtype=torch.bool, device=self.matrix.device)

    @property
    def batch(self) -> Whole:
        """The axis of batch rows."""
        lead = self.matrix.shape[:-3]
        return Whole("batch", lead[-1] if lead else 1, self.touched.device)

    @property
    def heads(self) -> Whole:
        """The axis of heads."""
        return Whole("heads", self.touched.shape[1], self.touched.device)

    @property
    def rows(self) -> Axis:
        """The axis of queries."""
        steps = self.touched.shape[-1] // self.texts
        at = torch.arange(steps, device=self.touched.device).repeat(self.texts) + self.first
        return Axis("rows", at, self.first + steps, self.row_tokens)

    @property
    def keys(self) -> Axis:
        """The axis of keys."""
        s = self.matrix.shape[-1]
        at = torch.arange(s, device=self.touched.device) + self.first_key
        return Axis("keys", at, self.first_key + s, self.key_tokens)


class Edit:
    """A change of what a model attends to; edits join with ``&``, the left one first."""

    def change(self, scene: Scene) -> None:
        """Change the matrix, the values or the outputs of a scene."""
        raise NotImplementedError

    def __and__(self, other: Edit) -> Edit:
        """Both edits, one after the other."""
        return Joined(self, other) if isinstance(other, Edit) else NotImplemented


class Joined(Edit):
    """``left & right``."""

    def __init__(self, left: Edit, right: Edit) -> None:
        self.left, self.right = left, right

    def change(self, scene: Scene) -> None:
        """Change what the left edit left of the scene."""
        self.left.change(scene)
        self.right.change(scene)

    def __repr__(self) -> str:
        return f"{self.left!r} & {self.right!r}"


class during(Edit):  # noqa: N801 - written as a function: edits.during(range(8), edit)
    """An edit in some calls of each layer only: steps of a denoising or of a generation, from 0 on.

    Calls are counted from the beginning of the block. Raises `KindError` unless ``calls`` is a
    number, a slice or several numbers, and `ArgumentError` for numbers below zero: nobody knows
    how many calls will follow.

    Source: Hertz et al. 2022, "Prompt-to-prompt image editing with cross attention control",
    section 3: weights of another prompt until step τ.

    >>> from intently import edits
    >>> edits.during(range(8), edits.favour("cat", 3.0))
    during(range(0, 8), favour(keys='cat', factor=3.0))
    """

    def __init__(self, calls: int | slice | Sequence[int], edit: Edit) -> None:
        numbers = _numbers(calls)
        if not isinstance(edit, Edit):
            raise build(KindError, "edit", "an edit such as edits.off(heads=[3])", repr(edit))
        self.calls, self.edit, self._numbers = calls, edit, numbers

    def change(self, scene: Scene) -> None:
        """Change the scene if its call is one of them."""
        if scene.index in self._numbers:
            self.edit.change(scene)

    def __repr__(self) -> str:
        return f"during({self.calls!r}, {self.edit!r})"


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class OnRows(Edit):
    """An edit of some rows (queries) of some heads and batch rows; all of them unless named."""

    heads: Steps = None
    rows: Steps = None
    batch: Steps = None

    def over(self, scene: Scene) -> Tensor:
        """The rows (b, h, t) that the edit names; they count as touched."""
        over = self.over_heads(scene) & scene.rows.chosen(self.rows)
        scene.touched = scene.touched | over
        return over

    def over_heads(self, scene: Scene) -> Tensor:
        """The heads (b, h, 1) that the edit names."""
        heads = scene.heads.chosen(self.heads)[None, :, None]
        return (
            heads if self.batch is None else scene.batch.chosen(self.batch)[:, None, None] & heads
        )

    def __repr__(self) -> str:
        given = {x.name: getattr(self, x.name) for x in fields(self)}
        said = (f"{name}={_said(x)}" for name, x in given.items() if x is not None)
        return f"{type(self).__name__}({', '.join(said)})"


def fit(over: Tensor, axes: int) -> Tensor:
    """Return ``over`` (b, h, t) without the leading axes that a tensor (…, t) of ``axes`` lacks."""
    return over[(0,) * max(0, 3 - axes)]


def _numbers(calls: Any) -> Sequence[int]:
    """The calls that are meant; a slice without an end goes on for ever."""
    given = [calls] if isinstance(calls, int) else calls
    if isinstance(calls, slice):
        stop = sys.maxsize if calls.stop is None else calls.stop
        given = (calls.start or 0, stop, calls.step or 1)
    if not isinstance(given, Sequence) or not all(type(n) is int for n in given):
        raise build(KindError, "calls", "a number, a slice, or several numbers", repr(calls))
    if any(n < 0 for n in given):
        raise build(ArgumentError, "calls", "numbers from 0 on", repr(calls))
    return range(*given) if isinstance(calls, slice) else given


def _said(x: Any) -> str:
    return f"{tuple(x.shape)} tensor" if isinstance(x, Tensor) else repr(x)
