"""Edits by a rule: heads that are off, keys that are forbidden or favoured, other weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from intently.core.attention import Attention, attend
from intently.core.biases import as_bias
from intently.core.kernels.operands import no_autocast
from intently.core.kernels.problem import Problem
from intently.core.masks import Geometry, Mask, allowed, causal, window
from intently.core.matrix import Dense
from intently.core.matrix.labelling import HIDDEN, tensors
from intently.core.matrix.lazy import Derived, LazyMatrix
from intently.core.scores import Dot
from intently.errors import ArgumentError, build
from intently.foundation.arrays import Numbers
from intently.foundation.checks import is_number
from intently.observe.edits.edit import OnRows, Scene, fit
from intently.observe.edits.places import Steps

Keys: TypeAlias = "Steps | Mask"


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class off(OnRows):  # noqa: N801 - written as a function: edits.off(heads=[3])
    """Heads that attend to nothing: their output is zero.

    Source: Michel, Levy & Neubig 2019, "Are sixteen heads really better than one?", equation 3.

    >>> off(heads=[3])
    off(heads=[3])
    """

    def change(self, scene: Scene) -> None:
        """Leave the rows no key."""
        over = self.over(scene)
        _hide(scene, over)
        scene.outputs.append((over, scene.values.new_zeros(())))


@dataclass(frozen=True, repr=False, eq=False)
class forbid(OnRows):  # noqa: N801
    """Keys that may not be attended to; the rest of each row sums to 1 again, to 0 without any.

    ``keys`` are steps of the keys' text, or a mask: the cells that it allows are forbidden.

    Source: Geva et al. 2023, "Dissecting recall of factual associations", section 4.

    >>> forbid([4], rows="because", heads=2)
    forbid(heads=2, rows='because', keys=[4])
    """

    keys: Keys = None

    def change(self, scene: Scene) -> None:
        """Hide the keys from the rows."""
        if _are_there(scene, self.keys):
            _hide(scene, self.over(scene), _cells(scene, self.keys))


@dataclass(frozen=True, repr=False, eq=False)
class look_only_at(OnRows):  # noqa: N801
    """The only keys that may be attended to, of those that could be before."""

    keys: Keys = None

    def change(self, scene: Scene) -> None:
        """Hide all other keys from the rows."""
        over = self.over(scene)
        _hide(scene, over, ~_cells(scene, self.keys))


@dataclass(frozen=True, repr=False, eq=False)
class favour(OnRows):  # noqa: N801
    """Keys whose weight grows by a ``factor`` before each row sums to 1 again: + log factor.

    ``keys`` are steps of the keys' text. Raises `ArgumentError` unless the factor is positive.

    >>> favour("road", 3.0)
    favour(keys='road', factor=3.0)
    """

    keys: Steps = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self.factor, "factor", "to leave keys no weight, use forbid(keys)")

    def change(self, scene: Scene) -> None:
        """Add log factor to the scores of the keys."""
        if not _are_there(scene, self.keys):
            return
        over, keys = self.over(scene), scene.keys.chosen(self.keys)
        if _no_shares(scene.matrix):
            more = torch.where(keys, self.factor, 1.0)
            _take(scene, Dense(scene.matrix.dense() * more), over)
            return
        added = as_bias((keys * math.log(self.factor)).to(scene.values.dtype))

        def favoured(p: Problem) -> Problem:
            return p.replaced(bias=added if p.bias is None else p.bias + added)

        _take(scene, _changed(scene.matrix, favoured), over)


@dataclass(frozen=True, repr=False, eq=False)
class sharpen(OnRows):  # noqa: N801
    """Weights w that become w^power / Σ w^power: a temperature of 1 / ``power``.

    A power above 1 sharpens, one below 1 flattens. Raises `ArgumentError` unless it is positive.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self.power, "power", "to spread a row evenly, use uniform()")

    def change(self, scene: Scene) -> None:
        """Multiply the scores by the power."""
        over, matrix = self.over(scene), scene.matrix
        p = matrix.problem if isinstance(matrix, Attention) else None
        if p is not None and _is_plain(p):
            power = torch.where(fit(over, p.q.ndim - 1), self.power, 1.0).to(p.q.dtype)
            scene.matrix = Attention(p.replaced(q=p.q * power[..., None]))
            return
        sinks = p is None or p.sinks is not None
        _take(scene, Sharpened(matrix, self.power, sinks), over)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class uniform(OnRows):  # noqa: N801
    """The same weight for every key that a row may attend."""

    def change(self, scene: Scene) -> None:
        """Make all scores zero."""
        over = self.over(scene)
        _take(scene, _changed(scene.matrix, _without_scores), over)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class previous(OnRows):  # noqa: N801
    """All weight on the key before the query; the first query attends to itself.

    Raises `ArgumentError` for cross-attention, whose keys are of another text.
    """

    def change(self, scene: Scene) -> None:
        """Leave each row only the key before it."""
        if scene.across:
            expected = "layers in which a text attends to itself"
            raise build(ArgumentError, "edits.previous", expected, f"cross-attention {scene.name}")
        over = self.over(scene)
        at = scene.rows.at - scene.first_key
        before = (at - 1).clamp_min(0)
        start = int(at[0]) if len(at) else 0
        rule = window(1, 0, start) & ~window(0, 0, start)
        if start == 0:
            rule = rule | (allowed((at == before)[:, None]) & causal(0))
        follow = lambda p: _without_scores(p).replaced(mask=rule)  # noqa: E731
        _take(scene, _changed(scene.matrix, follow), over)


def _check_positive(value: float, name: str, fix: str) -> None:
    if not is_number(value) or not 0 < value < math.inf:
        raise build(ArgumentError, name, "a positive number", repr(value), fix=fix)


def _hide(scene: Scene, over: Tensor, cells: Mask | None = None) -> None:
    """Hide ``cells`` (all of them unless given) in the rows ``over`` (b, h, t)."""
    rows = allowed(fit(over, scene.matrix.ndim - 1)[..., None])
    hidden = rows if cells is None else rows & cells
    if _no_shares(scene.matrix):
        *lead, t, s = scene.matrix.shape
        there = hidden.dense(Geometry(tuple(lead), t, s, scene.matrix.device))
        scene.matrix = Dense(scene.matrix.dense().masked_fill(there, 0))
        return

    def hide(p: Problem) -> Problem:
        return p.replaced(mask=~hidden if p.mask is None else p.mask & ~hidden)

    changed = _changed(scene.matrix, hide)
    if isinstance(scene.matrix, Attention):
        scene.matrix = changed
    else:  # weights that do not sum to 1 stay as they are in other rows
        _take(scene, changed, over)


def _are_there(scene: Scene, keys: Keys) -> bool:
    """Whether a call has some of the keys; a generation may not have reached them."""
    return isinstance(keys, Mask) or bool(scene.keys.chosen(keys).any())


def _cells(scene: Scene, keys: Keys) -> Mask:
    """The cells of keys that are named, as a mask."""
    return keys if isinstance(keys, Mask) else allowed(scene.keys.chosen(keys)[None])


def _changed(matrix: LazyMatrix, change: Callable[[Problem], Problem]) -> LazyMatrix:
    """The matrix with its problem changed; what no queries give becomes a problem first."""
    if isinstance(matrix, Chosen):
        return Chosen(_changed(matrix.matrix, change), _changed(matrix.other, change), matrix.over)
    if isinstance(matrix, Attention):
        return Attention(change(matrix.problem))
    w = matrix.dense()
    return Attention(change(of_weights(w if w.dtype is torch.float64 else w.float())))


def of_weights(weights: Tensor) -> Problem:
    """The problem whose weights are those given (…, t, s); a sink takes what rows lack to 1.

    Rows that sum to more than 1 sum to 1 in it.
    """
    *lead, t, s = weights.shape
    q, k = (weights.new_zeros(()).expand(*lead, n, 1) for n in (t, s))
    seen, whole = weights > 0, weights.sum(-1, keepdim=True)
    logs = torch.where(seen, weights, 1).log()
    sinks = None
    if bool(((whole > 0) & (whole < 1 - _rounding(weights))).any()):  # z − log(1 − Σ w), 0 for it
        sinks = weights.new_zeros(lead[-1:])
        logs = logs - (1 - whole).clamp_min(torch.finfo(weights.dtype).tiny).log()
    return attend(q, k, mask=allowed(seen), bias=logs, scale=1.0, sinks=sinks).problem


def _no_shares(matrix: LazyMatrix) -> bool:
    """Whether weights are negative or sum to more than 1, as those of no problem do."""
    if isinstance(matrix, Attention):
        return False
    w = matrix.dense()
    return not bool((w >= 0).all() and (w.sum(-1) <= 1 + _rounding(w)).all())


def _rounding(weights: Tensor) -> float:
    return torch.finfo(weights.dtype).eps ** 0.5


def _without_scores(p: Problem) -> Problem:
    """The same problem with scores of zero; what a bias hides stays hidden."""
    mask = p.mask
    for bias in tensors(p.bias):
        seen = allowed(bias.tensor > HIDDEN)
        mask = seen if mask is None else mask & seen
    return p.replaced(q=p.q * 0, bias=None, sinks=None, softcap=None, score=Dot(), mask=mask)


def _is_plain(p: Problem) -> bool:
    """Whether weights are a softmax of products alone, so that queries scale all scores."""
    return type(p.score) is Dot and (p.bias, p.sinks, p.softcap) == (None, None, None)


def _take(scene: Scene, other: LazyMatrix, over: Tensor) -> None:
    """Take the rows ``over`` (b, h, t) of another matrix."""
    over = fit(over, scene.matrix.ndim - 1)
    scene.matrix = other if bool(over.all()) else Chosen(scene.matrix, other, over)


class Chosen(Derived):
    """The rows ``over`` (…, t) of ``other``, and the rows of ``matrix`` elsewhere."""

    def __init__(self, matrix: LazyMatrix, other: LazyMatrix, over: Tensor) -> None:
        super().__init__(matrix)
        self.other, self.over = other, over.expand(matrix.shape[:-1])

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        over = self.over if rows is None else self.over.index_select(-1, rows)
        ours, theirs = (x.tile(rows, cols) for x in (self.matrix, self.other))
        return torch.where(over[..., None], theirs.to(ours.dtype), ours)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e)."""
        ours, theirs = self.matrix.matmul(v), self.other.matmul(v)
        return torch.where(self.over[..., None], theirs.to(ours.dtype), ours)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        over = self.over[index]
        if bool(over.all()):
            return self.other[index]
        return Chosen(self.matrix[index], self.other[index], over)

    def _to(self, device: torch.device) -> LazyMatrix:
        return Chosen(self.matrix.to(device), self.other.to(device), self.over.to(device))


class Sharpened(Derived):
    """Weights w as w^power / (Σ w^power + r^power); r is the rest, which sinks take."""

    def __init__(self, matrix: LazyMatrix, power: float, sinks: bool) -> None:
        super().__init__(matrix)
        self.power, self.sinks = power, sinks

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        w = self.matrix.tile(rows)
        top = w.detach().amax(-1, keepdim=True)
        top = torch.where(top > 0, top, 1)
        raised = torch.where(w > 0, (w / top).clamp_min(torch.finfo(w.dtype).tiny), 1) ** self.power
        raised = torch.where(w > 0, raised, 0)
        whole = raised.sum(-1, keepdim=True)
        if self.sinks:
            whole = whole + ((1 - w.sum(-1, keepdim=True)).clamp_min(0) / top) ** self.power
        found = raised / torch.where(whole > 0, whole, 1)
        return found if cols is None else found.index_select(-1, cols)

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, t, e) = weights @ v (…, s, e), some rows at a time."""
        return in_blocks(self, v, self.tile)

    def _parts(self, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        return self.power, self.sinks


def in_blocks(matrix: LazyMatrix, v: Tensor | Numbers, tile: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the product of rows that ``tile`` computes with v (…, s, e), some rows at a time."""
    v = matrix._operand(v)
    h, own = matrix.shape[:-2][-1:], v.shape[:-2][-1:]
    if h and own and own[0] not in (1, h[0]):
        v = v.repeat_interleave(h[0] // own[0], -3)
    rows = torch.arange(matrix.shape[-2], device=v.device)
    with no_autocast(v.device):
        step = max(1, 2**22 // max(1, matrix._row_size()))
        return torch.cat([tile(some) @ v for some in rows.split(step)], -2)
