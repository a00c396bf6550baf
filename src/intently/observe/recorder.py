"""`Recorder`: what a source saw, under the name of the module that ran, into a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from intently.attention import Attention, attend
from intently.biases import as_bias
from intently.errors import StaleError
from intently.kernels.derivatives import transformed
from intently.masks import Geometry, allowed
from intently.matrix.lazy import no_autocast
from intently.observe import checking
from intently.observe.call import Call, How, operand
from intently.observe.joining import Joined, Link
from intently.observe.naming import OUTSIDE, Names
from intently.observe.pieces import may_join
from intently.observe.recognised import simplified
from intently.observe.recording import Entry, Recording, Whole
from intently.observe.stores import KeptHow, Store, identity

COMPILED = "Code compiled by torch.compile ran meanwhile; what it attended could not be seen."


class Recorder:
    """Keeps the calls of one watch: names them, joins and checks them."""

    def __init__(
        self,
        model: nn.Module | None,
        layers: str | Sequence[str] | None,
        tokens: Sequence[str] | None,
        store: str,
        dtype: torch.dtype | None,
        gradients: bool,
    ) -> None:
        self.running: list[nn.Module] = []
        self.ran_compiled = False
        self.names = Names(model, layers)
        self.recording = Recording(tokens)
        self._store, self._gradients = Store(store, dtype), gradients
        self._path = _Path()
        self._last: dict[str, _Open] = {}
        self._simple: dict[tuple[object, ...], tuple[StorageWeakRef, How]] = {}
        self._counts: dict[str, int] = {}
        self._open = True

    def see(self, call: Call) -> None:
        """Keep a call under the name of the module that made it; a model never fails by it."""
        if not self._open or torch._C._current_graph_task_id() != -1:
            return  # a backward pass computes again what was seen (checkpointing)
        name = self.names.of(call.module, self.running)
        if name is None or not self.names.wanted(name):
            return
        covered = self.recording.covered
        reason = _unfit(call)
        if reason is not None:
            covered.unseen[name] = reason
            return
        try:
            with torch.inference_mode(False), torch.no_grad(), _alone(_device(call)):
                self._keep(name, call)
        except OSError as error:
            self._open = False
            covered.note(f"The recording ended at {name}: {error}")
        except Exception as error:
            covered.unseen[name] = f"{type(error).__name__}: {error}"

    def miss(self, module: nn.Module | None, source: str, why: str) -> None:
        """Say that a source saw a call that cannot be kept, and why."""
        name = self.names.of(module, self.running) if self._open else None
        if name is not None and self.names.wanted(name):
            self.recording.covered.unseen[name] = f"{source}: {why}"

    def compiled(self) -> None:
        """Code compiled by torch.compile begins to run: what it attends is not seen."""
        self.ran_compiled = True
        self.recording.covered.note(COMPILED)

    def close(self) -> None:
        """Keep nothing from now on, and join what belongs together."""
        self._open = False
        try:
            for entry in self.recording.calls:
                if isinstance(entry.rows, Joined):
                    entry.rows.compact()
        except (OSError, StaleError) as error:
            self.recording.covered.note(f"Steps stay apart: {error}")
        self._store.forget()
        self._last.clear()
        self._simple.clear()
        for name, why in self.names.unseen(self.recording.layers).items():
            self.recording.covered.unseen.setdefault(name, why)

    def _keep(self, name: str, call: Call) -> None:
        rows: Joined | Whole
        matrix: Callable[[], Attention] | None = None
        if isinstance(call.q, Tensor) and isinstance(call.k, Tensor):
            q, k = call.q.detach(), call.k.detach()
            g = attend(q, k).problem.geometry
            plain, k, g = self._written(self._simplified(call.how, g), k, g)
            how = self._store.how(plain)
            if self._joined(name, call, q, k, how, g):
                return
            rows = Joined(self._store, q, k, how, g)
            if self._store.kind == "disk":  # what was written need not be read
                matrix = partial(_attend, q, k, how.get())
            if g.t == g.s:
                self._path = _Path(self._path.turn + 1)
        else:
            g = attend(operand(call.q), operand(call.k)).problem.geometry
            how = self._store.how(self._simplified(call.how, g))
            rows = Whole(self._store.keep(call.q), self._store.keep(call.k), how)
        entry = Entry(name, self._counts.get(name, 0), call.source, rows)
        self._counts[name] = entry.index + 1
        entry.tokens = self.recording.tokens
        self.recording.calls.append(entry)
        self._check(entry, call, matrix or entry.attention)
        if self._gradients:
            self._keep_gradient(entry, call)
        elif isinstance(rows, Joined):
            self._last[name] = _Open(entry, rows, call, self._path.turn)

    def _joined(
        self, name: str, call: Call, q: Tensor, k: Tensor, how: KeptHow, g: Geometry
    ) -> bool:
        """Whether the call continued the last of its module, and was added to it."""
        last = self._last.get(name)
        if last is None or not may_join(how.how, last.rows.last.how.how):
            return False
        rows, new = last.rows, k[..., g.s - g.t :, :]
        link = rows.continued_by(k, g.t) if g.s > g.t else None
        if link is not None:
            self._path = _Path(self._path.turn + 1, link.maybe)
        elif g.t == 1:
            link, new = self._same_keys(last, k), None
        if link is None:
            return False
        rows.add(q, new, how, g, link)
        last.entry.steps += 1
        last.turn = self._path.turn
        step = last.entry.steps
        if step & (step - 1) == 0 or step % 32 == 0:

            def matrix() -> Attention:
                return _attend(q, rows.shown(), how.get())

            self._check(last.entry, call, matrix)
        return True

    def _same_keys(self, last: _Open, k: Tensor) -> Link | None:
        """How a single query continues others that saw the same keys: those of an encoder.

        Where self-attention went on meanwhile, its rows tell which row continues which; where
        there is none (recurrent decoders) the keys have to be the same tensor. Nothing tells
        whether calls that no module makes belong together: they stay apart.
        """
        if not self.running and last.entry.name == OUTSIDE:
            return None
        path = self._path
        if path.turn == last.turn:
            same = last.key == identity(k) and not last.alive.expired()
            rows = torch.eye(len(k), dtype=torch.bool, device=k.device)
            return Link(0, rows, None) if same else None
        return None if path.maybe is None else last.rows.shown_again(k, path.maybe)

    def _written(self, how: How, k: Tensor, g: Geometry) -> tuple[How, Tensor, Geometry]:
        """Without the last columns, where a static cache has nothing yet and no query looks.

        Its empty keys are zeros; padding has others.
        """
        if g.s <= g.t or how.mask is None:
            return how, k, g
        seen = how.mask.seen(g)
        if seen is None:
            return how, k, g
        columns = seen.reshape(-1, g.s).any(0).nonzero()
        end = int(columns.max()) + 1 if len(columns) else g.s
        if end == g.s or bool(k[..., end:, :].any()):
            return how, k, g
        part = g._replace(s=end)
        mask, bias = allowed(how.mask.dense(g)[..., :end]), how.bias
        if bias is not None:
            rows, columns = (torch.arange(n, device=g.device) for n in (g.t, end))
            bias = as_bias(bias.tile(g, rows, columns))
        return simplified(replace(how, mask=mask, bias=bias), part), k[..., :end, :], part

    def _simplified(self, how: How, g: Geometry) -> How:
        tensors = [
            x for value in (how.mask, how.bias) if value is not None for x in value.tensors()
        ]
        if len(tensors) != 1:
            return simplified(how, g)
        key = (identity(tensors[0]), g, how.mask is None)
        alive, found = self._simple.get(key, (None, None))
        if alive is None or found is None or alive.expired():
            found = simplified(how, g)
            self._simple[key] = StorageWeakRef(tensors[0].untyped_storage()), found
        return replace(how, mask=found.mask, bias=found.bias)

    def _check(self, entry: Entry, call: Call, matrix: Callable[[], Attention]) -> None:
        """Compare with what came out, and remember the worst that was found."""
        try:
            turn = crc32(entry.name.encode()) + entry.index + entry.steps  # other rows each time
            found = checking.check(call, matrix(), turn, self._store.dtype)
        except StaleError as error:
            found = checking.Verdict(None, str(error))
        except Exception as error:
            found = checking.Verdict(False, f"it could not be compared: {error}")
        if entry.steps == 1 or (entry.verified is not False and found.verified is not True):
            entry.verified, entry.why = found.verified, found.why

    def _keep_gradient(self, entry: Entry, call: Call) -> None:
        entry.values = self._store.keep(call.v)
        turned = call.handed is not None
        y = call.handed if turned else call.y
        if isinstance(y, Tensor) and y.requires_grad:

            def keep(grad: Tensor) -> None:
                grad = grad.transpose(1, 2) if turned else grad
                entry.gradient = self._store.own(grad, self._store.dtype).get()

            y.register_hook(keep)


@dataclass(frozen=True)
class _Path:
    """The last call of a self-attention: which rows each row may continue, None if it began."""

    turn: int = 0
    maybe: Tensor | None = None


class _Open:
    """The last entry of a module, which the next call may continue."""

    def __init__(self, entry: Entry, rows: Joined, call: Call, turn: int) -> None:
        assert isinstance(call.k, Tensor)
        self.entry, self.rows, self.turn = entry, rows, turn
        self.key, self.alive = identity(call.k), StorageWeakRef(call.k.untyped_storage())


def _attend(q: Tensor, k: Tensor, how: How) -> Attention:
    return attend(
        q.to(k.dtype), k, score=how.score, mask=how.mask, bias=how.bias, scale=how.scale,
        softcap=how.softcap, sinks=how.sinks, dropout=how.dropout,
    )  # fmt: skip


@contextmanager
def _alone(device: torch.device) -> Iterator[None]:
    """No autocast, and no mode of the user's that would see what is computed here."""
    modes = torch._C._len_torch_dispatch_stack()
    none = _disable_current_modes() if modes else nullcontext()
    with no_autocast(device), torch._C.DisableTorchFunction(), none:
        yield


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
