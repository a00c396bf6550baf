"""`effects`: what many edits, one after the other, do to a score of a model's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, KernelError, KindError, UnverifiedError, build, shape_of
from intently.foundation.process import late_bar
from intently.observe.editing.edit import edit
from intently.observe.editing.editor import Editor
from intently.observe.edits import Attending, Each, Edit, each_head
from intently.observe.edits.each import Placed
from intently.observe.measuring.replays import Replays
from intently.observe.recording.labels import Tokens
from intently.observe.recording.recording import Recording
from intently.observe.recording.table import Row, Table
from intently.observe.watching.doors import listen
from intently.observe.watching.naming import Names, matches
from intently.observe.watching.watch import watch


class Effects(Table):
    """A tidy table: one row for each edit, with the score before it, after it, and the difference.

    ``layer``, ``head``, ``key`` or ``edit`` say which edit it is. `intently.show.heatmap` draws it.

    >>> row = {"layer": "layers.0", "head": 1, "before": -1.0, "after": -3.5, "difference": -2.5}
    >>> print(Effects([row], tuple(row)))
    layer     head   before    after  difference
    layers.0     1  -1.0000  -3.5000     -2.5000
    """

    left_out: Mapping[str, str]
    """Layers that cannot be edited, and why."""

    def __init__(
        self, rows: Iterable[Row], columns: Sequence[str], left_out: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(rows, columns)
        self.left_out = dict(left_out or {})

    names = place = ("edit", "layer", "head", "key", "sender", "receiver")
    words = ("edit", "layer", "sender", "receiver")
    form = "z.4f"

    def strongest(self) -> Effects:
        """Return the rows by the size of their difference, the largest first."""
        return self._of(sorted(self, key=lambda row: -abs(row["difference"])))

    def _of(self, rows: Iterable[Row]) -> Self:
        return type(self)(rows, self.columns, self.left_out)

    def _below(self) -> list[str]:
        return [f"left out: {name}: {why}" for name, why in self.left_out.items()]


Given: TypeAlias = "Edit | Mapping[str, Edit]"
Edits: TypeAlias = "Each | Mapping[str, Given] | Sequence[Given]"

ROUNDING = 64
"""Units in the last place by which scores may differ that logits of some rows alone give."""


def effects(
    model: nn.Module,
    run: Callable[[], Any],
    score: Callable[[Any], Any],
    *,
    edits: Edits | None = None,
    tokens: Tokens | None = None,
) -> Effects:
    """Return what each edit does to ``score(run())``, as a table that sorts, filters and draws.

    ``run`` runs the model and returns its output, ``score`` turns that into one number. ``edits``
    is `edits.each_head(model)` (the default), `each_layer` or `each_key`, or a list of what
    `intently.edit` takes, or such edits by name. ``tokens`` are the texts by which edits name rows
    and keys.

    The numbers are those of one run for each edit. Modules before the first edited one are not run
    again, and of the last linear layer only the rows that the score reads are computed, wherever
    an unedited run comes out the same in this way. Nothing has gradients. Layers that cannot be
    edited are left out of `each_head` and its like; ``left_out`` of the table names them. Raises
    `ArgumentError` if nothing attends or a score is not one number, and what `intently.edit`
    raises.

    >>> import torch, intently as it
    >>> _ = torch.manual_seed(0)
    >>> layer, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.ones(1, 3, 8)
    >>> table = it.effects(layer, lambda: layer(x, x, x)[0], lambda y: y[0, -1, 0])
    >>> table["head"]
    [0, 1]
    """
    check_functions(run=run, score=score)
    with torch.no_grad(), late_bar() as tell, ExitStack() as doors:
        with watch(model, store="reference") as seen:
            plain = as_number(score(run()))
        placed = _placed(model, seen, each_head(model) if edits is None else edits)
        runs = _Runs(model, seen, lambda: as_number(score(run())), plain, [x for _, x in placed])
        listen(Editor(model, {}, None), doors)  # once: each edit finds them open
        rows = []
        left_out: dict[str, str] = {}
        for n, (place, given) in enumerate(placed):
            tell("running edits", n, len(placed))
            if place.get("layer") in left_out:
                continue
            try:
                found = runs.edited(given, tokens)
            except (KernelError, UnverifiedError) as error:
                if "layer" not in place:
                    raise
                left_out[place["layer"]] = str(error)
                if len(left_out) == len({at["layer"] for at, _ in placed}):
                    raise
                continue
            numbers = {"before": runs.plain, "after": found, "difference": found - runs.plain}
            rows.append({**place, **numbers})
    columns = dict.fromkeys(name for place, _ in placed for name in place)
    return Effects(rows, (*columns, "before", "after", "difference"), left_out)


class _Runs:
    """Runs that share what no edit changes, as far as unedited runs come out the same."""

    def __init__(
        self,
        model: nn.Module,
        seen: Recording,
        scored: Callable[[], float],
        plain: float,
        given: Sequence[Mapping[str, Edit]],
    ) -> None:
        self._model, self._scored, self.plain = model, scored, plain
        modules = {name: module for module, name in Names(model, None).modules.items()}
        self._attended = {x: modules[x] for x in seen if x in modules}
        every = {module for x in given for module in self._of(x)}
        self._replays = Replays(model, every)
        self._seconds = self._replays.keep(scored)
        self._shared = Counter(self._replays.before(self._of(x)) for x in given)
        self._right: dict[int, bool] = {}
        if self._replays.can_defer():
            self._defer()

    def edited(self, given: Mapping[str, Edit], tokens: Tokens | None) -> float:
        """The score of a run with edits."""
        until = self._replays.before(self._of(given))
        with ExitStack() as within:
            within.enter_context(self._replays.handed_out(until if self._holds(until) else 0))
            within.enter_context(edit(self._model, given, tokens=tokens))
            return self._scored()

    def _of(self, given: Mapping[str, Edit]) -> set[nn.Module]:
        """The modules that attended and are edited."""
        names = (x for x in self._attended if any(matches(x, pattern) for pattern in given))
        return {self._attended[x] for x in names}

    def _holds(self, until: int) -> bool:
        """Whether the calls before number ``until`` are handed out: it pays, and is right."""
        if until not in self._right:
            saved = self._replays.saves(until)
            pays = saved * self._shared[until] > self._seconds - saved
            self._right[until] = pays and self._unedited(until) == self.plain
        return self._right[until]

    def _unedited(self, until: int) -> float | None:
        """The score of an unedited run with calls handed out; None if anything came out otherwise.

        Whatever a module that was not run would have left behind (a cache, a random state) shows.
        """
        try:
            with self._replays.handed_out(until) as way:
                found = self._scored()
        except Exception:
            return None
        return None if way.differs else found

    def _defer(self) -> None:
        """Compute only the rows of logits that the score reads, if that gives the same score."""
        self._replays.defers = True
        found = self._unedited(0)
        rounding = ROUNDING * torch.finfo(torch.float32).eps * max(1.0, abs(self.plain))
        if found is None or not abs(found - self.plain) <= rounding:
            self._replays.defers = False
        else:
            self.plain = found


def check_functions(**given: object) -> None:
    """Raise `KindError` unless every argument can be called."""
    for name, function in given.items():
        if not callable(function):
            raise build(KindError, name, "a function", type(function).__name__)


def as_number(found: Any) -> float:
    """A score as a number."""
    if (isinstance(found, Tensor) and found.numel() != 1) or not hasattr(found, "__float__"):
        got = shape_of(found) if isinstance(found, Tensor) else type(found).__name__
        raise build(ArgumentError, "score", "one number", got)
    return float(found)


def _placed(model: nn.Module, seen: Recording, edits: Edits) -> list[Placed]:
    """The edits by place, each by the names of its modules."""
    if isinstance(edits, Each):
        found = edits.placed(_attending(model, seen, edits.part))
        if not found:
            expected, got = "a module in which attention is seen", type(edits.part).__name__
            fix = "seen.coverage() of `with it.watch(model) as seen:` says why"
            raise build(ArgumentError, "edits", expected, got, fix=fix)
        return found
    if isinstance(edits, Mapping):
        _check_names(model, edits)
        return [({"edit": str(name)}, _by_pattern(x)) for name, x in edits.items()]
    if isinstance(edits, Sequence) and edits and not isinstance(edits, str):
        return [({"edit": _said(x)}, _by_pattern(x)) for x in edits]
    expected = "edits.each_head(model), a list of edits, or edits by name"
    raise build(KindError, "edits", expected, repr(edits))


def _attending(model: nn.Module, seen: Recording, part: Any) -> list[Attending]:
    """The modules in ``part`` that attended, in order."""
    if not isinstance(part, nn.Module):
        raise build(KindError, "part", "an nn.Module", type(part).__name__)
    names, inside = Names(model, None).modules, Names(part, None).modules
    if not any(module in names for module in inside):
        expected = "the model, or a module of it"
        raise build(ArgumentError, "part", expected, type(part).__name__)
    known = {names[module] for module in inside if module in names}
    found = []
    for name in seen:
        shapes = [entry.shape for entry in seen.entries(name)]
        if name in known:
            heads = max(shape[-3] if len(shape) > 2 else 1 for shape in shapes)
            found.append(Attending(name, heads, max(shape[-1] for shape in shapes)))
    return found


def _check_names(model: nn.Module, edits: Mapping[str, Any]) -> None:
    """Refuse names of modules as names of edits: those belong into a mapping of its own."""
    modules = set(Names(model, None).modules.values())
    wrong = next((x for x, given in edits.items() if x in modules and isinstance(given, Edit)), "")
    if wrong:
        got = f"{wrong!r}, which is a module: its edit would act in all layers"
        fix = f"write {{name: {{{wrong!r}: edit}}}}"
        raise build(ArgumentError, "edits", "edits by names of your own", got, fix=fix)


def _by_pattern(given: Any) -> Mapping[str, Edit]:
    return {"*": given} if isinstance(given, Edit) else given


def _said(given: Any) -> str:
    if not isinstance(given, Mapping):
        return repr(given)
    return "; ".join(f"{pattern}: {x!r}" for pattern, x in given.items())
