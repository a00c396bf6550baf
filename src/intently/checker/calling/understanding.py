"""How something that attends is called: what is not stated is found out by trial."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from intently.checker.calling import programs
from intently.checker.calling.modes import Reshaped, exactly
from intently.checker.calling.naming import (
    MEANINGS,
    parameters_named,
    roles_of,
    sequence_first,
    with_meanings,
)
from intently.checker.calling.subject import Role, Subject, less_precise, on_tensors_already
from intently.checker.calling.trials import trials
from intently.checker.judging.sides import about
from intently.checker.measuring.attention import followed
from intently.checker.precision import precision_of
from intently.errors import ArgumentError, build

LENGTHS = (6, 16, 64)
"""Positions of the examples to try: few show what many hide, and some code wants a multiple."""


def understood(
    subject: Any,
    inputs: Mapping[str, Any] | None = None,
    arguments: Mapping[str, str] | None = None,
    layout: str | None = None,
    returns: str = "output",
) -> Subject:
    """How to call ``subject``; raises `ArgumentError` if it cannot be told."""
    _examinable(subject)
    plain, arrays = subject, inputs
    subject, inputs, foreign = _on_tensors(subject, inputs)
    meanings = dict(arguments or {})
    _known(subject, meanings, inputs)
    given = inputs is not None
    stated = {"layout": _layout(layout), "returns": returns, "foreign": foreign, "given": given}
    seen_with = partial(_with_inputs, subject, meanings, stated)
    seen, error = (_searched if inputs is None else _called)(seen_with, subject, inputs or {})
    if seen is not None:
        return seen
    for other in _otherwise(subject, inputs or {}, foreign):
        with suppress(Exception):
            return understood(other, inputs, arguments, layout, returns)
    jax, raw = sys.modules.get("jax"), dict(arrays or {})
    if jax is not None and foreign and any(isinstance(x, np.ndarray) for x in raw.values()):
        of = jax.numpy.asarray  # code of JAX that takes arrays of NumPy
        raw = {n: of(x) if isinstance(x, np.ndarray) else x for n, x in raw.items()}
        with suppress(Exception):
            return understood(plain, raw, arguments, layout, returns)
    if isinstance(error, ArgumentError):
        raise error  # it says what is wrong with what was returned
    example = "an example call, such as inputs={'x': torch.randn(2, 6, 64)}"
    names = "inputs= with which the call succeeds, by the names of its arguments"
    said = f"{type(error).__name__}: {error}".strip().split("\n")[0].removesuffix(":")
    cause = f"it raised {said}" if error else "its signature names no tensors"
    fix = "pass inputs=, or an adapter: lambda x: mine(x, causal=True)"
    expected = names if given else example
    raise build(ArgumentError, "inputs", expected, "a call that raises", cause=cause, fix=fix)


Found = tuple[Subject | None, Exception | None]


def _called(seen_with: Callable[..., Subject], subject: Any, inputs: Mapping[str, Any]) -> Found:
    """How to call a subject with these inputs; else the error that the first call raises."""
    bad, error = None, None
    for form, given in product(_forms(subject), _completed(subject, inputs)):
        try:
            seen = seen_with(form, given)
            lost = bool(seen.output().isnan().any())
        except Exception as raised:  # whatever the code does with it
            error = error or raised
            continue
        if not lost or form[1] is torch.float32:
            return bad if lost and bad else seen, None
        bad = seen  # numbers that are lost in float64 may not be in float32
    return bad or _with_reshapes(seen_with, subject, inputs), error


def _searched(seen_with: Callable[..., Subject], subject: Any, _: Mapping[str, Any]) -> Found:
    """How to call a subject with inputs of ours; else the error that says most: about values."""
    errors: list[Exception] = []
    for length in LENGTHS:
        for form, given in ((f, x) for f in _forms(subject) for x in trials(subject, length)):
            try:
                return seen_with(form, given), None
            except Exception as raised:
                errors.append(raised)
        if all(isinstance(x, (TypeError, ArgumentError)) for x in errors):
            break  # no other length will do
    told = [e for e in errors if not isinstance(e, (TypeError, IndexError))]
    return None, next(iter([*told, *errors]), None)


def _otherwise(subject: Any, inputs: Mapping[str, Any], foreign: bool) -> Iterator[Any]:
    """The same as code on tensors, where a function names NumPy; as one that takes arrays."""
    call = subject if isinstance(subject, FunctionType) else vars(type(subject)).get("__call__")
    known = getattr(call, "__globals__", {})
    if not (foreign or on_tensors_already(subject)) and any(x is np for x in known.values()):
        from intently.checker.calling.arrays import on_tensors

        yield on_tensors(subject)
    if isinstance(subject, nn.Module) and any(isinstance(x, np.ndarray) for x in inputs.values()):
        yield _with_arrays(subject, inputs)


def _with_reshapes(
    seen_with: Callable[..., Subject], subject: Any, inputs: Mapping[str, Any]
) -> Subject | None:
    """How to call a subject that raises for a view alone, which is then run as a reshape."""
    for form, given in product(_forms(subject), _completed(subject, inputs)):
        with suppress(Exception), Reshaped() as mode:  # whatever else the code does
            seen_with(form, given)
        if mode.places:
            with suppress(Exception):
                return seen_with(form, given, mode.places[0])
    return None


def _on_tensors(
    subject: Any, inputs: Mapping[str, Any] | None
) -> tuple[Any, Mapping[str, Any] | None, bool]:
    """Code of NumPy or JAX as code on tensors, where its example holds arrays of theirs."""
    if not isinstance(inputs, Mapping):
        return subject, inputs, False
    suited, inputs = _unpacked(inputs)
    if isinstance(subject, nn.Module) or any(isinstance(x, Tensor) for x in inputs.values()):
        return suited(subject), inputs, False
    if programs.is_jax(subject, inputs):
        given = {n: programs.tensor_of(x) if _is_array(x) else x for n, x in inputs.items()}
        return programs.Program(suited(subject), dict(inputs)), given, True
    arrays = [x for x in inputs.values() if isinstance(x, np.ndarray)]
    if not arrays or any(k.__module__.startswith("keras") for k in type(subject).__mro__):
        return suited(subject), inputs, False
    from intently.checker.calling.arrays import on_tensors

    given = {n: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for n, x in inputs.items()}
    return suited(on_tensors(subject)), given, True


def _unpacked(inputs: Mapping[str, Any]) -> tuple[Callable[[Any], Any], Mapping[str, Any]]:
    """Arrays that stand inside lists and mappings only, by names, and a change of code to suit."""
    found, spec = tree.tree_flatten_with_path(dict(inputs), is_leaf=_is_ids)
    names = [".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in p) for p, _ in found]
    leaves = {n: np.asarray(x) if _is_ids(x) else x for n, (_, x) in zip(names, found)}
    if any(map(_is_array, inputs.values())) or not any(map(_is_array, leaves.values())):
        return lambda subject: subject, inputs

    def suited(subject: Any) -> Any:
        def packed(**given: Any) -> Any:
            return subject(**tree.tree_unflatten([given.get(n, leaves[n]) for n in names], spec))

        return packed

    return suited, leaves


def _with_arrays(subject: Callable[..., Any], inputs: Mapping[str, Any]) -> Callable[..., Any]:
    """A module that takes whole numbers as arrays of NumPy, as one that takes tensors."""
    whole = [n for n, x in inputs.items() if isinstance(x, np.ndarray) and x.dtype.kind in "iub"]

    def fed(**given: Any) -> Any:
        arrays = {n: x.numpy() for n, x in given.items() if n in whole and isinstance(x, Tensor)}
        return subject(**given | arrays)

    return fed


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _is_ids(x: Any) -> bool:
    """Whether it is a list of several whole numbers, as of token ids."""
    return isinstance(x, list) and len(x) > 1 and all(type(y) is int for y in x)


def _layout(text: str | None) -> str:
    """The letters of a layout; raises `ArgumentError` for other letters, or some twice."""
    letters = "".join(c for c in (text or "") if c.isalnum())
    known = set(letters) <= set("bhtsgdecnwij")
    if not known or len(set(letters)) < len(letters) or (text and not letters):
        expected = "the axes of the inputs in their order, such as 'tbc', 'bct' or 'bthd'"
        raise build(ArgumentError, "layout", expected, repr(text))
    return letters.replace("s", "t").replace("n", "t") if "t" not in letters else letters


def _examinable(subject: Any) -> None:
    """Raise `ArgumentError` for what cannot be run."""
    expected = "a function or a module"
    if isinstance(subject, type):
        fix = f"make one first: {subject.__name__}(...)"
        raise build(ArgumentError, "subject", expected, f"the class {subject.__name__}", fix=fix)
    if not callable(subject):
        raise build(ArgumentError, "subject", expected, type(subject).__name__)
    if isinstance(subject, nn.Module) and any(x.is_meta for x in subject.parameters()):
        fix = "load its weights, or make it outside of torch.device('meta')"
        got = "a module on the meta device, which has shapes and no numbers"
        raise build(ArgumentError, "subject", "a module with weights", got, fix=fix)


def _known(subject: Any, meanings: Mapping[str, str], inputs: Any) -> None:
    """Raise `ArgumentError` for inputs that are no mapping, or meanings of unknown arguments."""
    if inputs is not None and not isinstance(inputs, Mapping):
        expected = "a mapping from the names of arguments to values, such as {'x': x}"
        raise build(ArgumentError, "inputs", expected, type(inputs).__name__)
    for name, x in (inputs or {}).items():
        if isinstance(x, Tensor) and not x.numel():
            expected = "at least one number in each"
            raise build(ArgumentError, f"inputs[{name!r}]", expected, f"shape {tuple(x.shape)}")
    takes = parameters_named(subject)
    closed = takes and all(p.kind is not p.VAR_KEYWORD for p in takes.values())
    for name, meaning in meanings.items():
        if meaning not in MEANINGS:
            expected = f"one of {', '.join(MEANINGS)}"
            raise build(ArgumentError, f"arguments[{name!r}]", expected, meaning)
        if closed and name not in takes and name not in (inputs or {}):
            raise build(ArgumentError, "arguments", f"names among {', '.join(takes)}", name)


def _completed(subject: Any, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inputs with tokens for the decoder, where a model would make them from the encoder's."""
    given, name, ids = dict(inputs), "decoder_input_ids", inputs.get("input_ids")
    decodes = name in parameters_named(subject) and not any(n.startswith("decoder_") for n in given)
    if not (decodes and isinstance(ids, Tensor) and ids.ndim == 2):
        return [given]
    return [given | {name: ids[:, : max(ids.shape[1] - 2, 1)].flip(1)}, given]


Form = tuple[Callable[..., Any], torch.dtype]


def _forms(subject: Any) -> Iterator[Form]:
    """Copies to examine: in float64, and as it is, in the dtype of its parameters."""
    for dtype in (torch.double, torch.float32):
        made = subject  # what cannot be copied is examined as it is
        with suppress(Exception):
            if dtype == torch.double:
                made = copied(subject, dtype)
            elif isinstance(subject, nn.Module):
                made = duplicate(subject, False)
        yield made, dtype


def copied(subject: Any, dtype: torch.dtype, depth: int = 3) -> Any:
    """A copy in a dtype and in evaluation mode, with the modules that a function holds."""
    if isinstance(subject, nn.Module):
        return duplicate(subject, False).to(dtype)
    if depth == 0 or on_tensors_already(subject):
        return subject
    if isinstance(subject, Tensor):
        return subject.to(dtype) if subject.is_floating_point() else subject
    inner = partial(copied, dtype=dtype, depth=depth - 1)
    if isinstance(subject, partial):
        held = {n: inner(x) for n, x in subject.keywords.items()}
        return partial(inner(subject.func), *map(inner, subject.args), **held)
    if isinstance(subject, MethodType):
        return MethodType(subject.__func__, inner(subject.__self__))
    if isinstance(subject, FunctionType) and subject.__closure__:
        return _of_others(subject, inner)
    return subject


def duplicate(module: nn.Module, training: bool) -> nn.Module:
    """A copy of a module, in training or not, with tensors that others made, and with its hooks."""
    held = (x for m in module.modules() for x in vars(m).values() if isinstance(x, Tensor))
    known: dict[int, Any] = {id(x): x.detach().clone() for x in held if not x.is_leaf}
    made = copy.deepcopy(module, known)
    for hooks in (h for m in made.modules() for h in (m._forward_hooks, m._forward_pre_hooks)):
        for n, hook in hooks.items():
            if isinstance(hook, FunctionType):
                hooks[n] = _of_others(hook, lambda x: known.get(id(x), x))
    made.train(training)  # which need not return anything
    return made


def _of_others(f: FunctionType, other: Callable[[Any], Any]) -> FunctionType:
    """A function that holds other things in its closure."""
    cells = [*(f.__closure__ or ())]
    for n, cell in enumerate(cells):
        held = None if cell == CellType() else cell.cell_contents  # it may be empty yet
        cells[n] = cell if (made := other(held)) is held else CellType(made)
    made = FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, (*cells,))
    made.__kwdefaults__ = f.__kwdefaults__
    return made


def _with_inputs(
    subject: Any,
    meanings: dict[str, str],
    stated: dict[str, Any],
    form: Form,
    given: dict[str, Any],
    raising: str = "",
) -> Subject:
    call, dtype = form
    given = {n: cast(x, dtype) for n, x in given.items()}
    if not any(isinstance(x, Tensor) for x in given.values()):
        expected = "a tensor or an array for at least one argument"
        fix = "pass an adapter that takes tensors by name: lambda x: mine({'x': x})"
        raise build(ArgumentError, "inputs", expected, f"{', '.join(given) or 'none'}", fix=fix)
    module, stated = call if isinstance(call, nn.Module) else None, {**stated, "raising": raising}
    out = Subject(call, given, roles_of(given, meanings), meanings, module, owner=call, **stated)
    if out.layout == "tbc" or (not out.layout and sequence_first(subject, meanings, given)):
        out.sequence_first, out.layout = True, ""
        if out.given:  # they are (t, b, c); what is held is (b, t, c)
            out.inputs = out.turned(given)
    kept = {n: x.clone() for n, x in out.inputs.items() if isinstance(x, Tensor)}
    out = _tried(out, dtype)
    now = {n: out.inputs[n].nan_to_num() for n in kept}
    off = tuple(n for n, x in kept.items() if not torch.equal(now[n], x.nan_to_num()))
    if off:  # the call is given copies of what it changes
        out = replace(out, inputs={**out.inputs, **kept}, changes=off)
    with torch.no_grad():
        made = out.output()
    if not made.ndim:
        expected = "a call that returns an output for each position, such as (b, t, c)"
        got = f"a call that returns shape {tuple(made.shape)}"
        fix = "pass what comes before the loss: lambda x: mine(x)[1]"
        raise build(ArgumentError, "subject", expected, got, fix=fix)
    lowest = made.dtype
    with suppress(Exception):  # what cannot be followed is judged by what comes out
        lowest = less_precise(followed(out)[0].lowest, lowest)
    out.precision = precision_of(lowest)
    return with_meanings(out, subject)


def _tried(subject: Subject, dtype: torch.dtype) -> Subject:
    """The subject as it can be run: its arguments by name or in order, in float64 or not."""
    if dtype != torch.double:
        return _run(subject)
    with exactly() as mode:
        subject = _run(subject)
    if not mode.used:
        with suppress(Exception):  # raised where its new tensors are shorter floats
            return _run(subject)
    subject.notes += ("casts to shorter floats are ignored: everything is measured in float64",)
    return replace(subject, widened=True, rounded=mode.halved)


def _run(subject: Subject) -> Subject:
    with torch.no_grad():
        try:
            made = subject.output()
        except TypeError:
            subject = replace(subject, positional=True)
            made = subject.output()
    return replace(subject, opening=made if subject.opening is None else subject.opening)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """An input in another float dtype, copied: a tensor, or several."""
    x = torch.as_tensor(x) if isinstance(x, np.ndarray) and x.dtype.kind in "fiub" else x
    return tree.tree_map_only(
        Tensor, lambda y: y.detach().to(dtype if y.is_floating_point() else y.dtype, copy=True), x
    )


OF_PADDING = ("padding-attended", "lengths-off-by-one", "padding-side")
"""Mistakes in padding that hold whatever else is hidden."""


def without_masks(subject: Subject) -> Subject | None:
    """The subject without the masks that may be left out; None if there are none."""
    return _without(subject, _optional(subject, "mask"))


def without_context(subject: Subject) -> Subject | None:
    """The subject that attends to itself, where a mask of its context is about itself as well.

    None if it needs a context, or if its masks are of other lengths.
    """
    names, x = _optional(subject, "context"), subject.inputs[subject.main]
    if len(names) != 1 or not x.is_floating_point():
        return None
    alike = x.shape[1] == subject.inputs[names[0]].shape[1]
    meant = ("attend", "ignore", "lengths")
    masks = [n for n in subject.of("mask") if subject.meanings.get(n) in meant]
    own = masks and all("self" in about(subject, n) for n in masks)
    return _without(subject, names) if alike and own else None


def _optional(subject: Subject, role: Role) -> list[str]:
    """The tensors of a role that are None by default."""
    names: list[str] = []
    if subject.module is not None and not subject.positional:
        with suppress(TypeError, ValueError):
            known = inspect.signature(subject.module.forward).parameters
            names = [n for n in subject.of(role) if n in known and known[n].default is None]
    return [n for n in names if isinstance(subject.inputs.get(n), Tensor)]


def _without(subject: Subject, names: list[str]) -> Subject | None:
    fields = ("inputs", "roles", "meanings")
    left = {f: {n: x for n, x in getattr(subject, f).items() if n not in names} for f in fields}
    return replace(subject, **left) if names else None
