"""`Recorder`: what a source saw, under the name of the module that ran, into a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import SupportsIndex
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from intently.attention_matrix import Attention, attend
from intently.biases.bias import TensorBias
from intently.errors import StaleError
from intently.kernels.modes import transformed
from intently.masks import Geometry
from intently.masks.mask import Allowed
from intently.modules.blocks import DecoderLayer
from intently.observe.generation.call_masks import first_part, looked_at, may_join, one_by_one
from intently.observe.generation.joining import Joined, Link
from intently.observe.generation.open_calls import Opened, Path, chosen
from intently.observe.recording.labels import Tokens
from intently.observe.recording.recording import Entry, Recording, Whole
from intently.observe.storage.stores import KeptHow, Store, identity, packed, same, small
from intently.observe.watching import checking
from intently.observe.watching.call import AttentionSpec, Call, operand
from intently.observe.watching.gradients import Gradients
from intently.observe.watching.isolation import alone
from intently.observe.watching.mask_inference import simplified
from intently.observe.watching.naming import OUTSIDE, Names
from intently.observe.watching.unseen import ELSEWHERE, LAST_BITS, Ran, Softmax, unseen

COMPILED = "Code compiled by torch.compile ran meanwhile; what it attended could not be seen."
CROPPED = (
    "A cache was cropped within its last call (drafts that were rejected): rows that read what it "
    "forgot are left out, but for those of the last call of all."
)
OTHER_KEYS = (
    "{}: a cache showed other keys than those that were kept (cropped further back, or "
    "overwritten), or those of several: what follows is a call of its own."
)
APART = (
    "{}: queries see the same keys again, and nothing that was seen tells which of them belong "
    "together: each call is one of its own."
)
OPEN = 4
"""How many entries of a module the next call may continue: it may have several caches."""


class Running(list[nn.Module]):
    """The modules that run, the innermost last, and a number for the forward of each."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self._count = 0

    def append(self, module: nn.Module) -> None:
        """Enter a forward."""
        self._count += 1
        self.numbers.append(self._count)
        super().append(module)

    def pop(self, at: SupportsIndex = -1) -> nn.Module:
        """Leave the innermost."""
        self.numbers.pop(at)
        return super().pop(at)


class Recorder:
    """Keeps the calls of one watch: names them, joins and checks them."""

    def __init__(
        self,
        model: nn.Module | None,
        layers: str | Sequence[str] | None,
        tokens: Tokens | None,
        store: str,
        dtype: torch.dtype | None,
        gradients: bool,
        deep: bool = False,
    ) -> None:
        self.running, self.ran, self._deep = Running(), Ran(), deep
        self.ran_compiled = False
        self.names = Names(model, layers)
        self.recording = Recording(tokens)
        self._store = Store(store, dtype)
        self._gradients = Gradients(self._store, self.recording.covered) if gradients else None
        self._path = Path()
        self._last: dict[tuple[str, int], list[Opened]] = {}
        self._orders: dict[tuple[str, bool], tuple[int | None, int]] = {}
        self._simple: dict[
            tuple[object, ...], tuple[StorageWeakRef, Tensor | None, AttentionSpec]
        ] = {}
        self._counts: dict[str, int] = {}
        self._open, self.closed = True, False

    def see(self, call: Call) -> None:
        """Keep a call under the name of the module that made it; a model never fails by it."""
        again = torch._C._current_graph_task_id() != -1  # in a backward pass (checkpointing)
        if not self._open or (again and self._gradients is None):
            return
        name = self.names.of(call.module, self.running)
        if name is None or not self.names.wanted(name):
            return
        covered = self.recording.covered
        reason = _unfit(call)
        if reason is not None:
            covered.unseen[name] = reason
            return
        try:
            with alone(_device(call)):
                if again and self._gradients is not None:
                    self._gradients.again(name, call)
                else:
                    self._keep(name, call)
        except OSError as error:
            self._open = False
            covered.note(f"The recording ended at {name}: {error}")
        except Exception as error:
            covered.unseen[name] = f"{type(error).__name__}: {error}"

    def miss(self, module: nn.Module | None, source: str, why: str) -> None:
        """Say that a source saw a call that cannot be kept, and why."""
        keeps = self._open and torch._C._current_graph_task_id() == -1
        name = self.names.of(module, self.running) if keeps else None
        if name is not None and self.names.wanted(name):
            self.recording.covered.unseen[name] = f"{source}: {why}"

    def compiled(self) -> None:
        """Code compiled by torch.compile begins to run: what it attends is not seen."""
        self.ran_compiled = True
        self.recording.covered.note(COMPILED)

    def reordered(self, index: object) -> None:
        """A cache goes on with the rows ``index`` (b,) of the step before."""
        if isinstance(index, Tensor) and index.ndim == 1 and not index.is_floating_point():
            self._path = Path(self._path.turn + 1, index=index)

    def close(self) -> None:
        """Keep nothing from now on."""
        ended, self._open, self.closed = not self._open, False, True
        self._store.forget()
        self._last.clear()
        self._simple.clear()
        if not ended:
            self._say_unseen()
        self.names, self.ran = Names(None, None), Ran()

    def softmax(self, weights: Tensor, followed: Softmax | None = None) -> None:
        """A softmax ran outside of all functions that are seen; deep=True ``followed`` it."""
        again = torch._C._current_graph_task_id() != -1
        if self._open and not again and self._deep == (followed is not None):
            self.ran.weights(self.running, weights, followed)

    def _say_unseen(self) -> None:
        """Name what may have attended and was not kept, and why."""
        covered, seen = self.recording.covered, self.recording.layers
        for name in [name for name in covered.unseen if name in seen]:
            covered.note(f"Not every call of {name} was kept: {covered.unseen.pop(name)}")
        for name, why in unseen(self.names.chosen(), seen, self.ran, self._deep).items():
            if name in seen:
                covered.note(f"{name}: {why}")
            else:
                covered.unseen.setdefault(name, why)
        if self.ran.elsewhere:
            covered.note(ELSEWHERE)
        if self._deep:
            covered.note(LAST_BITS)

    def _keep(self, name: str, call: Call) -> None:
        rows: Joined | Whole
        order, place = self._order(name, call.module), self._place(name)
        matrix: Callable[[], Attention] | None = None
        if isinstance(call.q, Tensor) and isinstance(call.k, Tensor):
            q, k = call.q.detach(), call.k.detach()
            g = attend(q, k).problem.geometry
            whole = self._simplified(call.how, g)
            shown, (plain, k, g) = k, self._written(whole, k, g)
            how = self._store.how(plain)
            opened = self._last.get((name, order), []) if g.s else []
            if self._joined(opened, place, call, q, k, how, g):
                return
            if 0 in (*q.shape, *k.shape):  # no key that could tell which call continues which
                rows = Whole(self._store.keep(q), self._store.keep(k), how)
            else:
                rows = Joined(self._store, q, k, how, g)
            if k is not shown and plain.mask is None:  # padding saw what is not written, too
                matrix = partial(_attend, q, shown, whole)
            elif self._store.kind == "disk":  # what was written need not be read
                matrix = partial(_attend, q, k, how.get())
            if g.t == g.s:
                self._path = Path(self._path.turn + 1)
        else:
            g = attend(operand(call.q), operand(call.k)).problem.geometry
            how = self._store.how(self._simplified(call.how, g))
            rows = Whole(self._store.keep(call.q), self._store.keep(call.k), how)
        entry = Entry(name, self._counts.get(name, 0), call.source, rows)
        self._counts[name] = entry.index + 1
        entry.tokens = self.recording.tokens
        self.recording.add(entry)
        self._check(entry, call, matrix or entry.attention)
        if self._gradients is not None:
            self._gradients.keep(entry, call)
        elif isinstance(rows, Joined):
            others = [x for x in self._last.get((name, order), []) if x.place != place]
            made = Opened(entry, rows, call, self._path.turn, place)
            self._last[name, order] = [*others[1 - OPEN :], made]

    def _order(self, name: str, module: nn.Module | None) -> int:
        """How many calls of this name the running forward made before: each is one of its own.

        A forward is that of ``module``, else of the innermost running one that has a name; calls
        that no module makes are all first ones.
        """
        numbers = (
            number
            for running, number in zip(reversed(self.running), reversed(self.running.numbers))
            if running is module or (module is None and self.names.of(running, ()) is not None)
        )
        return self._counted((name, False), next(numbers, None))

    def _place(self, name: str) -> int:
        """How many calls of this name the outermost forward made before.

        There, one module may be called with several caches, each in its turn.
        """
        return self._counted((name, True), next(iter(self.running.numbers), None))

    def _counted(self, of: tuple[str, bool], forward: int | None) -> int:
        before, count = self._orders.get(of, (None, -1))
        count = count + 1 if forward is not None and forward == before else 0
        self._orders[of] = forward, count
        return count

    def _joined(
        self,
        opened: list[Opened],
        place: int,
        call: Call,
        q: Tensor,
        k: Tensor,
        how: KeptHow,
        g: Geometry,
    ) -> bool:
        """Whether the call continued one of its module, and was added to it.

        That is the one in the same place of the forward before, else the only one it can be.
        """
        opened = [x for x in opened if may_join(how.how, x.rows.last.how.how)]
        if not opened:
            return False
        new: Tensor | None = k[..., g.s - g.t :, :]
        found = chosen(opened, place, lambda x: x.rows.continued_by(k, g.t) if g.s > g.t else None)
        if found is not None:
            cropped = found[1].columns is not None
            self._path = Path(self._path.turn + 1, found[1].maybe, cropped=cropped)
        else:
            if self._beams(k) == g.t > 1 and how.how.bias is None:
                call, plain, g = one_by_one(call, how.get(), g)
                q, k, how = operand(call.q), operand(call.k), self._store.how(plain)
            if g.t == 1:
                found, new = chosen(opened, place, lambda x: self._same_keys(x, k)), None
        if found is None:
            self._say_apart(opened[-1], k, g)
            return False
        last, link = found
        rows, last.place = last.rows, place
        if link.columns is not None:
            self.recording.covered.note(CROPPED)
            rows.crop(link.columns)
        rows.add(q, new, how, g, link)
        last.entry.steps += 1
        last.turn = self._path.turn
        step = last.entry.steps
        if step & (step - 1) == 0 or step % 32 == 0:

            def matrix() -> Attention:
                return _attend(q, rows.shown(), how.get())

            self._check(last.entry, call, matrix)
        return True

    def _same_keys(self, last: Opened, k: Tensor) -> Link | None:
        """How a single query continues others that saw the same keys: those of an encoder.

        Where self-attention went on meanwhile, its rows tell which row continues which; where
        there is none (recurrent decoders) the keys have to be the same tensor. Nothing tells
        whether calls that no module makes belong together: they stay apart.
        """
        path = self._path
        if path.cropped or (not self.running and last.entry.name == OUTSIDE):
            return None
        if path.turn == last.turn:
            same = last.key == identity(k) and not last.alive.expired()
            rows = torch.eye(len(k), dtype=torch.bool, device=k.device)
            return Link(0, rows, None) if same else None
        maybe = path.maybe
        if path.index is not None:
            rows = torch.arange(last.rows.rows, device=k.device)
            maybe = path.index.to(k.device)[:, None] == rows
        return None if maybe is None else last.rows.shown_again(k, maybe)

    def _say_apart(self, last: Opened, k: Tensor, g: Geometry) -> None:
        """Say why a call that looks like a step does not continue the last one."""
        rows, name = last.rows, last.entry.name
        every = torch.ones(len(k), rows.rows, dtype=torch.bool, device=k.device)
        step = g.t == 1 or self._path.maybe is not None  # drafts are several queries at a time
        if step and rows.shown_again(k, every):
            self.recording.covered.note(APART.format(name))
        elif g.t < g.s != rows.columns and rows.begins_like(k):
            self.recording.covered.note(OTHER_KEYS.format(name))

    def _beams(self, k: Tensor) -> int:
        """How many rows of a decoder of ours share a row of the encoder's keys: its beams."""
        for layer, module in pairwise(self.running):
            if isinstance(layer, DecoderLayer) and layer.cross_attention is module:
                return self._path.rows // len(k)
        return 1

    def _written(
        self, how: AttentionSpec, k: Tensor, g: Geometry
    ) -> tuple[AttentionSpec, Tensor, Geometry]:
        """Without the last columns, where a static cache has nothing yet and no query looks.

        Its empty keys are zeros; padding mostly has others, and where it has none, queries look
        further than a cache lets them: the last keys are not their own. Queries of padding that
        see nothing, which the plain formula spreads over all columns, are spread over those that
        are left.
        """
        if g.s <= g.t or (how.mask is None and how.bias is None) or bool(k[..., -1:, :].any()):
            return how, k, g
        looks = looked_at(how, g).reshape(-1, g.t, g.s).any(0)
        columns = looks.any(0).nonzero()
        end = int(columns.max()) + 1 if len(columns) else g.s
        if end == g.s or bool(k[..., end:, :].any()):
            return how, k, g
        if end != g.t and bool(looks.triu(end - g.t + 1).any()):
            return how, k, g
        how, g = first_part(how, g, g.t, end)
        return how, k[..., :end, :], g

    def _simplified(self, how: AttentionSpec, g: Geometry) -> AttentionSpec:
        value = how.bias if how.mask is None else how.mask
        if value is None or type(value) not in (Allowed, TensorBias):
            return how
        (x,) = (x.detach() for x in value.tensors())
        key = (identity(x), g, how.mask is None)
        alive, old, found = self._simple.get(key, (None, None, how))
        if alive is None or alive.expired() or (old is not None and not same(old, x)):
            look = x.is_inference() or small(x)  # not every change is counted
            found = simplified(how, g)
            old = packed(x) if look else None
            self._simple[key] = StorageWeakRef(x.untyped_storage()), old, found
        return replace(how, mask=found.mask, bias=found.bias if how.mask is None else how.bias)

    def _check(self, entry: Entry, call: Call, matrix: Callable[[], Attention]) -> None:
        """Compare with what came out, and remember the worst that was found."""
        try:
            turn = crc32(entry.name.encode()) + entry.index + entry.steps  # other rows each time
            found = checking.check(call, matrix(), turn, self._store.dtype)
        except StaleError as error:
            found = checking.Verdict(None, str(error))
        except Exception as error:
            found = checking.Verdict(False, f"it could not be compared: {error}")
        untold = found.why == checking.CANNOT_TELL
        if untold and entry.steps > 1:  # of other steps the values may tell
            return
        entry.compared += 0 if untold else found.rows
        worse = entry.verified is not False and found.verified is not True
        if entry.steps == 1 or worse or entry.why == checking.CANNOT_TELL:
            entry.verified, entry.why = found.verified, found.why


def _attend(q: Tensor, k: Tensor, how: AttentionSpec) -> Attention:
    return attend(
        q.to(k.dtype),
        k,
        score=how.score,
        mask=how.mask,
        bias=how.bias,
        scale=how.scale,
        softcap=how.softcap,
        sinks=how.sinks,
        dropout=how.dropout,
    )


def _device(call: Call) -> torch.device:
    """Where a call runs."""
    return call.q.device if isinstance(call.q, Tensor) else call.q.x.device


def _unfit(call: Call) -> str | None:
    """Why the tensors of a call hold no numbers that could be kept."""
    for x in (call.q, call.k):
        tensor = x if isinstance(x, Tensor) else x.x
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_nested:
            return f"its operands are of type {type(tensor).__name__}, not plain tensors"
        if tensor.device.type == "meta":
            return "its operands are on the meta device and hold no numbers"
    if transformed():
        return "it ran inside torch.func (vmap, grad), where tensors stand for many"
    if torch._C._get_tracing_state() is not None:
        return "it ran inside torch.jit.trace, which would trace the recording too"
    return None
