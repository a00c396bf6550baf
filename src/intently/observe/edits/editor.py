"""`edit`: a context manager in which a model attends what edits say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

import torch
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.masks import Geometry
from intently.core.matrix import Dense, LazyMatrix
from intently.core.matrix.labelling import crosses, side
from intently.errors import KernelError, KindError, UnverifiedError, build
from intently.observe.edits.edit import Edit, Scene, fit
from intently.observe.edits.rules import product
from intently.observe.generation.joining import trimmed
from intently.observe.recording.labels import Tokens, checked, is_pair, is_rows
from intently.observe.storage.stores import identity
from intently.observe.watching.call import After, AttentionSpec, Call, numberless, operand, traced
from intently.observe.watching.checking import Verdict, check
from intently.observe.watching.doors import listen
from intently.observe.watching.mask_inference import KnownMasks
from intently.observe.watching.modules import Names, check_module, comes_from_elsewhere, matches
from intently.observe.watching.scope import Changing, Made, in_backward
from intently.observe.watching.unseen import unseen

CAN_CHANGE = "a call that edits can change"
PLANNED = 4
"""Lines of a plan at most that are kept of one module."""


class edit:  # noqa: N801 - used as a function: `with it.edit(model, edits.off(heads=[3])):`
    """Change what ``model`` attends while the block runs.

    ``edits`` is one edit for all layers, or a mapping from names of modules, or patterns such as
    "decoder.layers.*.self_attn", to edits. ``tokens`` are the texts by which edits name rows and
    keys, ``(source, target)`` for an encoder and a decoder. The model runs its own kernel; only the
    rows and heads that an edit names are computed again and put in place, all others stay the same
    bit for bit up to the output projection. ``str`` of what the block gets says what was computed.

    A `intently.watch` around or within keeps the edited weights, and says so. Every call is
    verified before it is changed: weights that do not give the model's output raise
    `UnverifiedError`. Raises `ArgumentError` for patterns, heads and texts that match nothing,
    `KernelError` for a compiled model, for a call that edits cannot change, with the operation that
    prevents it, and at the end of the block for an edit that changed no call, with what may have
    attended unseen.

    >>> import torch, intently as it
    >>> from intently import edits
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.ones(1, 3, 8)
    >>> with torch.no_grad(), it.edit(layer, edits.off(heads=[0])) as done:
    ...     y, _ = layer(x, x, x)
    >>> print(done)
    MultiheadAttention  1 call  off(heads=[0])
    """

    def __init__(
        self, model: nn.Module, edits: Edit | Mapping[str, Edit], *, tokens: Tokens | None = None
    ) -> None:
        check_module(model)
        given: Any = {"*": edits} if isinstance(edits, Edit) else edits
        known = isinstance(given, Mapping) and given
        if not known or not all(isinstance(x, Edit) for x in given.values()):
            expected = "an edit such as edits.off(heads=[3]), or a mapping from modules to edits"
            raise build(KindError, "edits", expected, repr(edits))
        self._model, self._edits, self._tokens = model, dict(given), tokens
        self._editor: Editor | None = None
        self._doors = ExitStack()
        self._undo = finalize(self, self._doors.close)
        self._undo.atexit = False

    def __enter__(self) -> Edited:
        if self._editor is not None:
            fix = "write `with it.edit(model, edits):` again"
            expected, got = "one block for each edit", "one that was entered before"
            raise build(KernelError, "edit", expected, got, fix=fix)
        editor = Editor(self._model, self._edits, self._tokens)
        try:
            self._doors.callback(editor.close)
            listen(editor, self._doors)
        except BaseException:
            self._doors.close()
            raise
        self._editor = editor
        return editor.applied

    def __exit__(self, *raised: Any) -> None:
        editor = self._editor
        if editor is None or not self._undo.alive:
            fix = "write `with it.edit(model, edits):`, which enters and leaves it"
            got = "one that was not entered, or was left"
            raise build(KernelError, "edit", "the end of a block that runs", got, fix=fix)
        left = [pattern for pattern in self._edits if pattern not in editor.used]
        unseen = editor.unseen(left) if left else {}
        self._doors.close()
        self._undo.detach()  # an interrupt before leaves it to the collector
        if editor.failed is not None and raised[1] is not editor.failed:
            raise editor.failed  # an operator of Python tells no TypeError
        if left and raised[0] is None:
            ran = ", ".join(editor.applied) or "none"
            got = "none for " + ", ".join(f"{x!r}: {self._edits[x]!r}" for x in left)
            told = (f"{name}: {why}" for name, why in {**editor.untouched, **unseen}.items())
            cause = "; ".join([f"calls that were changed: {ran}", *told])
            fix = "watch(model) lists the layers that attend; heads and rows have to exist in them"
            raise build(KernelError, "edits", "calls that each edit changes", got, cause, fix)


@dataclass
class Applied:
    """What edits did to the ``calls`` of one module, to be printed."""

    name: str
    said: str
    calls: int = 0
    plans: dict[str, None] = field(default_factory=dict)

    def __str__(self) -> str:
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return "\n  ".join([f"{self.name}  {calls}  {self.said}", *self.plans])


class Edited(dict[str, Applied]):
    """What edits did, by the name of the module: which heads and rows, how they were computed."""

    def plan(self) -> str:
        """Say what was computed again, and how."""
        return "\n".join(map(str, self.values())) or "nothing was changed"

    __str__ = plan


class Editor(Changing):
    """Changes the calls whose modules a pattern of ``edits`` names."""

    def __init__(self, model: nn.Module, edits: Mapping[str, Edit], tokens: Tokens | None) -> None:
        super().__init__(Names(model, list(edits)))
        self._edits = edits
        self._texts = Texts(tokens, self.names.modules.values())
        self._masks = KnownMasks()
        self._calls: dict[str, int] = {}
        self.applied = Edited()
        self.used: set[str] = set()
        """Patterns whose edits changed at least one row."""
        self.untouched: dict[str, str] = {}
        """Modules with calls that an edit was for and did not change, and their sizes."""
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
        found = unseen(named, [*self.applied, *self.untouched], self.ran, deep=True)
        return found | {name: x for name, x in self._suspected.items() if name in named.values()}

    def see(self, *heard: Any, **more: Any) -> None:
        """Edits changed a call before others hear of it, and change nothing else."""

    mixed = compiled = reordered = see

    def miss(self, module: nn.Module | None, source: str, why: str) -> None:
        """Refuse a call that cannot be read if it was to be edited."""
        name = None if in_backward() else self._named(module)
        if name is not None:
            raise build(KernelError, name, CAN_CHANGE, f"{source}: {why}")

    def suspect(self, module: nn.Module | None, source: str, why: str) -> None:
        """Keep it for the end, if no call is changed."""
        name = self._named(module)
        if name is not None:
            self._suspected[name] = f"{source}: {why}"

    def changed(
        self, module: nn.Module | None, source: str, make: Made, result: Any
    ) -> tuple[Any, Made]:
        """Change a call whose module is named by a pattern; the others only tell positions."""
        name = self.names.of(module, self.running) if self._open else None
        if name is None:
            return result, make
        found = [(pattern, edit) for pattern, edit in self._edits.items() if matches(name, pattern)]
        call = traced() or make()
        call = call if isinstance(call, str) else numberless(call) or call
        if isinstance(call, str) and found:
            self.miss(module, source, call)
        elif isinstance(call, Call) and found:
            try:
                return self._edited(name, found, call, result)
            except TypeError as error:
                self.failed = error
                raise
        elif isinstance(call, Call):
            seen = comes_from_elsewhere(call, self.running.inputs)
            self._texts.place(name, call.q.shape[-2], self._shown(call)[1], seen)
        return result, lambda: call

    def _edited(
        self, name: str, found: Sequence[tuple[str, Edit]], call: Call, result: Any
    ) -> tuple[Any, Made]:
        again = call.again or in_backward()  # a checkpoint runs a call again
        number = max(0, self._calls.get(name, -1) + (not again))
        self._calls[name] = number
        call, matrix, shown, v = self._read(name, number, call)
        seen = comes_from_elsewhere(call, self.running.inputs)
        place = self._texts.place(name, matrix.shape[-2], shown, seen)
        scene = Scene(name, number, matrix, v, **place, passed=call.passed, again=call.again)
        for pattern, edit in found:
            before, scene.touched = scene.touched, torch.zeros_like(scene.touched)
            edit.change(scene)
            if bool(scene.touched.any()):
                self.used.add(pattern)
            else:
                _, h, t = scene.touched.shape
                had = f"call {number} has {h} heads, {t} queries and {matrix.shape[-1]} keys"
                self.untouched[name] = f"{had}, of which this names none"
            scene.touched |= before
        if not bool(scene.touched.any()):
            return result, lambda: call
        if call.put is None or call.shut is not None:
            got = call.shut or "an operator of PyTorch that was called directly"
            raise build(KernelError, name, CAN_CHANGE, got)
        said = " & ".join(repr(edit) for _, edit in found)
        told, part = said if call.edited is None else f"{call.edited} & {said}", Part.edited(scene)
        applied = self.applied.setdefault(name, Applied(name, said))
        applied.calls += 1
        if part is not None and len(applied.plans) < PLANNED:
            applied.plans[part.plan(scene)] = None
        y, after = _output(call, scene, part)
        return call.put(y, scene.matrix), partial(_as_call, call, scene, after, told)

    def _shown(self, call: Call) -> tuple[AttentionSpec, Tensor]:
        """The arguments of a call and what its cache shows, without places that are not written."""
        k, shown = operand(call.k), call.shown
        g = Geometry(tuple(call.q.shape[:-2]), call.q.shape[-2], k.shape[-2], k.device)
        how = self._masks.simplified(call.how, g)
        return (how, k) if shown is None else trimmed(how, shown.detach(), g)[:2]

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
        verdict = Verdict(None)
        if not number & (number - 1) or number % 32 == 0 or call.as_weights is not None:
            with torch.no_grad():
                verdict = check(replace(call, v=v, how=how), matrix, number)
        if call.as_weights is not None and verdict.verified is not True:
            return self._read(name, number, call.as_weights("its queries and keys give others"))
        if verdict.verified is False:
            expected = "weights that give the output of the model"
            raise build(UnverifiedError, name, expected, "others", verdict.why)
        return call, matrix if isinstance(matrix, Attention) else Dense(matrix.dense()), shown, v


def _output(call: Call, scene: Scene, part: Part | None) -> tuple[Tensor, Tensor | After]:
    """The output with edited rows in place, as the function returns it, and as a call has it."""
    matrix = scene.matrix
    matrix = Dense(matrix.dense() * scene.passed()) if scene.passed is not None else matrix
    if isinstance(call.y, Tensor):
        y = call.y.clone()
        if part is not None:
            over = scene.touched.expand(scene.batch.total, -1, -1)[part.at(3)]
            some = part.of(matrix, scene), part.of(scene.values, scene)
            made = _mixed(*some, part.rows).to(y.dtype)
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
    few = len(rows) <= matrix.shape[-2] // 2
    y = product(Dense(matrix[..., rows, :].to(matrix.dtype)) if few else matrix, v.to(matrix.dtype))
    return y if few else y.index_select(-2, rows)


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

    def of(self, x: Any, scene: Scene) -> Any:
        """The batch rows and heads of weights (…, b, h, t, s) or values (…, b, g, s, e)."""
        for axis, some, whole in ((-4, self.batch, scene.batch), (-3, self.heads, scene.heads)):
            size = x.shape[axis] if x.ndim >= -axis else 1
            if size > 1 and len(some) < whole.total:
                x = x[(*[slice(None)] * (x.ndim + axis), some // (whole.total // size))]
        return x

    def plan(self, scene: Scene) -> str:
        """Which heads and rows are computed again, how, and what that costs."""
        b, (_, h, t) = scene.batch.total, scene.touched.shape
        batch, heads, rows = map(len, self)
        said = f"{batch} of {b} batch rows, " if batch < b else ""
        said += f"{heads} of {h} heads, {rows} of {t} rows: "
        if rows <= t // 2:
            return f"{said}their weights over {scene.matrix.shape[-1]} keys"
        matrix = self.of(scene.matrix, scene)
        if isinstance(matrix, Attention):
            return f"{said}{matrix.plan().kernel}"
        return f"{said}t · s weights, in blocks of rows"


# --- which steps of which text the queries and keys of a call are ---------------------------------

COMPARED = 8
"""Last keys of a call at most that tell whether a window goes on after them."""


class Before(NamedTuple):
    """The call of a module before: its text had ``steps``; its keys, the last of them copied."""

    steps: int
    keys: Tensor
    last: Tensor


class Texts:
    """Follows a model through its text, over the steps of a generation.

    The last query of a self-attention stands at its last key (contract 3), unless a cache lets go
    of keys: it shows the last ones of the step before. The queries of a cross-attention stand where
    those of the last self-attention of as many queries stood; if there is none, as in a recurrent
    decoder, after those that saw the same keys. ``names`` are those of the model's modules.

    One sequence of tokens names the text that is read. The text of a decoder, and the image that a
    prompt describes, are others: layers that stand beside a cross-attention, and do not cross.
    """

    def __init__(self, tokens: Tokens | None, names: Collection[str]) -> None:
        if is_rows(tokens):
            fix = "pass those of one, or name rows and keys by position"
            raise build(KindError, "tokens", "the tokens of one text", "several texts", fix=fix)
        self._tokens: Any = checked(tokens)
        self._names = set(names)
        self._crossing = {_layer(name) for name in self._names if crosses(name, self._names)}
        """Layers with a cross-attention."""
        self._encodes = any(side(name) == "encoder" for name in self._names)
        self._last: tuple[int, int, int] | None = None
        """Batch rows and queries of the last self-attention, and the position of the first."""
        self._before: dict[str, Before] = {}

    def place(self, name: str, t: int, k: Tensor, seen: bool | None) -> dict[str, Any]:
        """Where a call of t queries stands, for its `Scene`.

        Its cache shows the keys (…, s, d). ``seen`` says whether they came from elsewhere than
        queries, as far as that was seen.
        """
        s, across = k.shape[-2], crosses(name, self._names, seen)
        if across is None:  # outside of a decoder, an encoder's text if none attends to itself
            alone = self._encodes and not self._crossing and self._last is None
            across = t > s or (alone and side(name) is None)
        if seen:
            self._crossing.add(_layer(name))
        before, first, texts, last = self._before.get(name), s - t, 1, k
        if across:
            first, texts = self._first_across(t, k, before)
        else:
            if before is not None and 0 < first < before.steps and _goes_on(k, first, before.last):
                first = before.steps
            self._last = _batch(k), t, first
            last = k[..., -COMPARED:, :].detach().clone()
        self._before[name] = Before(first + t // texts, k, last)
        place = {"first": first, "first_key": 0 if across else max(0, first + t - s)}
        own, keys = self._sides(name, across)
        return place | {"texts": texts, "across": across, "row_tokens": own, "key_tokens": keys}

    def _first_across(self, t: int, k: Tensor, before: Before | None) -> tuple[int, int]:
        """The position of a cross-attention's first query, and how many texts share its keys."""
        if self._last is not None:
            b, steps, first = self._last
            for texts in (1, b // _batch(k)):
                if steps * texts == t and (texts == 1 or b == texts * _batch(k)):
                    return first, texts
        same = before is not None and identity(before.keys) == identity(k)
        return before.steps if before is not None and same else 0, 1

    def _sides(self, name: str, across: bool) -> tuple[Any, Any]:
        """The tokens of the queries' text and of the keys' text, None if unknown."""
        pair = is_pair(self._tokens)
        source, target = self._tokens if pair else (self._tokens, None)
        writes = bool(self._crossing) and side(name) == "decoder"
        others = side(name) != "encoder" if pair else writes or _layer(name) in self._crossing
        own = target if others else source
        return (target, source) if across else (own, own)


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _batch(x: Tensor) -> int:
    """The size of the first axis of x (b, …, s, d)."""
    return x.shape[0] if x.ndim > 2 else 1


def _goes_on(k: Tensor, first: int, last: Tensor) -> bool:
    """Whether the keys (…, s, d) before ``first`` end in the ``last`` ones of a row each."""
    n = min(first, last.shape[-2])
    here = k[..., first - n : first, :].reshape(_batch(k), -1)
    there = last[..., last.shape[-2] - n :, :].reshape(_batch(last), -1)
    alike = here.shape[-1] == there.shape[-1] and here.dtype is there.dtype
    return alike and bool((here[:, None] == there).all(-1).any(-1).all())
