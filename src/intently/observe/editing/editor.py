"""`Editor`: changes the calls of a model as edits say, before anybody else hears of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.kernels.operands import no_autocast, transformed
from intently.core.masks import Geometry
from intently.core.matrix import Dense, LazyMatrix
from intently.errors import KernelError, UnverifiedError, build
from intently.observe.editing.texts import Texts
from intently.observe.edits import Edit, Scene
from intently.observe.edits.edit import fit
from intently.observe.generation.joining import trimmed
from intently.observe.recording.labels import Tokens
from intently.observe.watching.call import (
    IN_FUNC,
    After,
    AttentionSpec,
    Call,
    Weights,
    numberless,
    operand,
    traced,
)
from intently.observe.watching.checking import Verdict, check
from intently.observe.watching.mask_inference import KnownMasks
from intently.observe.watching.modules import Names, comes_from_elsewhere, matches
from intently.observe.watching.scope import Changing, Made, in_backward
from intently.observe.watching.unseen import unseen

NO_DOOR = "an operator of PyTorch that was called directly"
OTHERS = "its queries and keys give others"


class Editor(Changing):
    """Changes the calls whose modules a pattern of ``edits`` names."""

    def __init__(self, model: nn.Module, edits: Mapping[str, Edit], tokens: Tokens | None) -> None:
        super().__init__(Names(model, list(edits)))
        self._edits = dict(edits)
        self._texts = Texts(tokens, self.names.modules.values())
        self._masks = KnownMasks()
        self._calls: dict[str, int] = {}
        self.applied: dict[str, Applied] = {}
        self.used: set[str] = set()
        """Patterns whose edits changed at least one row."""
        self.failed: TypeError | None = None
        self._suspected: dict[str, str] = {}

    def close(self) -> None:
        """Change nothing from now on, and let go of the model."""
        self._open = False
        self.names, self._masks = Names(None, None), KnownMasks()
        self.plain.clear()

    def unseen(self, patterns: Sequence[str]) -> dict[str, str]:
        """Modules that patterns name, and that may have attended unseen, and why."""
        named = {
            m: x for m, x in self.names.modules.items() if any(matches(x, p) for p in patterns)
        }
        found = unseen(named, self.applied, self.ran, deep=True)
        return found | {name: x for name, x in self._suspected.items() if name in named.values()}

    def see(self, call: Call) -> None:
        """A call was changed already, or is not wanted."""

    def miss(self, module: nn.Module | None, source: str, why: str) -> None:
        """Refuse a call that cannot be read if it was to be edited."""
        name = None if in_backward() else self._named(module)
        if name is not None:
            raise build(KernelError, name, "a call that edits can change", f"{source}: {why}")

    def suspect(self, module: nn.Module | None, source: str, why: str) -> None:
        """Keep it for the end, if no call is changed."""
        name = self._named(module)
        if name is not None:
            self._suspected[name] = f"{source}: {why}"

    def mixed(self, module: nn.Module | None, what: str) -> None:
        """Edits change attention only."""

    def compiled(self) -> None:
        """Compiled code attends unseen; edits that matched nothing say so at the end."""

    def reordered(self, index: object) -> None:
        """Edits name positions, which all beams share."""

    def changed(
        self, module: nn.Module | None, source: str, make: Made, result: Any
    ) -> tuple[Any, Made]:
        """Change a call whose module is named by a pattern; the others only tell positions."""
        name = self.names.of(module, self.running) if self._open else None
        if name is None:
            return result, make
        found = [(pattern, edit) for pattern, edit in self._edits.items() if matches(name, pattern)]
        call = (IN_FUNC if transformed() else traced()) or make()
        if isinstance(call, Call):
            call = numberless(call) or call
        if isinstance(call, str):
            if found:
                self.miss(module, source, call)
        elif found:
            try:
                return self._edited(name, found, call, result)
            except TypeError as error:
                self.failed = error
                raise
        else:
            self._texts.passed(name, call.q.shape[-2], self._shown(call)[1], self._across(call))
        return result, lambda: call

    def _edited(
        self, name: str, found: Sequence[tuple[str, Edit]], call: Call, result: Any
    ) -> tuple[Any, Made]:
        again = call.again or in_backward()  # a checkpoint runs a call again
        number = max(0, self._calls.get(name, -1) + (not again))
        self._calls[name] = number
        call, matrix, shown, v = self._read(name, number, call)
        scene = self._texts.scene(name, number, matrix, shown, v, self._across(call))
        scene.passed = call.passed
        for pattern, edit in found:
            before, scene.touched = scene.touched, torch.zeros_like(scene.touched)
            edit.change(scene)
            if bool(scene.touched.any()):
                self.used.add(pattern)
            scene.touched |= before
        if not bool(scene.touched.any()):
            return result, lambda: call
        if call.put is None or call.shut is not None:
            raise build(KernelError, name, "a call that edits can change", call.shut or NO_DOOR)
        said = " & ".join(repr(edit) for _, edit in found)
        told = said if call.edited is None else f"{call.edited} & {said}"
        part = Part.edited(scene)
        self.applied.setdefault(name, Applied(name, said)).add(scene, part)
        y, after = _output(call, scene, part)
        return call.put(y, scene.matrix), partial(_as_call, call, scene, after, told)

    def _across(self, call: Call) -> bool | None:
        return comes_from_elsewhere(call, self.running.inputs)

    def _shown(self, call: Call) -> tuple[AttentionSpec, Tensor]:
        """The arguments of a call and what its cache shows, without places that are not written."""
        k, shown = operand(call.k), call.shown
        g = Geometry(tuple(call.q.shape[:-2]), call.q.shape[-2], k.shape[-2], k.device)
        how = self._masks.simplified(call.how, g)
        if shown is None:
            return how, k
        return trimmed(how, shown.detach(), g)[:2]

    def _read(self, name: str, number: int, call: Call) -> tuple[Call, LazyMatrix, Tensor, Tensor]:
        """The call that stands for what ran, its weights, what its cache shows, and its values.

        Raises `UnverifiedError` if the weights do not give the output.
        """
        if call.columns is not None or call.y is None:
            got = call.then or "weights that meet the values in parts"
            raise build(KernelError, name, "one product of weights and values", got)
        how, shown = self._shown(call)
        s = shown.shape[-2]
        v = operand(call.v)[..., :s, :]
        matrix = replace(how, dropout=0.0).attend(operand(call.q), operand(call.k)[..., :s, :])
        verdict = self._verdict(replace(call, v=v, how=how), matrix, number)
        if call.as_weights is not None and verdict.verified is not True:
            return self._read(name, number, call.as_weights(OTHERS))
        if verdict.verified is False:
            expected = "weights that give the output of the model"
            raise build(UnverifiedError, name, expected, "others", verdict.why)
        return call, matrix if isinstance(matrix, Attention) else Dense(matrix.dense()), shown, v

    def _verdict(self, call: Call, matrix: Weights, number: int) -> Verdict:
        seldom = number and number & (number - 1) and number % 32
        if seldom and call.as_weights is None:
            return Verdict(None)
        with torch.no_grad():
            return check(call, matrix, number)


def _output(call: Call, scene: Scene, part: Part | None) -> tuple[Tensor, Tensor | After]:
    """The output with edited rows in place, as the function returns it, and as a call has it."""
    matrix = scene.matrix
    if scene.passed is not None:
        matrix = Dense(matrix.dense() * scene.passed())
    if isinstance(call.y, Tensor):
        y = call.y.clone()
        if part is not None:
            over = part.of(scene.touched.expand(scene.batch.total, -1, -1))
            made = _mixed(
                part.matrix(matrix), part.values(scene.values, scene.heads.total), part.rows
            ).to(y.dtype)
            at = (..., *part.at(y.ndim - 1), slice(None))
            y[at] = torch.where(fit(over, y.ndim - 1)[..., None], made, y[at])
        y = _given_rows(scene, y, torch.arange(y.shape[-2], device=y.device))
        return y, y
    assert call.y is not None
    rows = scene.touched.any((0, 1)).nonzero()[:, 0]
    mixed = _given_rows(scene, _mixed(matrix, scene.values, rows), rows)
    output = call.y.output.index_copy(-2, rows, call.y.finish(mixed, rows).to(call.y.output.dtype))
    return output, After(output, call.y.finish)


def _given_rows(scene: Scene, y: Tensor, rows: Tensor) -> Tensor:
    """Some rows of y (…, h, n, e), with those that an edit gives itself in place."""
    for over, given in scene.outputs:
        given = given.index_select(-2, rows) if given.ndim else given
        over = fit(over.index_select(-1, rows), y.ndim - 1)
        y = torch.where(over[..., None], given.to(y.dtype), y)
    return y


def _mixed(matrix: LazyMatrix, v: Tensor, rows: Tensor) -> Tensor:
    """Rows of matrix @ v; many at once by a kernel, few by their weights."""
    if len(rows) > matrix.shape[-2] // 2:
        return (matrix @ v.to(matrix.dtype)).index_select(-2, rows)
    weights = matrix[..., rows, :]
    if v.ndim > 2 and v.shape[-3] not in (1, weights.shape[-3]):
        v = v.repeat_interleave(weights.shape[-3] // v.shape[-3], -3)
    with no_autocast(v.device):
        return weights.to(v.dtype) @ v


def _as_call(call: Call, scene: Scene, y: Tensor | After, said: str) -> Call:
    """The call as it is after the edits ``said``."""
    matrix, kept = scene.matrix, call.how.weights is not None
    made = replace(call, v=scene.values, y=y, edited=said, real=None, as_weights=None, met=None)
    if isinstance(matrix, Attention) and not kept:
        p, dropout = matrix.problem, call.how.dropout
        made.q, made.k = p.q, p.k
        made.how = AttentionSpec(p.score, p.mask, p.bias, p.scale, p.softcap, p.sinks, dropout)
    else:
        w = matrix.dense()
        made.keys = operand(call.k) if made.as_it_is is None else made.keys
        made.q, made.k = (w.new_zeros(()).expand(*w.shape[:-2], n, 0) for n in w.shape[-2:])
        made.how, made.as_it_is = AttentionSpec(weights=w), "an edit made them"
    if any(x.ndim for _, x in scene.outputs):
        made.y, made.then = None, "an edit replaced the output"
    return made


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
