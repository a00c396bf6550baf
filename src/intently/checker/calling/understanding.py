"""How something that attends is called: what is not stated is found out by trial."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intently.checker.calling.exact import exactly
from intently.checker.calling.holding import less_precise, on_tensors_already
from intently.checker.calling.meanings import MEANINGS, sequence_first, with_meanings
from intently.checker.calling.naming import parameters_named, roles_of
from intently.checker.calling.packing import unpacked, with_arrays
from intently.checker.calling.subject import Subject
from intently.checker.calling.trials import trials
from intently.checker.calling.viewing import Reshaped
from intently.checker.precision import Precision, precision_of
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
    subject, inputs, foreign = _on_tensors(subject, inputs)
    meanings = dict(arguments or {})
    stated = _Stated(_layout(layout), returns, foreign=foreign)
    _known(subject, meanings, inputs)
    if inputs is not None:
        error: Exception | None = None
        bad: Subject | None = None
        for made, given in product(_forms(subject), _completed(subject, inputs)):
            try:
                seen = _with_inputs(made, given, meanings, subject, stated)
            except Exception as raised:  # whatever the code does with it
                error = error or raised
                continue
            if not bool(seen.output().isnan().any()) or made[1] is torch.float32:
                return bad if bool(seen.output().isnan().any()) and bad else seen
            bad = seen  # numbers that are lost in float64 may not be in float32
        if bad is not None:
            return bad
        assert error is not None
        if not foreign and _reads_numpy(subject):
            from intently.checker.calling.arrays import on_tensors

            with suppress(Exception):
                return understood(on_tensors(subject), inputs, arguments, layout, returns)
        if _takes_arrays(subject, inputs):
            with suppress(Exception):
                return understood(with_arrays(subject, inputs), inputs, arguments, layout, returns)
        seen = _with_reshapes(subject, inputs, meanings, stated)
        if seen is not None:
            return seen
        raise _refused(error, "inputs= with which the call succeeds, by the names of its arguments")
    errors: list[Exception] = []
    stated = replace(stated, given=False)
    for length in LENGTHS:
        for made in _forms(subject):
            for given in trials(subject, length):
                try:
                    return _with_inputs(made, given, meanings, subject, stated)
                except Exception as raised:
                    errors.append(raised)
        if all(isinstance(x, (TypeError, ArgumentError)) for x in errors):
            break  # no other length will do
    if not foreign and _reads_numpy(subject):
        from intently.checker.calling.arrays import on_tensors

        with suppress(Exception):
            return understood(on_tensors(subject), None, arguments, layout, returns)
    expected = "an example call, such as inputs={'x': torch.randn(2, 6, 64)}"
    raise _refused(_telling(errors), expected)


def _on_tensors(
    subject: Any, inputs: Mapping[str, Any] | None
) -> tuple[Any, Mapping[str, Any] | None, bool]:
    """Code of NumPy or JAX as code on tensors, where its example holds arrays of theirs."""
    if not isinstance(inputs, Mapping):
        return subject, inputs, False
    suited, inputs = unpacked(inputs)
    if isinstance(subject, nn.Module) or any(isinstance(x, Tensor) for x in inputs.values()):
        return suited(subject), inputs, False
    from intently.checker.calling import programs

    if programs.is_jax(subject, inputs):
        given = {n: programs.tensor_of(x) for n, x in inputs.items()}
        return programs.of_jax(suited(subject), dict(inputs)), given, True
    arrays = [x for x in inputs.values() if isinstance(x, np.ndarray)]
    if not arrays or _is_keras(subject):
        return suited(subject), inputs, False
    from intently.checker.calling.arrays import on_tensors

    given = {n: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for n, x in inputs.items()}
    return suited(on_tensors(subject)), given, True


def _reads_numpy(subject: Any) -> bool:
    """Whether a function that is not yet on tensors names NumPy."""
    call = subject if isinstance(subject, FunctionType) else vars(type(subject)).get("__call__")
    known = getattr(call, "__globals__", {})
    return not on_tensors_already(subject) and any(x is np for x in known.values())


def _takes_arrays(subject: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether a module is given arrays of NumPy, which may be what it takes."""
    return isinstance(subject, nn.Module) and any(
        isinstance(x, np.ndarray) for x in inputs.values()
    )


def _is_keras(subject: Any) -> bool:
    return any(k.__module__.startswith("keras") for k in type(subject).__mro__)


@dataclass(frozen=True)
class _Stated:
    """What is said of the call: the axes, what it returns, and whether there is an example."""

    layout: str
    returns: str
    given: bool = True
    foreign: bool = False


def _layout(text: str | None) -> str:
    """The letters of a layout; raises `ArgumentError` for other letters, or some twice."""
    letters = "".join(c for c in (text or "") if c.isalnum())
    known = set("bhtsgdecnwij")
    if not set(letters) <= known or len(set(letters)) < len(letters) or (text and not letters):
        expected = "the axes of the inputs in their order, such as 'tbc', 'bct' or 'bthd'"
        raise build(ArgumentError, "layout", expected, repr(text))
    return letters.replace("s", "t").replace("n", "t") if "t" not in letters else letters


def _with_reshapes(
    subject: Any, inputs: Mapping[str, Any], meanings: dict[str, str], stated: _Stated
) -> Subject | None:
    """How to call a subject that raises for a view alone, which is then run as a reshape."""
    for made, given in product(_forms(subject), _completed(subject, inputs)):
        with suppress(Exception), Reshaped() as mode:  # whatever else the code does
            _with_inputs(made, given, meanings, subject, stated)
        if mode.places:
            with suppress(Exception):
                return _with_inputs(made, given, meanings, subject, stated, mode.places[0])
    return None


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
    given, name = dict(inputs), "decoder_input_ids"
    ids = given.get("input_ids")
    decodes = name in parameters_named(subject) and not any(n.startswith("decoder_") for n in given)
    if decodes and isinstance(ids, Tensor) and ids.ndim == 2:
        return [given | {name: ids[:, : max(ids.shape[1] - 2, 1)].flip(1)}, given]
    return [given]


def _refused(error: Exception | None, expected: str) -> ArgumentError:
    if isinstance(error, ArgumentError):
        return error  # it says what is wrong with what was returned
    said = f"{type(error).__name__}: {error}".strip().split("\n")[0].removesuffix(":")
    return build(
        ArgumentError,
        "inputs",
        expected,
        "a call that raises",
        cause=f"it raised {said}" if error else "its signature names no tensors",
        fix="pass inputs=, or an adapter: lambda x: mine(x, causal=True)",
    )


def _telling(errors: list[Exception]) -> Exception | None:
    """The error that says most: one about values, rather than about names."""
    told = [e for e in errors if not isinstance(e, (TypeError, IndexError))]
    return next(iter([*told, *errors]), None)


Form = tuple[Callable[..., Any], torch.dtype]


def _forms(subject: Any) -> Iterator[Form]:
    """Copies to examine: in float64, and as it is, in the dtype of its parameters."""
    try:
        yield copied(subject, torch.double), torch.double
    except Exception:  # what cannot be copied is examined as it is
        yield subject, torch.double
    yield _evaluated(subject), torch.float32


def _evaluated(subject: Any) -> Any:
    try:
        return copy.deepcopy(subject).eval() if isinstance(subject, nn.Module) else subject
    except Exception:
        return subject


def copied(subject: Any, dtype: torch.dtype, depth: int = 3) -> Any:
    """A copy in a dtype and in evaluation mode, with the modules that a function holds."""
    if isinstance(subject, nn.Module):
        return copy.deepcopy(subject).to(dtype).eval()
    if depth == 0 or on_tensors_already(subject):
        return subject
    if isinstance(subject, Tensor):
        return subject.to(dtype) if subject.is_floating_point() else subject
    if isinstance(subject, partial):
        held = {n: copied(x, dtype, depth - 1) for n, x in subject.keywords.items()}
        args = [copied(x, dtype, depth - 1) for x in subject.args]
        return partial(copied(subject.func, dtype, depth - 1), *args, **held)
    if isinstance(subject, MethodType):
        return MethodType(subject.__func__, copied(subject.__self__, dtype, depth - 1))
    if isinstance(subject, FunctionType) and subject.__closure__:
        cells = tuple(_cell(cell, dtype, depth) for cell in subject.__closure__)
        made = FunctionType(
            subject.__code__, subject.__globals__, subject.__name__, subject.__defaults__, cells
        )
        made.__kwdefaults__ = subject.__kwdefaults__
        return made
    return subject


def _cell(cell: CellType, dtype: torch.dtype, depth: int) -> CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # a cell that is still empty
        return cell
    made = copied(held, dtype, depth - 1)
    return cell if made is held else CellType(made)


def _with_inputs(
    form: Form,
    given: dict[str, Any],
    meanings: dict[str, str],
    subject: Any,
    stated: _Stated,
    raising: str = "",
) -> Subject:
    call, dtype = form
    given = {n: cast(x, dtype) for n, x in given.items()}
    if not any(isinstance(x, Tensor) for x in given.values()):
        expected = "a tensor or an array for at least one argument"
        fix = "pass an adapter that takes tensors by name: lambda x: mine({'x': x})"
        raise build(ArgumentError, "inputs", expected, f"{', '.join(given) or 'none'}", fix=fix)
    module = call if isinstance(call, nn.Module) else None
    roles = roles_of(given, meanings)
    out = Subject(call, given, roles, meanings, module, heads=_heads(call), owner=call)
    out.raising, out.returns, out.layout = raising, stated.returns, stated.layout
    out.given, out.foreign = stated.given, stated.foreign
    if stated.layout == "tbc" or (not stated.layout and sequence_first(subject, meanings, given)):
        out.sequence_first, out.layout = True, ""
        if stated.given:  # they are (t, b, c); what is held is (b, t, c)
            out.inputs = out.turned(given)
    kept = {n: x.clone() for n, x in out.inputs.items() if isinstance(x, Tensor)}
    out = _unchanged(_tried(out, dtype), kept)
    if out.output().ndim < 1:
        raise build(
            ArgumentError,
            "subject",
            "a call that returns an output for each position, such as (b, t, c)",
            f"a call that returns shape {tuple(out.output().shape)}",
            fix="pass what comes before the loss: lambda x: mine(x)[1]",
        )
    out.precision = _precision(out)
    return with_meanings(out, subject)


def _unchanged(subject: Subject, kept: Mapping[str, Tensor]) -> Subject:
    """The subject with its inputs as they were, and copies for the call if it changes them."""
    off = [n for n, x in kept.items() if not _equal(subject.inputs[n], x)]
    if not off:
        return subject
    return replace(subject, inputs={**subject.inputs, **kept}, changes=tuple(off))


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def _precision(subject: Subject) -> Precision:
    """The precision of the shortest float that its inside computes in."""
    from intently.checker.measuring.attention import followed

    with torch.no_grad():
        made = subject.output().dtype
    try:
        return precision_of(less_precise(followed(subject)[0].lowest, made))
    except Exception:  # what cannot be followed is judged by what comes out
        return precision_of(made)


def _tried(subject: Subject, dtype: torch.dtype) -> Subject:
    """The subject as it can be run: its arguments by name or in order, in float64 or not."""
    if dtype != torch.double:
        return _run(subject)
    with exactly() as mode:
        subject = _run(subject)
    if not mode.used:
        try:
            return _run(subject)
        except Exception:  # its new tensors are shorter floats
            mode.used = True
    subject = replace(subject, widened=True, rounded=mode.halved)
    note = "casts to shorter floats are ignored: everything is measured in float64"
    return replace(subject, notes=(*subject.notes, note))


def _run(subject: Subject) -> Subject:
    with torch.no_grad():
        try:
            made = subject.output()
        except TypeError:
            subject = replace(subject, positional=True)
            made = subject.output()
    return subject if subject.opening is not None else replace(subject, opening=made)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """An input in another float dtype, copied: a tensor, or several."""
    if isinstance(x, np.ndarray):
        x = torch.as_tensor(x)
    if isinstance(x, Tensor):
        return x.detach().to(dtype if x.is_floating_point() else x.dtype, copy=True)
    if isinstance(x, (list, tuple)) and all(isinstance(y, Tensor) for y in x):
        return type(x)(cast(y, dtype) for y in x)
    return x


def _heads(subject: Any) -> list[int]:
    """The numbers of heads that a module names."""
    names = ("num_heads", "n_heads", "heads", "nhead", "n_head", "num_attention_heads", "h")
    found = []
    parts = list(subject.modules()) if isinstance(subject, nn.Module) else [subject]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if type(value) is int and 0 < value < 1025:
                found.append(value)
    return list(dict.fromkeys(found))
