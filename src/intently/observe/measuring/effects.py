"""`effects`: what many edits, one after the other, do to a score of a model's output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, KernelError, KindError, UnverifiedError, build, shape_of
from intently.foundation.process import late_bar
from intently.observe.edits import Attending, Each, Edit, each_head
from intently.observe.edits.editor import Editor, edit
from intently.observe.edits.rules import Placed
from intently.observe.measuring.deferred import deferring, last_linear
from intently.observe.recording.labels import Tokens
from intently.observe.recording.recording import Recording
from intently.observe.recording.summary import Table
from intently.observe.watching.doors import listen
from intently.observe.watching.modules import Names
from intently.observe.watching.watch import watch


class Effects(Table):
    """A tidy table: one row for each edit, with the score before it, after it, and the difference.

    ``layer``, ``head``, ``key`` or ``edit`` say which edit it is; ``left_out`` are the layers that
    cannot be edited, and why. `intently.show.heatmap` draws it.

    >>> row = {"layer": "layers.0", "head": 1, "before": -1.0, "after": -3.5, "difference": -2.5}
    >>> print(Effects([row], tuple(row)))
    layer     head   before    after  difference
    layers.0     1  -1.0000  -3.5000     -2.5000
    """

    form = "z.4f"

    def strongest(self) -> Effects:
        """Return the rows by the size of their difference, the largest first."""
        return self._of(sorted(self, key=lambda row: -abs(row["difference"])))


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

    The numbers are those of one run for each edit; of the last linear layer only the rows that the
    score reads are computed, if an unedited run scores the same in this way. Nothing has gradients.
    Layers that cannot be edited are left out of `each_head` and its like; ``left_out`` of the table
    names them. Raises `ArgumentError` if nothing attends or a score is not one number, and what
    `intently.edit` raises.

    >>> import torch, intently as it
    >>> _ = torch.manual_seed(0)
    >>> layer, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.ones(1, 3, 8)
    >>> table = it.effects(layer, lambda: layer(x, x, x)[0], lambda y: y[0, -1, 0])
    >>> table["head"]
    [0, 1]
    """
    check_functions(run=run, score=score)

    def scored() -> float:
        return as_number(score(run()))

    with torch.no_grad(), late_bar() as tell, ExitStack() as within:
        with watch(model, store="reference") as seen:
            plain = scored()
        placed = _placed(model, seen, each_head(model) if edits is None else edits)
        plain = _deferred(model, seen, scored, plain, within)
        listen(Editor(model, {}, None), within)  # once: each edit finds the doors open
        rows, layers = [], {place.get("layer") for place, _ in placed}
        left_out: dict[str, str] = {}
        for n, (place, given) in enumerate(placed):
            tell("running edits", n, len(placed))
            if place.get("layer") in left_out:
                continue
            try:
                with edit(model, given, tokens=tokens):
                    found = scored()
            except (KernelError, UnverifiedError) as error:
                if "layer" in place:
                    left_out[place["layer"]] = str(error)
                if left_out.keys() == layers or not left_out:
                    raise
                continue
            numbers = {"before": plain, "after": found, "difference": found - plain}
            rows.append({**place, **numbers})
    columns = dict.fromkeys(name for place, _ in placed for name in place)
    return Effects(rows, (*columns, "before", "after", "difference"), left_out)


def _deferred(
    model: nn.Module, seen: Recording, scored: Callable[[], float], plain: float, within: ExitStack
) -> float:
    """The score with only those rows of logits computed that are read, if it is the same."""
    edited = [module for module, name in Names(model, None).modules.items() if name in seen]
    last = last_linear(model, scored, edited)
    if last is None:
        return plain
    trial = within.enter_context(ExitStack())
    trial.enter_context(deferring(last))
    try:
        found = scored()
    except Exception:
        found = math.nan
    rounding = ROUNDING * torch.finfo(torch.float32).eps * max(1.0, abs(plain))
    if not abs(found - plain) <= rounding:
        trial.close()
        return plain
    return found


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
