"""`Recorder`: keeps what sources see: names a call, normalises it, adds it, checks it.

With ``gradients`` it keeps v of each call, and the gradient of A @ v from a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from intently.core.attention import attend
from intently.core.kernels.operands import transformed, usual
from intently.core.masks import Geometry
from intently.errors import MemoryRefused, StaleError
from intently.observe.generation.generations import Added, Generations, Step
from intently.observe.generation.joining import trimmed, written
from intently.observe.recording.coverage import Coverage
from intently.observe.recording.labels import Tokens, naming_of
from intently.observe.recording.recording import Entry, Recording
from intently.observe.storage.stores import Store
from intently.observe.watching import checking
from intently.observe.watching.call import (
    IN_TRACE,
    Call,
    Projected,
    Weights,
    given,
    numberless,
    operand,
)
from intently.observe.watching.mask_inference import KnownMasks
from intently.observe.watching.modules import Names, comes_from_elsewhere
from intently.observe.watching.scope import Listener, alone, in_backward
from intently.observe.watching.unseen import ELSEWHERE, LAST_BITS, Ran, unseen

COMPILED = "Code compiled by torch.compile ran meanwhile; what it attended to could not be seen."

THEN = "{}: the weights are those of the softmax; afterwards, {}."
OTHERS = "its queries and keys give others"
EMPTY = "places of a static cache get weight that hold no key yet"
MIXING = "{}: mixing, not attention: it weighs {}."
MIXED = {
    "parameters": "what has parameters of its own, such as experts, classes or channels",
    "parts": "what separate parts of the model made, such as layers or experts",
    "copies": "copies of one tensor, such as streams",
    "fixed": "by numbers that do not depend on the data, such as learned or equal ones",
}
EARLIER = "those of earlier steps are"
HIDDEN = "rounding hides whether its queries and keys give them"
AS_IT_IS = "{}: the weights themselves are kept, because {}."
EDITED = "{}: these are the weights after {}."


class Recorder(Listener):
    """Keeps the calls of one watch."""

    def __init__(
        self,
        model: nn.Module | None,
        layers: str | Sequence[str] | None,
        tokens: Tokens | Any,
        store: str,
        dtype: torch.dtype | None,
        gradients: bool,
        budget: int,
        deep: bool,
    ) -> None:
        super().__init__(Names(model, layers))
        self._deep, self.ran_compiled = deep, False
        naming = naming_of(tokens)
        self.recording = Recording(tokens if naming is None else None)
        self._naming = naming, getattr(tokens, "pad_token_id", None)
        covered = self.recording.covered
        self._store, self._masks = Store(store, dtype, budget), KnownMasks()
        self._gradients = Gradients(self._store, covered) if gradients else None
        self._generations = Generations(self._store, self.running, covered)
        self._counts: dict[str, int] = {}
        self._mixing: set[str] = set()

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Hear which texts the model reads; errors never reach it."""
        if in_backward() or transformed() or torch.compiler.is_compiling():
            return
        try:
            with alone(torch.device("cpu")):
                self.recording.texts.read(args, kwargs, *self._naming)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.recording.covered.note(f"The tokens of what was read are not known: {why}")

    def see(self, call: Call) -> None:
        """Keep a call under the name of the module that made it; errors never reach the model."""
        again = call.again
        name = None if again and self._gradients is None else self._named(call.module)
        if name is None:
            return
        covered, reason = self.recording.covered, _unfit(call)
        if reason is not None:
            covered.unseen[name] = reason
            return
        try:
            with alone(given(call.q).device):
                if again and self._gradients is not None:
                    self._gradients.again(name, call)
                else:
                    self._keep(name, call)
        except OSError as error:
            self._open = False
            covered.note(f"The recording ended at {name}: {error}")
        except MemoryRefused as error:
            covered.unseen[name] = str(error)
        except Exception as error:
            covered.unseen[name] = f"{type(error).__name__}: {error}"

    def miss(self, module: nn.Module | None, source: str, why: str) -> None:
        """Note that a source saw a call that cannot be kept, and why."""
        name = self._named(module)
        if name is not None:
            self.recording.covered.unseen[name] = f"{source}: {why}"

    def mixed(self, module: nn.Module | None, what: str) -> None:
        """Note that a module mixes parts of the model, and does not attend."""
        name = self._named(module)
        if name is not None:
            self._mixing.add(name)
            self.recording.covered.note(MIXING.format(name, MIXED[what]))

    def compiled(self) -> None:
        """Note that code compiled by torch.compile begins to run: its attention is not seen."""
        self.ran_compiled = True
        self.recording.covered.note(COMPILED)

    def reordered(self, index: object) -> None:
        """A cache goes on with the rows ``index`` (b,) of the step before."""
        if isinstance(index, Tensor) and index.ndim == 1 and not index.is_floating_point():
            self._generations.reordered(index)

    def close(self) -> None:
        """Keep nothing from now on, and let go of the model."""
        ended, self._open = not self._open, False
        self._store.forget()
        self._masks = KnownMasks()
        self._generations = Generations(self._store, self.running, self.recording.covered)
        if not ended:
            self._say_unseen()
        self.names, self.ran = Names(None, None), Ran()
        self.plain.clear()

    def _say_unseen(self) -> None:
        """Name the modules that may have attended unseen, and why."""
        covered, seen = self.recording.covered, self.recording.layers
        for name in [name for name in covered.unseen if name in seen]:
            covered.note(f"Not every call of {name} was kept: {covered.unseen.pop(name)}")
        for name, why in unseen(self.names.chosen(), seen, self.ran, self._deep).items():
            if name in seen:
                covered.note(f"{name}: {why}")
            elif name not in self._mixing:
                covered.unseen.setdefault(name, why)
        for text, applies in ((ELSEWHERE, self.ran.elsewhere), (LAST_BITS, self._deep)):
            if applies:
                covered.note(text)

    def _keep(self, name: str, call: Call) -> None:
        place = self._generations.place(name, self.names.forward(call.module, self.running))
        step = self._normalised(call)
        found: checking.Verdict | None = None
        if call.as_weights is not None:
            turn = _turn(name, self._counts.get(name, 0), 1)
            matrix = step.spec.get().attend(operand(step.q), operand(step.k))
            found = checking.check(step.call, matrix, turn, self._store.dtype)
            why = None if found.verified else OTHERS if found.verified is False else HIDDEN
            if isinstance(step.k, Tensor) and written(step.k, step.geometry.t) is not step.k:
                why = EMPTY  # queries see places that are not written yet
            why = why or (EARLIER if self._generations.keeps_weights(place) else None)
            if why is not None:
                call = call.as_weights(why)
                step = self._normalised(call)
            if why is not None or self._store.dtype is not None or self._store.kind == "reference":
                found = None  # a copy has the same bits, so it need not be compared again
        for text, why in ((AS_IT_IS, call.as_it_is), (THEN, call.then)):
            if why is not None and why is not EARLIER:
                self.recording.covered.note(text.format(name, why))
        if call.edited is not None:
            self.recording.covered.note(EDITED.format(name, call.edited))
        entry, made, matrix = self._generations.add(place, step) or self._begun(name, step)
        if entry.steps & (entry.steps - 1) == 0 or entry.steps % 32 == 0:
            self._check(entry, made, matrix, found if entry.steps == 1 else None)
        if self._gradients is not None:
            self._gradients.keep(entry, call)
        elif entry.steps == 1:
            self._generations.begin(place, entry, call)

    def _normalised(self, call: Call) -> Step:
        if isinstance(call.q, Projected) and isinstance(call.k, Projected):
            shape, (*_, s, _) = call.q.shape, call.k.shape
            g = Geometry(shape[:-2], shape[-2], s, call.q.x.device)
            whole = self._masks.simplified(call.how, g)
            return Step(call, call.q, call.k, self._store.how(whole), g)
        q, k = operand(call.q).detach(), operand(call.k).detach()
        g, shown = _geometry(q, k), call.shown
        whole = self._masks.simplified(call.how, g)
        if shown is None or not isinstance(call.q, Tensor) or not isinstance(call.k, Tensor):
            return Step(call, call.q, call.k, self._store.how(whole), g)
        how, shown, cut = trimmed(whole, shown.detach(), g)
        spec, part = self._store.how(how), k[..., : cut.s, :]
        matrix: Callable[[], Weights] | None = None
        if cut.s < g.s and how.mask is None:  # padding saw what is not written, too
            matrix = partial(whole.attend, q, k)
        elif self._store.kind == "disk":  # the file need not be read
            matrix = partial(spec.get().attend, q, part)
        if call.as_it_is is None:
            return Step(call, q, part, spec, cut, matrix)
        shown = written(shown, g.t)
        none = q.new_zeros(()).expand(*q.shape[:-1], shown.shape[-1])
        return Step(call, none, shown, spec, cut, matrix)

    def _begun(self, name: str, step: Step) -> Added:
        """A new entry of a call that continues none."""
        rows = self._generations.rows(step)
        entry = Entry(name, self._counts.get(name, 0), step.call.source, rows)
        self._counts[name] = entry.index + 1
        entry.changed = step.call.changed
        entry.across = comes_from_elsewhere(step.call, self.running.inputs)
        self.recording.add(entry)
        return entry, step.call, step.matrix or entry.attention

    def _check(
        self,
        entry: Entry,
        call: Call,
        matrix: Callable[[], Weights],
        found: checking.Verdict | None,
    ) -> None:
        """Compare with the output unless a verdict was ``found``; remember the worst verdict."""
        try:
            turn = _turn(entry.name, entry.index, entry.steps)
            found = found or checking.check(call, matrix(), turn, self._store.dtype)
        except StaleError as error:
            found = checking.Verdict(None, str(error))
        except Exception as error:
            found = checking.Verdict(False, f"it could not be compared: {error}")
        untold = checking.untold(found.why)
        if untold and entry.steps > 1:  # the values of other steps may tell
            return
        entry.compared += 0 if untold else found.rows
        worse = entry.verified is not False and found.verified is not True
        if entry.steps == 1 or worse or checking.untold(entry.why):
            entry.verified, entry.why = found.verified, found.why


def _turn(name: str, index: int, steps: int) -> int:
    """A number for each comparison, so that each takes other rows."""
    return crc32(name.encode()) + index + steps


def _geometry(q: Tensor, k: Tensor) -> Geometry:
    """The geometry of the weights of q and k; raises what `attend` raises."""
    same = q.ndim > 1 and q.shape[:-2] == k.shape[:-2] and q.shape[-1] == k.shape[-1]
    if not (same and q.dtype is k.dtype and q.device == k.device and usual(q)):
        return attend(q, k).problem.geometry
    return Geometry(tuple(q.shape[:-2]), q.shape[-2], k.shape[-2], q.device)


def _unfit(call: Call) -> str | None:
    """Why the tensors of a call hold no numbers to keep."""
    for tensor in map(given, (call.q, call.k)):
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_nested:
            return f"its operands are of type {type(tensor).__name__}, not plain tensors"
    return IN_TRACE if torch._C._get_tracing_state() is not None else numberless(call)


# --- gradients ------------------------------------------------------------------------------------

NO_GRAPH = (
    "the call ran without gradients: under torch.no_grad, from parameters and inputs that need "
    "none, or in a reentrant checkpoint whose backward pass ran outside of the block, or in a "
    "thread of its own as on GPUs"
)

ROUNDING = 16
"""Units in the last place, of the largest entry, by which equal operands may differ."""


class Gradients:
    """Keeps values and gradients; its hooks hold the store, not the model."""

    def __init__(self, store: Store, covered: Coverage) -> None:
        self._store, self._covered = store, covered
        self._waiting: dict[str, list[Entry]] = {}

    def keep(self, entry: Entry, call: Call) -> None:
        """Keep v now, and the gradient when it comes; raises `OSError` if the disk is full."""
        entry.values = self._store.keep(call.v)
        if not self._wait(entry, call):
            entry.ungraded = NO_GRAPH
            self._waiting.setdefault(entry.name, []).append(entry)

    def again(self, name: str, call: Call) -> None:
        """Take the graph of a call that a backward pass computes again.

        A reentrant checkpoint ran the call without a graph first; its backward pass begins with the
        last call.
        """
        waiting, given = self._waiting.get(name, []), (operand(call.q), operand(call.k))
        for entry in reversed(waiting):
            if all(map(_close, given, entry.rows.operands())) and self._wait(entry, call):
                entry.ungraded = None
                waiting.remove(entry)
                return

    def _wait(self, entry: Entry, call: Call) -> bool:
        """Whether a gradient may come."""
        y, back = call.y if call.handed is None else call.handed, call.back
        store, covered = self._store, self._covered
        if not isinstance(y, Tensor) or not y.requires_grad:
            return False

        def keep(grad: Tensor) -> None:
            try:
                with alone(grad.device):
                    grad = grad if back is None else back(grad)
                    entry.gradient = store.own(grad, store.dtype)
            except Exception as error:  # no backward pass fails by being watched
                entry.ungraded = f"it could not be kept: {error}"
                covered.note(f"The gradient of {entry.name} was not kept: {error}")

        y.register_hook(keep)
        return True


def _close(x: Tensor, y: Tensor) -> bool:
    """Whether the first rows of an operand are y, up to rounding."""
    if x.shape[:-2] != y.shape[:-2]:
        return False
    far = (x[..., : y.shape[-2], :].to(y.dtype) - y).abs().max()
    return bool(far <= ROUNDING * torch.finfo(y.dtype).eps * y.abs().max())
