"""The edits: heads off, keys forbidden or favoured, weights by a rule, parts of another run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn

from intently.core.attention import Attention, attend
from intently.core.biases import as_bias
from intently.core.kernels.problem import Problem
from intently.core.masks import Geometry, Mask, allowed, causal
from intently.core.matrix import Dense
from intently.core.matrix.labelling import HIDDEN, tensors
from intently.core.matrix.lazy import Derived, LazyMatrix
from intently.core.matrix.patterns import previous as before
from intently.core.scores import Dot
from intently.errors import ArgumentError, KernelError, KindError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.foundation.checks import check_kind, check_word, is_number
from intently.observe.edits.edit import Edit, OnRows, Scene, Steps, fit
from intently.observe.recording.recording import Recording

Keys: TypeAlias = "Steps | Mask"
Placed: TypeAlias = "tuple[dict[str, Any], Edit | Mapping[str, Edit]]"
"""Where an edit acts (layer, head …), and the edit by the name of its module."""

Part: TypeAlias = Literal["weights", "queries", "keys", "values", "outputs", "mean"]
LENGTHS = "run texts of one length"


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
        if isinstance(self.keys, Mask) or scene.keys.chosen(self.keys).any():
            _hide(scene, self.over(scene), _cells(scene, self.keys))


@dataclass(frozen=True, repr=False, eq=False)
class look_only_at(OnRows):  # noqa: N801
    """The only keys that may be attended to, of those that could be before."""

    keys: Keys = None

    def change(self, scene: Scene) -> None:
        """Hide all other keys from the rows."""
        _hide(scene, self.over(scene), ~_cells(scene, self.keys))


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
        keys = scene.keys.chosen(self.keys)
        if not bool(keys.any()):
            return
        over = self.over(scene)
        if _no_shares(scene.matrix):
            more = torch.where(keys, self.factor, 1.0)
            return _take(scene, Dense(scene.matrix.dense() * more), over)
        added = as_bias((keys * math.log(self.factor)).to(scene.values.dtype))
        more = lambda p: p.replaced(bias=added if p.bias is None else p.bias + added)  # noqa: E731
        _take(scene, _changed(scene.matrix, more), over)


@dataclass(frozen=True, repr=False, eq=False)
class sharpen(OnRows):  # noqa: N801
    """Weights w that become w^power / Σ w^power: a temperature of 1 / ``power``.

    A power above 1 sharpens, one below 1 flattens. Raises `ArgumentError` unless it is positive.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self.power, "power", "to spread a row evenly, use uniform()")

    def change(self, scene: Scene) -> None:
        """Multiply the logits by the power."""
        _take(scene, _changed(scene.matrix, self._powered), self.over(scene))

    def _powered(self, p: Problem) -> Problem:
        power, bias, sinks = self.power, p.bias_tile(), p.sinks
        if bias is not None:  # what hid by the lowest number goes on to do so
            low = torch.finfo(p.q.dtype).min
            made = torch.where(bias.isneginf(), bias, (bias * power).clamp_min(low))
            bias = as_bias(made.to(p.q.dtype))
        softcap = None if p.softcap is None else p.softcap * power
        sinks = None if sinks is None else sinks * power
        return p.replaced(scale=p.scale * power, bias=bias, softcap=softcap, sinks=sinks)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class uniform(OnRows):  # noqa: N801
    """The same weight for every key that a row may attend."""

    def change(self, scene: Scene) -> None:
        """Make all scores zero."""
        _take(scene, _changed(scene.matrix, _without_scores), self.over(scene))


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
        rule = before() | (allowed((scene.rows.at == 0)[:, None]) & causal())
        follow = lambda p: _without_scores(p).replaced(mask=rule)  # noqa: E731
        _take(scene, _changed(scene.matrix, follow), self.over(scene))


@dataclass(frozen=True, repr=False, eq=False)
class weights(OnRows):  # noqa: N801
    """Weights that a function of the dense (…, h, t, s) weights returns, in the rows named.

    The weights are refused, as `LazyMatrix.dense` refuses them, where they would fill the memory.
    Raises `ArgumentError` if the function returns another shape.

    >>> weights(lambda w: w.flip(-1), heads=[0])  # doctest: +ELLIPSIS
    weights(heads=[0], function=<function ...>)
    """

    function: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.function):
            expected = "a function of the dense weights (…, h, t, s)"
            raise build(KindError, "function", expected, type(self.function).__name__)

    def change(self, scene: Scene) -> None:
        """Pass the dense weights to the function."""
        over, dense = self.over(scene), scene.matrix.dense()
        found = self.function(dense)
        if not isinstance(found, Tensor) or found.shape != dense.shape:
            expected = f"weights of shape {tuple(dense.shape)}, (…, h, t, s)"
            got = shape_of(found) if isinstance(found, Tensor) else type(found).__name__
            raise build(ArgumentError, "edits.weights", expected, got)
        _take(scene, Dense(found), over)


@dataclass(frozen=True, repr=False, eq=False)
class replace(OnRows):  # noqa: N801 - written as a function: edits.replace(seen, heads=[3])
    """Weights (or another part) that another run had in the same layer: activation patching.

    ``recording`` is what `intently.watch` kept of the run, ``part`` "weights", "queries", "keys",
    "values", "outputs" (A @ v before the output projection) or "mean", the mean of the outputs over
    all texts and steps of the run (mean ablation; "outputs" of another text: resample ablation).
    ``rows`` are steps of the queries' text, of the keys' text for "keys" and "values". For
    "values", "outputs" and "mean" the run has to be watched with ``gradients=True``, which keeps v.
    Raises `ArgumentError` if the other run has no such layer, head or step.

    Source: Meng et al. 2022, "Locating and editing factual associations in GPT", section 2.
    """

    recording: Recording
    part: Part = "weights"

    def __post_init__(self) -> None:
        check_word(self.part, "part", get_args(Part))
        expected = "what it.watch(model) kept of another run"
        check_kind(self.recording, Recording, "recording", expected)

    def change(self, scene: Scene) -> None:
        """Take the part from the other run."""
        if scene.again and self.part in ("values", "outputs", "mean"):
            expected, fix = "weights that meet values in one product", 'replace the "weights"'
            got = "weights that meet them in several, of which a watch keeps the first"
            raise build(KernelError, scene.name, expected, got, fix=fix)
        entries = self.recording.entries(scene.name)
        if len(entries) > 1 and scene.index >= len(entries):
            expected = f"{scene.index + 1} calls of {scene.name}"
            raise build(ArgumentError, "recording", expected, f"{len(entries)}")
        entry = entries[min(scene.index, len(entries) - 1)]
        rows, keys, over = scene.rows.at, scene.keys.at, self.over_heads(scene)
        if self.part in ("keys", "values"):  # every row of their heads counts as touched
            scene.touched = scene.touched | over
            over = over & scene.keys.chosen(self.rows)
        else:
            over = self.over(scene)
        if self.part == "weights":
            _take(scene, _of_run(entry.matrix(), scene), over)
        elif self.part == "outputs":
            scene.outputs.append((over, _steps_of(entry.matrix() @ entry.v(), rows, "outputs")))
        elif self.part == "mean":
            y = entry.matrix() @ entry.v()
            apart = {y.ndim - 1, y.ndim - 3 if entry.heads > 1 else -1}
            mean = y.mean([n for n in range(y.ndim) if n not in apart], keepdim=True)
            scene.outputs.append((over, mean.expand(*mean.shape[:-2], len(rows), -1)))
        elif self.part == "values":
            scene.values = _grouped(_steps_of(entry.v(), keys, "values"), scene.values, over)
        elif not isinstance(scene.matrix, Attention):
            expected = f"weights of {scene.name} that follow from its queries and keys"
            cause = "what watch keeps as weights has neither, nor has what another edit made"
            fix = 'replace queries and keys first, or part="weights"'
            raise build(ArgumentError, "part", expected, "weights alone", cause, fix)
        else:
            p, other = scene.matrix.problem, cast(Any, entry.attention())
            if self.part == "queries":
                over = fit(over, p.q.ndim - 1)[..., None]
                made = {"q": torch.where(over, _steps_of(other.q, rows, "queries"), p.q)}
            else:
                made = {"k": _grouped(_steps_of(other.k, keys, "keys"), p.k, over)}
            scene.matrix = Attention(p.replaced(**made))


# --- one edit for each head, layer or key ---------------------------------------------------------


@dataclass(frozen=True)
class Attending:
    """A module that attended in a run, with the most heads and keys that it had."""

    name: str
    heads: int
    keys: int


@dataclass(frozen=True)
class Each:
    """One edit for each place in ``part``, a model or a module of it; ``places`` lists them."""

    part: nn.Module
    places: Callable[[Attending], Iterator[tuple[dict[str, Any], Edit]]]

    def placed(self, attended: Sequence[Attending]) -> list[Placed]:
        """The edits of all places, in the order in which the modules attended."""
        return [
            ({"layer": layer.name, **place}, {layer.name: edit})
            for layer in attended
            for place, edit in self.places(layer)
        ]


def each_head(part: nn.Module, edit: Callable[..., Edit] = off) -> Each:
    """Return ``edit(heads=[n])`` for each head of each layer, by default the head switched off.

    ``part`` is a model, or the module of it in which the heads are.

    Source: Michel, Levy & Neubig 2019, "Are sixteen heads really better than one?", section 3.

    >>> layer = nn.MultiheadAttention(8, 2)
    >>> each_head(layer).placed([Attending("MultiheadAttention", 2, 5)])[1]
    ({'layer': 'MultiheadAttention', 'head': 1}, {'MultiheadAttention': off(heads=[1])})
    """
    return Each(part, lambda at: (({"head": n}, edit(heads=[n])) for n in range(at.heads)))


def each_layer(part: nn.Module, edit: Callable[..., Edit] = off) -> Each:
    """Return ``edit()`` for each layer, by default all of its heads switched off.

    >>> layer = nn.MultiheadAttention(8, 2)
    >>> each_layer(layer).placed([Attending("MultiheadAttention", 2, 5)])
    [({'layer': 'MultiheadAttention'}, {'MultiheadAttention': off()})]
    """
    return Each(part, lambda at: iter([({}, edit())]))


def each_key(part: nn.Module, edit: Callable[..., Edit] = forbid) -> Each:
    """Return ``edit(keys=[n])`` for each key of each layer, by default the key forbidden.

    Source: Geva et al. 2023, "Dissecting recall of factual associations", section 4.

    >>> layer = nn.MultiheadAttention(8, 2)
    >>> each_key(layer).placed([Attending("MultiheadAttention", 2, 5)])[4]
    ({'layer': 'MultiheadAttention', 'key': 4}, {'MultiheadAttention': forbid(keys=[4])})
    """
    return Each(part, lambda at: (({"key": n}, edit(keys=[n])) for n in range(at.keys)))


# --- what they share ------------------------------------------------------------------------------


def _check_positive(value: float, name: str, fix: str) -> None:
    if not is_number(value) or not 0 < value < math.inf:
        raise build(ArgumentError, name, "a positive number", repr(value), fix=fix)


def _cells(scene: Scene, keys: Keys) -> Mask:
    """The cells of keys that are named, as a mask."""
    return keys if isinstance(keys, Mask) else allowed(scene.keys.chosen(keys)[None])


def _hide(scene: Scene, over: Tensor, cells: Mask | None = None) -> None:
    """Hide ``cells`` (all of them unless given) in the rows ``over`` (b, h, t)."""
    matrix, rows = scene.matrix, allowed(fit(over, scene.matrix.ndim - 1)[..., None])
    hidden = rows if cells is None else rows & cells
    hide = lambda p: p.replaced(mask=~hidden if p.mask is None else p.mask & ~hidden)  # noqa: E731
    if isinstance(matrix, Attention):
        scene.matrix = _changed(matrix, hide)
    elif _no_shares(matrix):
        *lead, t, s = matrix.shape
        there = hidden.dense(Geometry(tuple(lead), t, s, matrix.device))
        scene.matrix = Dense(matrix.dense().masked_fill(there, 0))
    else:  # weights that do not sum to 1 stay as they are in other rows
        _take(scene, _changed(matrix, hide), over)


def _take(scene: Scene, other: LazyMatrix, over: Tensor) -> None:
    """Take the rows ``over`` (b, h, t) of another matrix."""
    over = fit(over, scene.matrix.ndim - 1)
    scene.matrix = other if bool(over.all()) else Chosen(scene.matrix, other, over)


def _changed(matrix: LazyMatrix, change: Callable[[Problem], Problem]) -> LazyMatrix:
    """The matrix with its problem changed; what no queries give becomes a problem first."""
    if isinstance(matrix, Chosen):
        return Chosen(_changed(matrix.matrix, change), _changed(matrix.other, change), matrix.over)
    if isinstance(matrix, Attention):
        return Attention(change(matrix.problem))
    w = matrix.dense()
    return Attention(change(_of_weights(w if w.dtype is torch.float64 else w.float())))


def _of_weights(weights: Tensor) -> Problem:
    """The problem whose weights are those given (…, t, s); a sink takes what rows lack to 1.

    Rows that sum to more than 1 sum to 1 in it.
    """
    *lead, t, s = weights.shape
    q, k = (weights.new_zeros(()).expand(*lead, n, 1) for n in (t, s))
    seen, whole = weights > 0, weights.sum(-1, keepdim=True)
    logs, sinks = torch.where(seen, weights, 1).log(), None
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


def _of_run(other: LazyMatrix, scene: Scene) -> LazyMatrix:
    """The weights of another run at the positions of the scene's, of its first keys.

    One batch row serves all.
    """
    matrix, keys, (t, s) = scene.matrix, scene.keys, other.shape[-2:]
    got = f"weights {tuple(other.shape)}"
    if (t, s) != matrix.shape[-2:]:
        rows = scene.rows.at - (0 if scene.across else s - t)
        if keys.total <= s and bool(((rows >= 0) & (rows < t)).all()):
            other = Dense(other.tile(rows, keys.at))
    if other.shape == matrix.shape:
        return other
    if other.ndim != matrix.ndim or any(a not in (1, b) for a, b in zip(other.shape, matrix.shape)):
        expected = f"weights {tuple(matrix.shape)} that end at row {scene.rows.total}"
        raise build(ArgumentError, "recording", expected, got, fix=LENGTHS)
    if isinstance(other, Attention):
        p, lead = other.problem, tuple(matrix.shape[:-2])
        return Attention(p.replaced(geometry=p.geometry._replace(lead=lead)))
    return Dense(other.dense().expand(matrix.shape))


def _steps_of(x: Tensor, at: Tensor, part: str) -> Tensor:
    """The steps ``at`` (n,) of x (…, steps, d); all of them if x has as many as the call."""
    steps = x.shape[-2]
    first, last = (int(at.min()), int(at.max())) if len(at) else (0, -1)
    if steps == last - first + 1:
        return x.index_select(-2, at - first)
    if steps <= last:
        expected, got = f"{part} of {last + 1} steps", f"{part} of {steps} steps"
        raise build(ArgumentError, "recording", expected, got, fix=LENGTHS)
    return x.index_select(-2, at)


def _grouped(new: Tensor, old: Tensor, over: Tensor) -> Tensor:
    """Old keys or values (…, g, s, d), the new ones where a head (b, h, s) is named."""
    groups = over.unflatten(1, (old.shape[-3] if old.ndim > 2 else 1, -1))
    if bool((groups.any(2) != groups.all(2)).any()):
        expected = f"all {groups.shape[2]} query heads of each group, which share keys and values"
        raise build(ArgumentError, "heads", expected, "some of them")
    return torch.where(fit(groups.any(2), old.ndim - 1)[..., None], new, old)


def product(matrix: LazyMatrix, v: Any) -> Tensor:
    """Return the product of weights and values of groups (…, g, s, e), as kernels know them."""
    h = matrix.shape[-3:-2]
    if isinstance(matrix, Dense) and h and v.ndim > 2 and v.shape[-3] not in (1, *h):
        v = v.repeat_interleave(h[0] // v.shape[-3], -3)
    return matrix @ v


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
        ours, theirs = product(self.matrix, v), product(self.other, v)
        return torch.where(self.over[..., None], theirs.to(ours.dtype), ours)

    def _lead(self, index: tuple[Any, ...]) -> LazyMatrix:
        over = self.over[index]
        if bool(over.all()):
            return self.other[index]
        return Chosen(self.matrix[index], self.other[index], over)
