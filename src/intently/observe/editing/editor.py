"""`Editor`: changes the calls of a model as edits say, before anybody else hears of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.kernels.operands import transformed
from intently.core.masks import Geometry
from intently.core.matrix import Dense, LazyMatrix
from intently.errors import KernelError, UnverifiedError, build
from intently.observe.editing.applied import Applied, Part, edited_rows, groups, mixed_rows
from intently.observe.editing.texts import Texts
from intently.observe.edits import Edit, Scene
from intently.observe.edits.rules import are_shares, of_weights
from intently.observe.generation.call_masks import trimmed
from intently.observe.recording.labels import Tokens
from intently.observe.watching.call import (
    IN_FUNC,
    After,
    AttentionSpec,
    Call,
    numberless,
    operand,
    traced,
)
from intently.observe.watching.checking import Verdict, check
from intently.observe.watching.inputs import comes_from_elsewhere
from intently.observe.watching.listener import Changing, Made, in_backward
from intently.observe.watching.mask_inference import KnownMasks
from intently.observe.watching.naming import Names, matches
from intently.observe.watching.plain_check import confirmed

NO_DOOR = "one whose output is known only after the module went on with it, or not at all"
LAID_OUT = (
    "one whose queries, keys or scores `{}` laid out anew, so that its rows are known too late"
)
NO_SHARES = "an edit made weights that are negative or sum to more than 1, which is not kept: {}"


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

    def close(self) -> None:
        """Change nothing from now on, and let go of the model."""
        self._open, self.closed = False, True
        self.names, self._masks = Names(None, None), KnownMasks()
        self.plain.clear()

    def see(self, call: Call) -> None:
        """A call was changed already, or is not wanted."""

    def miss(self, module: nn.Module | None, source: str, why: str) -> None:
        """Refuse a call that cannot be read if it was to be edited."""
        name = None if in_backward() else self._named(module)
        if name is not None:
            raise build(KernelError, name, "a call that edits can change", f"{source}: {why}")

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
            return self._edited(name, found, call, result)
        else:
            self._texts.passed(name, call.q.shape[-2], self._trimmed(call)[1], self._across(call))
        return result, lambda: call

    def _edited(
        self, name: str, found: Sequence[tuple[str, Edit]], call: Call, result: Any
    ) -> tuple[Any, Made]:
        again = in_backward()  # a checkpoint runs a call again
        number = max(0, self._calls.get(name, -1) + (not again))
        self._calls[name] = number
        matrix, k, v = self._read(name, number, call)
        scene = self._texts.scene(name, number, matrix, k, v, self._across(call))
        for pattern, edit in found:
            before, scene.touched = scene.touched, torch.zeros_like(scene.touched)
            edit.change(scene)
            if bool(scene.touched.any()):
                self.used.add(pattern)
            scene.touched |= before
        if not bool(scene.touched.any()):
            return result, lambda: call
        if call.put is None:
            got = NO_DOOR if call.shut is None else LAID_OUT.format(call.shut)
            raise build(KernelError, name, "a call that edits can change", got)
        said = " & ".join(repr(edit) for _, edit in found)
        told = said if call.edited is None else f"{call.edited} & {said}"
        parts = groups(scene)
        self.applied.setdefault(name, Applied(name, said)).add(scene, parts)
        y, after = _output(call, scene, parts)
        return call.put(y, scene.matrix), partial(_as_call, call, scene, after, told)

    def _across(self, call: Call) -> bool | None:
        return comes_from_elsewhere(call, self.running.inputs)

    def _trimmed(self, call: Call) -> tuple[AttentionSpec, Tensor]:
        """The arguments and the keys of a call, without places of a cache that are not written."""
        q, k = call.q, operand(call.k)
        g = Geometry(tuple(q.shape[:-2]), q.shape[-2], k.shape[-2], k.device)
        how, _, cut = trimmed(self._masks.simplified(call.how, g), k.detach(), g)
        return how, k[..., : cut.s, :]

    def _read(self, name: str, number: int, call: Call) -> tuple[LazyMatrix, Tensor, Tensor]:
        """The weights, keys and values of a call.

        Raises `UnverifiedError` if they do not give its output.
        """
        if call.columns is not None or call.y is None:
            got = call.then or "weights that meet the values in parts"
            raise build(KernelError, name, "one product of weights and values", got)
        how, k = self._trimmed(call)
        s = k.shape[-2]
        v, shown = operand(call.v)[..., :s, :], k if call.keys is None else call.keys
        matrix = replace(how, dropout=0.0).attend(operand(call.q), k)
        verdict = self._verdict(replace(call, v=v, how=how), matrix, number)
        if verdict.verified is False and isinstance(call.real, Tensor):
            real = call.real[..., :s]
            made = Attention(of_weights(real)) if are_shares(real) else Dense(real)
            return made, shown, v
        if verdict.verified is False:
            expected = "weights that give the output of the model"
            raise build(UnverifiedError, name, expected, "others", verdict.why)
        return matrix, shown, v

    def _verdict(self, call: Call, matrix: Attention, number: int) -> Verdict:
        if number and number & (number - 1) and number % 32:
            return Verdict(None)
        with torch.no_grad():
            found = confirmed(call, matrix.q.detach(), matrix.k.detach(), call.how, number)
            return found or check(call, matrix, number)


def _output(call: Call, scene: Scene, parts: Sequence[Part]) -> tuple[Tensor, Tensor | After]:
    """The output with edited rows in place, as the function returns it, and as a call has it."""
    if isinstance(call.y, Tensor):
        y = edited_rows(scene, parts, call.y)
        return y, y
    assert call.y is not None
    rows = scene.touched.any((0, 1)).nonzero()[:, 0]
    mixed = edited_rows(scene, (), mixed_rows(scene.matrix, scene.values, rows), rows)
    output = call.y.output.index_copy(-2, rows, call.y.finish(mixed, rows).to(call.y.output.dtype))
    return output, After(output, call.y.finish)


def _as_call(call: Call, scene: Scene, y: Tensor | After, said: str) -> Call | str:
    """The call as it is after the edits ``said``."""
    given = not isinstance(scene.matrix, Attention)
    if isinstance(scene.matrix, Attention):
        p = scene.matrix.problem
    else:
        weights = scene.matrix.dense()
        if not are_shares(weights):
            return NO_SHARES.format(said)
        p = of_weights(weights)
    how = AttentionSpec(p.score, p.mask, p.bias, p.scale, p.softcap, p.sinks, call.how.dropout)
    how = AttentionSpec(weights=scene.matrix.dense().detach()) if given else how
    made = replace(call, q=p.q, k=p.k, v=scene.values, y=y, how=how, edited=said)
    made.real = made.as_weights = None
    made.as_it_is = "an edit made them" if given else None
    made.keys = operand(call.k) if given else None
    if any(x.ndim for _, x in scene.outputs):
        made.y, made.then = None, "an edit replaced the output"
    return made
