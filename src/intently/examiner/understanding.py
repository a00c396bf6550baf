"""How something that attends is called: what is not stated is found out by trial."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, build
from intently.examiner.exact import exactly
from intently.examiner.meanings import MEANINGS, sequence_first, with_meanings
from intently.examiner.naming import parameters_named, roles_of
from intently.examiner.precision import Precision, precision_of
from intently.examiner.subject import Subject
from intently.examiner.tracing import less_precise
from intently.examiner.trials import trials
from intently.examiner.viewing import Reshaped


def understood(
    subject: Any,
    inputs: Mapping[str, Any] | None = None,
    arguments: Mapping[str, str] | None = None,
) -> Subject:
    """How to call ``subject``; raises `ArgumentError` if it cannot be told."""
    if not callable(subject):
        raise build(ArgumentError, "subject", "a function or a module", type(subject).__name__)
    meanings = dict(arguments or {})
    for name, meaning in meanings.items():
        if meaning not in MEANINGS:
            raise build(
                ArgumentError, f"arguments[{name!r}]", f"one of {', '.join(MEANINGS)}", meaning
            )
    if inputs is not None:
        error: Exception | None = None
        for made, given in product(_forms(subject), _completed(subject, inputs)):
            try:
                return _with_inputs(made, given, meanings, subject, True)
            except Exception as raised:  # whatever the code does with it
                error = error or raised
        assert error is not None
        seen = _with_reshapes(subject, inputs, meanings)
        if seen is not None:
            return seen
        raise _refused(error, "inputs= with which the call succeeds, by the names of its arguments")
    errors: list[Exception] = []
    for made in _forms(subject):
        for given in trials(subject):
            try:
                return _with_inputs(made, given, meanings, subject, False)
            except Exception as raised:
                errors.append(raised)
    expected = "an example call, such as inputs={'x': torch.randn(2, 6, 64)}"
    raise _refused(_telling(errors), expected)


def _with_reshapes(
    subject: Any, inputs: Mapping[str, Any], meanings: dict[str, str]
) -> Subject | None:
    """How to call a subject that raises for a view alone, which is then run as a reshape."""
    for made, given in product(_forms(subject), _completed(subject, inputs)):
        with suppress(Exception), Reshaped() as mode:  # whatever else the code does
            _with_inputs(made, given, meanings, subject, True)
        if mode.places:
            with suppress(Exception):
                return _with_inputs(made, given, meanings, subject, True, mode.places[0])
    return None


def _completed(subject: Any, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inputs with tokens for the decoder, where a model would make them from the encoder's."""
    given, name = dict(inputs), "decoder_input_ids"
    ids = given.get("input_ids")
    decodes = name in parameters_named(subject) and not any(n.startswith("decoder_") for n in given)
    if decodes and isinstance(ids, Tensor) and ids.ndim == 2:
        return [given | {name: ids[:, : max(ids.shape[1] - 2, 1)].flip(1)}, given]
    return [given]


def _refused(error: Exception | None, expected: str) -> ArgumentError:
    said = f"{type(error).__name__}: {error}".strip().split("\n")[0]
    return build(
        ArgumentError,
        "inputs",
        expected,
        "a call that raises",
        cause=f"the call said: {said}" if error else "its signature names no tensors",
        fix="hand in inputs=, or an adapter: lambda x: mine(x, causal=True)",
    )


def _telling(errors: list[Exception]) -> Exception | None:
    """The error that says most: one about values, rather than about names."""
    told = [e for e in errors if not isinstance(e, (TypeError, IndexError))]
    return next(iter([*told, *errors]), None)


Form = tuple[Callable[..., Any], torch.dtype]


def _forms(subject: Any) -> Iterator[Form]:
    """Copies to examine: in float64, and as it is, in the dtype of its parameters."""
    try:
        yield _copied(subject), torch.double
    except Exception:  # what cannot be copied is examined as it is
        yield subject, torch.double
    yield _evaluated(subject), torch.float32


def _evaluated(subject: Any) -> Any:
    try:
        return copy.deepcopy(subject).eval() if isinstance(subject, nn.Module) else subject
    except Exception:
        return subject


def _copied(subject: Any, depth: int = 3) -> Any:
    """A copy in float64 and in evaluation mode, with the modules that a function holds."""
    if isinstance(subject, nn.Module):
        return copy.deepcopy(subject).double().eval()
    if depth == 0:
        return subject
    if isinstance(subject, Tensor):
        return subject.double() if subject.is_floating_point() else subject
    if isinstance(subject, partial):
        held = {n: _copied(x, depth - 1) for n, x in subject.keywords.items()}
        args = [_copied(x, depth - 1) for x in subject.args]
        return partial(_copied(subject.func, depth - 1), *args, **held)
    if isinstance(subject, MethodType):
        return MethodType(subject.__func__, _copied(subject.__self__, depth - 1))
    if isinstance(subject, FunctionType) and subject.__closure__:
        cells = tuple(_cell(cell, depth) for cell in subject.__closure__)
        made = FunctionType(
            subject.__code__, subject.__globals__, subject.__name__, subject.__defaults__, cells
        )
        made.__kwdefaults__ = subject.__kwdefaults__
        return made
    return subject


def _cell(cell: CellType, depth: int) -> CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # a cell that is still empty
        return cell
    made = _copied(held, depth - 1)
    return cell if made is held else CellType(made)


def _with_inputs(
    form: Form,
    given: dict[str, Any],
    meanings: dict[str, str],
    subject: Any,
    stated: bool,
    raising: str = "",
) -> Subject:
    call, dtype = form
    given = {n: _cast(x, dtype) for n, x in given.items()}
    module = call if isinstance(call, nn.Module) else None
    roles = roles_of(given, meanings)
    out = Subject(call, given, roles, meanings, module, heads=_heads(call), owner=call)
    out.raising = raising
    if sequence_first(subject, meanings, given):
        out.sequence_first = True
        if stated:  # they are (t, b, c); what is held is (b, t, c)
            out.inputs = out.turned(given)
    out = _tried(out, dtype)
    out.precision = _precision(out)
    return with_meanings(out, subject)


def _precision(subject: Subject) -> Precision:
    """The precision of the shortest float that its inside computes in."""
    with torch.no_grad():
        made = subject.output().dtype
    try:
        return precision_of(less_precise(subject.traced().lowest, made))
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
    note = "its casts to shorter floats are left out, so that all is measured in float64"
    return replace(subject, notes=(*subject.notes, note))


def _run(subject: Subject) -> Subject:
    with torch.no_grad():
        try:
            subject.output()
        except TypeError:
            subject = replace(subject, positional=True)
            subject.output()
    return subject


def _cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, Tensor) and x.is_floating_point():
        return x.detach().to(dtype)
    if isinstance(x, (list, tuple)) and all(isinstance(y, Tensor) for y in x):
        return type(x)(_cast(y, dtype) for y in x)
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
