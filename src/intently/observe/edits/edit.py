"""`Edit`: a change of what a model attends, and `Scene`, the call that it changes.

Batch rows, heads, rows and keys are named by indices, slices, texts, booleans, regions of images.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import torch
from torch import Tensor

from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, KindError, build
from intently.foundation.tokens import bare


@dataclass(frozen=True, repr=False)
class region:  # noqa: N801 - written as a function: edits.region(0, 0, 0.5, 1)
    """The part of an image between two corners, in fractions of its height and width.

    ``aspect`` is width / height of the image. A pixel belongs to the region if its centre does, at
    every resolution. Raises `ArgumentError` unless 0 ≤ top < bottom ≤ 1 and 0 ≤ left < right ≤ 1.

    >>> region(0, 0.5, 1, 1).picture(2, 4)
    tensor([[False, False,  True,  True],
            [False, False,  True,  True]])
    """

    top: float
    left: float
    bottom: float
    right: float
    aspect: float = 1.0

    def __post_init__(self) -> None:
        for low, high in (("top", "bottom"), ("left", "right")):
            a, b = getattr(self, low), getattr(self, high)
            if not 0 <= a < b <= 1:
                fix = "give corners in fractions: edits.region(0, 0, 0.5, 1) is the upper half"
                raise build(ArgumentError, low, f"0 ≤ {low} < {high} ≤ 1", f"{a} and {b}", fix=fix)
        if not self.aspect > 0:
            raise build(ArgumentError, "aspect", "width / height, above 0", self.aspect)

    def __repr__(self) -> str:
        corners = f"{self.top:g}, {self.left:g}, {self.bottom:g}, {self.right:g}"
        return f"region({corners}{'' if self.aspect == 1 else f', aspect={self.aspect:g}'})"

    def picture(self, height: int, width: int) -> Tensor:
        """Which pixels (height, width) belong to the region, as booleans."""
        y, x = _centres(height), _centres(width)
        inside = (self.top <= y) & (y < self.bottom)
        return inside[:, None] & (self.left <= x) & (x < self.right)


def _centres(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


Steps: TypeAlias = "int | str | slice | Sequence[int | str] | Tensor | region | None"
"""Positions in a text, negative ones from its end; texts of tokens; booleans; None for all.

Of an image: a region, or a picture (H, W) of booleans.
"""


@dataclass
class Axis:
    """The steps of an axis: ``at`` (n,) are their positions in the whole text, of ``total`` steps.

    ``tokens`` are the texts of the whole text, as far as they are known. All steps of heads and
    batch rows are in the call: ``whole``.
    """

    name: str
    at: Tensor
    total: int
    tokens: Sequence[str] | None = None
    whole: bool = False

    def chosen(self, steps: Steps) -> Tensor:
        """Which of the axis' steps are meant, as booleans (n,).

        A position beyond the text chooses nothing: a generation may not have reached it yet.
        Raises `ArgumentError` for a text that no token has, and `KindError` for anything that
        names no steps.
        """
        if steps is None:
            return torch.ones_like(self.at, dtype=torch.bool)
        if isinstance(steps, slice):
            with suppress(TypeError):  # from a word, say
                return self._among(range(*steps.indices(self.total)))
        if isinstance(steps, region) and self.whole:
            expected = f"numbers, a slice, or booleans ({self.total},)"
            raise build(KindError, self.name, expected, "a region of an image")
        if isinstance(steps, region):
            steps = steps.picture(*self._grid(steps.aspect)).flatten()
        if isinstance(steps, Tensor) and steps.dtype is torch.bool:
            return self._where(steps)
        if isinstance(steps, Tensor) and not steps.is_floating_point() and steps.ndim < 2:
            steps = steps.reshape(-1).tolist()
        listed = [steps] if isinstance(steps, (int, str)) else steps
        if not isinstance(listed, Sequence) or not all(
            isinstance(x, (int, str)) and not isinstance(x, bool) for x in listed
        ):
            expected = "positions, texts of tokens, a slice, or booleans (n,)"
            raise build(KindError, self.name, expected, repr(steps))
        return self._among([place for step in listed for place in self._places(step)])

    def _among(self, places: Sequence[int]) -> Tensor:
        return torch.isin(self.at, torch.tensor(places, dtype=torch.long, device=self.at.device))

    def _where(self, steps: Tensor) -> Tensor:
        if steps.ndim == 2 and steps.numel() and not self.whole:
            sides = zip(self._grid(steps.shape[1] / steps.shape[0]), steps.shape)
            y, x = ((_centres(n) * size).long().to(steps.device) for n, size in sides)
            steps = steps[y[:, None], x].flatten()
        if steps.ndim != 1 or (self.whole and len(steps) != self.total):
            image = "booleans (n,), or a picture (H, W) of them"
            expected = f"booleans ({self.total},)" if self.whole else image
            raise build(ArgumentError, self.name, expected, f"shape {tuple(steps.shape)}")
        meant = self.at.new_zeros(max(self.total, len(steps)), dtype=torch.bool)
        meant[: len(steps)] = steps
        return meant[self.at]

    def _grid(self, aspect: float) -> tuple[int, int]:
        """The height and width of an image of so many pixels whose width / height is ``aspect``.

        Odd sizes may have been rounded, up or down, when they were halved.

        >>> Axis("rows", torch.arange(15), 15)._grid(6 / 9)
        (5, 3)
        """
        sides = [(h, self.total // h) for h in range(1, self.total + 1) if self.total % h == 0]
        fitting = [(h, w) for h, w in sides if abs(w - h * aspect) < max(1.0, aspect)]
        if not fitting:
            expected = f"the pixels of an image, {aspect:g} times as wide as it is high"
            fix = "edits.region(…, aspect=width / height); the keys of a prompt are words"
            raise build(ArgumentError, self.name, expected, f"{self.total} steps", fix=fix)
        return min(fitting, key=lambda side: abs(side[1] - side[0] * aspect))

    def _places(self, step: int | str) -> list[int]:
        if self.whole and (isinstance(step, str) or not -self.total <= step < self.total):
            raise build(ArgumentError, self.name, f"numbers below {self.total}", repr(step))
        if isinstance(step, int):
            return [step if step >= 0 else self.total + step]
        found = [n for n, text in enumerate(self.tokens or ()) if step in (text, bare(text))]
        if not found:
            expected, cause, fix = "the text of a token", f"they are {self.tokens}", None
            if self.tokens is None:
                expected, cause = "positions, since the tokens are not known here", None
                fix = (
                    "pass it.edit(model, edits, tokens=texts), (source, target) for two texts, and "
                    'name the layers that read them, as {"*.attn2": edit}'
                )
            raise build(ArgumentError, self.name, expected, repr(step), cause, fix)
        return found


@dataclass
class Scene:
    """One attention call that edits change: weights (…, h, t, s) and values (…, g, s, e).

    ``name`` is that of the module, ``index`` the number of its call. Query i stands at position
    ``first + i`` of its text, key j at ``first_key + j``; ``across`` says that these are two texts.
    The queries of beams that share their keys are as many ``texts``, one after the other.
    ``batch``, ``heads``, ``rows`` and ``keys`` are the axes. ``touched`` (b, h, t) collects the
    rows that edits changed, b = 1 if in all batch rows alike; ``passed`` is what multiplies weights
    before they meet values, such as dropout's factors; ``outputs`` are rows of A @ v that an edit
    gives itself: which (b, h, t), and what (…, h, t, e). ``again`` says that its weights
    met different values before.
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
    again: bool = False
    outputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        b, h, t, s = (1, 1, *self.matrix.shape)[-4:]
        device, end = self.matrix.device, self.first + t // self.texts
        at = torch.arange(self.first, end, device=device).repeat(self.texts)
        self.rows = Axis("rows", at, end, self.row_tokens)
        at = torch.arange(self.first_key, self.first_key + s, device=device)
        self.keys = Axis("keys", at, self.first_key + s, self.key_tokens)
        self.batch, self.heads = whole("batch", b, device), whole("heads", h, device)
        self.touched = torch.zeros(1, h, t, dtype=torch.bool, device=device)


def whole(name: str, n: int, device: torch.device | None = None) -> Axis:
    """Return the axis of n heads or batch rows."""
    return Axis(name, torch.arange(n, device=device), n, whole=True)


class Edit:
    """A change of what a model attends to; edits join with ``&``, the left one first."""

    def change(self, scene: Scene) -> None:
        """Change the matrix, the values or the outputs of a scene."""
        raise NotImplementedError

    def __and__(self, other: Edit) -> Edit:
        """Both edits, one after the other."""
        return Joined(self, other) if isinstance(other, Edit) else NotImplemented


@dataclass(frozen=True, repr=False, eq=False)
class Joined(Edit):
    """``left & right``."""

    left: Edit
    right: Edit

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
        given: Any = [calls] if isinstance(calls, int) else calls
        if isinstance(calls, slice):  # without an end it goes on for ever
            stop = sys.maxsize if calls.stop is None else calls.stop
            given = (calls.start or 0, stop, calls.step or 1)
        if not isinstance(given, Sequence) or not all(type(n) is int for n in given):
            raise build(KindError, "calls", "a number, a slice, or several numbers", repr(calls))
        if any(n < 0 for n in given):
            raise build(ArgumentError, "calls", "numbers from 0 on", repr(calls))
        if not isinstance(edit, Edit):
            raise build(KindError, "edit", "an edit such as edits.off(heads=[3])", repr(edit))
        self.calls, self.edit = calls, edit
        self._numbers = range(*given) if isinstance(calls, slice) else given

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
        """The heads (b, h, 1) that the edit names, b = 1 without batch rows."""
        heads = scene.heads.chosen(self.heads)[None, :, None]
        if self.batch is None:
            return heads
        return scene.batch.chosen(self.batch)[:, None, None] & heads

    def __repr__(self) -> str:
        given = {x.name: getattr(self, x.name) for x in fields(self)}
        said = (f"{name}={_said(x)}" for name, x in given.items() if x is not None)
        return f"{type(self).__name__}({', '.join(said)})"


def fit(over: Tensor, axes: int) -> Tensor:
    """Return ``over`` (b, h, t) without the leading axes that a tensor (…, t) of ``axes`` lacks."""
    return over[(0,) * max(0, 3 - axes)]


def _said(x: Any) -> str:
    return f"{tuple(x.shape)} tensor" if isinstance(x, Tensor) else repr(x)
