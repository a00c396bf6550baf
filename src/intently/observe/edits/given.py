"""Edits that bring their numbers: from another run, or from a function of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.matrix import Dense, LazyMatrix
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.checks import check_word
from intently.observe.edits.edit import OnRows, Scene, fit
from intently.observe.edits.rules import Chosen

Part: TypeAlias = Literal["weights", "queries", "keys", "values", "outputs"]


class Run(Protocol):
    """What `intently.watch` kept of another run."""

    def entries(self, name: str) -> list[Any]:
        """All calls of a module."""
        ...


PARTS = ("weights", "queries", "keys", "values", "outputs")


@dataclass(frozen=True, repr=False, eq=False)
class replace(OnRows):  # noqa: N801 - written as a function: edits.replace(seen, heads=[3])
    """Weights (or another part) that another run had in the same layer: activation patching.

    ``part`` is "weights", "queries", "keys", "values" or "outputs" (A @ v before the output
    projection); ``rows`` are steps of the queries' text, of the keys' text for "keys" and "values".
    For "values" and "outputs" the run has to be watched with ``gradients=True``, which keeps v.
    Raises `ArgumentError` if the other run has no such layer, head or step.

    Source: Meng et al. 2022, "Locating and editing factual associations in GPT", section 2.
    """

    recording: Run
    part: Part = "weights"

    def __post_init__(self) -> None:
        check_word(self.part, "part", PARTS)
        if not hasattr(self.recording, "entries"):
            expected = "what it.watch(model) kept of another run"
            raise build(KindError, "recording", expected, type(self.recording).__name__)

    def change(self, scene: Scene) -> None:
        """Take the part from the other run."""
        entries = self.recording.entries(scene.name)
        if len(entries) > 1 and scene.index >= len(entries):
            expected = f"{scene.index + 1} calls of {scene.name}"
            raise build(ArgumentError, "recording", expected, f"{len(entries)}")
        entry = entries[min(scene.index, len(entries) - 1)]
        getattr(self, f"_{self.part}")(scene, entry)

    def _weights(self, scene: Scene, entry: Any) -> None:
        over, other = fit(self.over(scene), scene.matrix.ndim - 1), entry.matrix()
        if other.shape[-2:] != scene.matrix.shape[-2:]:
            other = Dense(_rows_of(other, scene))
        scene.matrix = Chosen(scene.matrix, _like(other, scene.matrix), over)

    def _queries(self, scene: Scene, entry: Any) -> None:
        p = _with_queries(scene)
        over = fit(self.over(scene), p.q.ndim - 1)
        q = _steps_of(entry.attention().q, scene.rows.at, "queries")
        scene.matrix = Attention(p.problem.replaced(q=torch.where(over[..., None], q, p.q)))

    def _keys(self, scene: Scene, entry: Any) -> None:
        p, over = _with_queries(scene), self._over_keys(scene)
        k = _steps_of(entry.attention().k, scene.keys.at, "keys")
        scene.matrix = Attention(p.problem.replaced(k=_grouped(k, p.k, over)))

    def _values(self, scene: Scene, entry: Any) -> None:
        over = self._over_keys(scene)
        v = _steps_of(entry.v(), scene.keys.at, "values")
        scene.values = _grouped(v, scene.values, over)

    def _outputs(self, scene: Scene, entry: Any) -> None:
        over, y = self.over(scene), entry.matrix() @ entry.v()
        scene.outputs.append((over, _steps_of(y, scene.rows.at, "outputs")))

    def _over_keys(self, scene: Scene) -> Tensor:
        """The keys (b, h, s) that are named; every row of their heads counts as touched."""
        heads = self.over_heads(scene)
        scene.touched = scene.touched | heads
        return heads & scene.keys.chosen(self.rows)


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
            raise build(ArgumentError, "edits.weights", expected, shape_of(found))
        scene.matrix = Chosen(scene.matrix, Dense(found), fit(over, found.ndim - 1))


def _with_queries(scene: Scene) -> Attention:
    if not isinstance(scene.matrix, Attention):
        expected = f"weights of {scene.name} that follow from its queries and keys"
        cause = "what watch keeps as weights has neither, nor has what another edit made"
        fix = 'replace queries and keys first, or part="weights"'
        raise build(ArgumentError, "part", expected, "weights alone", cause, fix)
    return scene.matrix


def _like(other: LazyMatrix, matrix: LazyMatrix) -> LazyMatrix:
    """The other matrix, whose leading axes have to fit: one batch row serves all."""
    same = [a in (1, b) for a, b in zip(other.shape, matrix.shape)]
    if other.ndim != matrix.ndim or not all(same):
        expected, got = f"weights {tuple(matrix.shape)}", f"weights {tuple(other.shape)}"
        raise build(ArgumentError, "recording", expected, got, fix="run texts of one length")
    if other.shape == matrix.shape:
        return other
    if isinstance(other, Attention):
        p, lead = other.problem, tuple(matrix.shape[:-2])
        return Attention(p.replaced(geometry=p.geometry._replace(lead=lead)))
    return Dense(other.dense().expand(matrix.shape))


def _rows_of(other: LazyMatrix, scene: Scene) -> Tensor:
    """The rows (…, t, s) of another run at the positions of the scene's, of its first keys."""
    t, s = scene.matrix.shape[-2:]
    start = 0 if scene.across else other.shape[-1] - other.shape[-2]
    rows = scene.rows.at - start
    fits = len(rows) == 0 or (int(rows[0]) >= 0 and int(rows[-1]) < other.shape[-2])
    if not fits or other.shape[-1] < scene.first_key + s:
        expected = f"rows {scene.first} to {scene.first + t - 1} over {s} keys"
        got = f"weights {tuple(other.shape)}"
        raise build(ArgumentError, "recording", expected, got, fix="run texts of one length")
    return other.tile(rows)[..., scene.first_key : scene.first_key + s]


def _steps_of(x: Tensor, at: Tensor, part: str) -> Tensor:
    """The steps ``at`` (n,) of x (…, steps, d); all of them if x has as many as the call."""
    steps = x.shape[-2]
    first, last = (int(at.min()), int(at.max())) if len(at) else (0, -1)
    if steps == last - first + 1:
        return x.index_select(-2, at - first)
    if steps <= last:
        got = f"{part} of {steps} steps"
        expected = f"{part} of {last + 1} steps"
        raise build(ArgumentError, "recording", expected, got, fix="run texts of one length")
    return x.index_select(-2, at)


def _grouped(new: Tensor, old: Tensor, over: Tensor) -> Tensor:
    """Old keys or values (…, g, s, d), the new ones where a head (b, h, s) is named."""
    groups = over.unflatten(1, (old.shape[-3] if old.ndim > 2 else 1, -1))
    if bool((groups.any(2) != groups.all(2)).any()):
        expected = f"all {groups.shape[2]} query heads of each group, which share keys and values"
        raise build(ArgumentError, "heads", expected, "some of them")
    return torch.where(fit(groups.any(2), old.ndim - 1)[..., None], new, old)
