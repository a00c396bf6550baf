"""`effects` and `path_effects`: what many edits, one after the other, do to a score.

Of the last linear layer of a model only the rows that the score reads are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from operator import and_
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from intently.errors import ArgumentError, KernelError, KindError, UnverifiedError, build, shape_of
from intently.foundation.checks import check_word
from intently.foundation.process import late_bar
from intently.observe.edits import Attending, Each, Edit, each_head, replace
from intently.observe.edits.edit import Steps, whole
from intently.observe.edits.editor import Editor, edit
from intently.observe.edits.rules import Placed
from intently.observe.recording.labels import Tokens
from intently.observe.recording.recording import Recording
from intently.observe.recording.summary import Table
from intently.observe.watching.doors import listen
from intently.observe.watching.modules import Names, matches
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


Heads: TypeAlias = "Mapping[str, Steps]"
"""Heads by the names of their layers, or patterns; None for all heads of a layer."""

Read: TypeAlias = Literal["queries", "keys", "values"]
Given: TypeAlias = "Edit | Mapping[str, Edit]"
Edits: TypeAlias = "Each | Mapping[str, Given] | Sequence[Given]"


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
    _check_functions(run=run, score=score)

    def scored() -> float:
        return _number(score(run()))

    with torch.no_grad(), late_bar() as tell, ExitStack() as within:
        with watch(model, store="reference") as seen:
            plain = scored()
        placed = _placed(model, seen, each_head(model) if edits is None else edits)
        plain = deferred(model, seen.layers, scored, plain, within)
        listen(Editor(model, {}, None), within)  # once: each edit finds the doors open
        rows, layers = [], {place.get("layer") for place, _ in placed}
        left_out: dict[str, str] = {}
        for n, (place, given) in enumerate(placed):
            tell("running edits", n, len(placed))
            layer = place.get("layer")
            if layer in left_out:
                continue
            try:
                with edit(model, given, tokens=tokens):
                    rows.append(place | _numbers(plain, scored()))
            except (KernelError, UnverifiedError) as error:
                left_out |= {} if layer is None else {layer: str(error)}
                if layer is None or left_out.keys() == layers:
                    raise
    columns = dict.fromkeys(name for place, _ in placed for name in place)
    return Effects(rows, (*columns, *_numbers(0, 0)), left_out)


def path_effects(
    model: nn.Module,
    clean: Callable[[], Any],
    corrupted: Callable[[], Any],
    score: Callable[[Any], Any],
    *,
    senders: Heads | None = None,
    receivers: Heads | None = None,
    parts: Sequence[Read] = get_args(Read),
) -> Effects:
    """Return what each sender alone changes in the score through the receivers: path patching.

    ``clean`` and ``corrupted`` run the model on two texts of one length. For each sender, a pass
    over the clean text takes that head's output from the corrupted run and those of all other heads
    from the clean one, so that only the direct path from the sender (and what lies between heads)
    changes; the ``parts`` that the receivers read in this pass are then put into a clean run, whose
    score is in the table. Without ``receivers`` the model's output is the receiver.

    Senders and receivers are heads by the names of their layers, or patterns; all heads send unless
    named. Nothing has gradients. Raises `ArgumentError` for layers that did not attend, and what
    `intently.edit` and `edits.replace` raise.

    Source: Wang et al. 2022, "Interpretability in the Wild", section 3.1; Goldowsky-Dill et al.
    2023, "Localizing Model Behavior with Path Patching".

    >>> import torch, intently as it
    >>> _ = torch.manual_seed(0)
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x, y = torch.randn(2, 1, 3, 8)
    >>> table = it.path_effects(
    ...     layer, lambda: layer(x, x, x)[0], lambda: layer(y, y, y)[0], lambda z: z[0, -1, 0]
    ... )
    >>> table["head"]
    [0, 1]
    """
    for part in parts or [""]:
        check_word(part, "parts", get_args(Read))
    _check_functions(clean=clean, corrupted=corrupted, score=score)
    with torch.no_grad(), late_bar() as tell:
        with watch(model, gradients=True) as own:
            plain = _number(score(clean()))
        with watch(model, gradients=True) as other:
            corrupted()
        sending = _heads(own, {"*": None} if senders is None else senders, "senders")
        reading = None if receivers is None else _heads(own, receivers, "receivers")
        places, rows = [(layer, head) for layer, heads in sending.items() for head in heads], []
        for n, (layer, head) in enumerate(places):
            tell("following paths", n, len(places))
            frozen: dict[str, Edit] = {name: replace(own, "outputs") for name in own}
            frozen[layer] &= replace(other, "outputs", heads=[head])
            with edit(model, frozen), watch(model, gradients=True) as seen:
                made = clean()
            if reading is not None:
                read = {
                    name: reduce(and_, (replace(seen, part, heads=heads) for part in parts))
                    for name, heads in reading.items()
                }
                with edit(model, read):
                    made = clean()
            rows.append({"layer": layer, "head": head, **_numbers(plain, _number(score(made)))})
    return Effects(rows, ("layer", "head", *_numbers(0, 0)))


def _check_functions(**given: object) -> None:
    for name, function in given.items():
        if not callable(function):
            raise build(KindError, name, "a function", type(function).__name__)


def _number(found: Any) -> float:
    """A score as a number."""
    if (isinstance(found, Tensor) and found.numel() != 1) or not hasattr(found, "__float__"):
        got = shape_of(found) if isinstance(found, Tensor) else type(found).__name__
        raise build(ArgumentError, "score", "one number", got)
    return float(found)


def _numbers(before: float, after: float) -> dict[str, float]:
    return {"before": before, "after": after, "difference": after - before}


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
        modules = set(Names(model, None).modules.values())
        wrong = next((x for x, e in edits.items() if x in modules and isinstance(e, Edit)), "")
        if wrong:  # names of modules belong into a mapping of its own
            got = f"{wrong!r}, which is a module: its edit would act in all layers"
            fix = f"write {{name: {{{wrong!r}: edit}}}}"
            raise build(ArgumentError, "edits", "edits by names of your own", got, fix=fix)
        return [({"edit": str(name)}, x) for name, x in edits.items()]
    if isinstance(edits, Sequence) and edits and not isinstance(edits, str):
        return [({"edit": _said(x)}, x) for x in edits]
    expected = "edits.each_head(model), a list of edits, or edits by name"
    raise build(KindError, "edits", expected, repr(edits))


def _attending(model: nn.Module, seen: Recording, part: Any) -> list[Attending]:
    """The modules in ``part`` that attended, in order."""
    if not isinstance(part, nn.Module):
        raise build(KindError, "part", "an nn.Module", type(part).__name__)
    names, inside = Names(model, None).modules, Names(part, None).modules
    known = {names[module] for module in inside if module in names}
    if not known:
        raise build(ArgumentError, "part", "the model, or a module of it", type(part).__name__)
    return [
        Attending(name, max(x.heads for x in entries), max(x.shape[-1] for x in entries))
        for name, entries in ((name, seen.entries(name)) for name in seen if name in known)
    ]


def _said(given: Any) -> str:
    named = isinstance(given, Mapping)
    return "; ".join(f"{at}: {x!r}" for at, x in given.items()) if named else repr(given)


def _heads(seen: Recording, given: Heads, argument: str) -> dict[str, list[int]]:
    """The heads that are named, by layer."""
    found: dict[str, list[int]] = {}
    for pattern, heads in given.items():
        layers = [name for name in seen if matches(name, pattern)]
        if not layers:
            expected = f"layers that attended: {', '.join(seen)}"
            raise build(ArgumentError, argument, expected, repr(pattern))
        for name in layers:
            axis, known = whole("heads", seen.entries(name)[0].heads), found.get(name, [])
            chosen = axis.chosen(heads).nonzero()[:, 0].tolist()
            found[name] = list(dict.fromkeys([*known, *chosen]))
    return found


# --- the last linear layer ------------------------------------------------------------------------

ATEN = torch.ops.aten
CHOOSES = ATEN.select.int, ATEN.slice.Tensor, ATEN.index_select.default
"""Operations that choose rows of one axis."""

ROUNDING = 64
"""Units in the last place by which scores may differ that logits of some rows alone give."""


class Deferred(Tensor):
    """x (…, c) · weightᵀ + bias, of which indexing leading axes computes nothing.

    Any other operation computes what is left of it first.

    >>> x, weight = torch.ones(4, 2), torch.eye(2)
    >>> logits = Deferred(x, weight, None)
    >>> type(logits[-1]).__name__, logits[-1].sum()
    ('Deferred', tensor(2.))
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls, x: Tensor, weight: Tensor, bias: Tensor | None) -> Deferred:
        shape, dtype = (*x.shape[:-1], len(weight)), torch.promote_types(x.dtype, weight.dtype)
        return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=x.device)

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._given = x, weight, bias

    def whole(self) -> Tensor:
        """The tensor, computed."""
        return F.linear(*self._given)

    def numpy(self, *, force: bool = False) -> Any:
        return self.whole().numpy(force=force)

    def tolist(self) -> Any:
        return self.whole().tolist()

    def __array__(self, dtype: Any = None) -> Any:
        return self.whole().__array__(dtype)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return repr(self.whole())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, one = kwargs or {}, args[0]
        rows = _rows(func, one, args[1:], kwargs) if isinstance(one, Deferred) else None
        if rows is not None:
            return Deferred(rows, one._given[1], one._given[2])
        args, kwargs = tree_map_only(Deferred, Deferred.whole, (args, kwargs))
        return func(*args, **kwargs)


def _rows(func: Any, one: Deferred, rest: Any, kwargs: Any) -> Tensor | None:
    """The rows of x that an operation chooses; None for any other operation."""
    x = one._given[0]
    if func in (ATEN.detach.default, ATEN.alias.default):
        return x
    axis = rest[0] if rest else 0
    if func in CHOOSES and axis % one.ndim < one.ndim - 1:
        return func(x, axis % one.ndim, *rest[1:], **kwargs)
    if func is ATEN.index.Tensor:  # of leading axes, which leaves the last one whole
        boolean = torch.bool, torch.uint8
        used = sum(1 if i is None or i.dtype not in boolean else i.ndim for i in rest[0])
        return func(x, rest[0]) if used < one.ndim else None
    return None


def deferred(
    model: nn.Module,
    edited: Collection[str],
    scored: Callable[[], float],
    plain: float,
    within: ExitStack,
) -> float:
    """The score with only those rows of logits computed that are read, if it is the same.

    It holds ``within`` what is undone later, for models in which a linear layer runs last, once,
    and behind all ``edited`` modules.
    """
    ran: list[nn.Module] = []
    with ExitStack() as hooks:
        for module in model.modules():
            hook = module.register_forward_pre_hook(lambda module, given: ran.append(module))
            hooks.callback(hook.remove)
        scored()
    last, names = ran[-1] if ran else None, Names(model, None).modules.items()
    inside = any(last is x for module, name in names if name in edited for x in module.modules())
    changed = getattr(type(last), "forward", None) is not nn.Linear.forward
    if not isinstance(last, nn.Linear) or changed or inside or ran.count(last) > 1:
        return plain
    own = {name: x for name, x in vars(last).items() if name == "forward"}
    trial = within.enter_context(ExitStack())
    trial.callback(vars(last).update, own)
    trial.callback(vars(last).pop, "forward")
    last.forward = lambda input: Deferred(input, last.weight, last.bias)
    try:
        found = scored()
    except Exception:
        found = math.nan
    rounding = ROUNDING * torch.finfo(torch.float32).eps * max(1.0, abs(plain))
    if abs(found - plain) <= rounding:
        return found
    trial.close()
    return plain
