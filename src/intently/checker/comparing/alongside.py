"""Run a subject beside its reference: the same inputs, the same weights, and where they part."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Subject
from intently.checker.calling.understanding import understood
from intently.checker.comparing.likeness import parted
from intently.checker.comparing.side_by_side import with_matrices
from intently.checker.examined import Examination, Intention, examined
from intently.checker.properties.trial import NotToldError, Property, Trial, first_place, part
from intently.checker.report.finding import Finding, merged
from intently.checker.report.report import Report
from intently.errors import ArgumentError, build


def against(report: Report, mine: Examination, like: Any, meant: Intention) -> Report:
    """The report of a subject, with how it differs from a reference.

    Raises `ArgumentError` if the reference cannot be called with the same inputs, or has
    different weights that no name and no shape tells apart.
    """
    seen = mine.subject
    like, told = _aligned(like, seen)
    other = _called_alike(like, seen)
    with torch.no_grad():
        one, two = seen.output(), other.output()
    same = max(seen.precision.same, other.precision.same)
    off = part(one, two)
    theirs = examined(other, meant)
    excused = {f.name for f in theirs.findings}
    found = [f for f in report.findings if f.name not in excused]
    computes = (*report.computes, *(f"the reference computes: {x.said}" for x in theirs.attentions))
    name = "like the reference"
    if off <= 10 * same:
        held = Property(name, True, told)
        return replace(
            report,
            computes=computes,
            findings=tuple(found),
            properties=(*report.properties, held),
            unmeasured=(),
        )
    trial = Trial(seen, False, one, mine)
    said = _where(trial, two, off, 10 * same) + (f" ({told})" if told else "")
    first = _first_module(mine, theirs, 10 * same)
    named = parted(mine, theirs, 10 * same) or _constant_apart(trial, two, 10 * same)
    named = with_matrices(named, mine, theirs)
    told_already = {f.name for f in found if f.kind == "mistake"}
    found = [f for f in found if f.name not in {x.name for x in named} - told_already]
    found += [f for f in named if f.name not in told_already]
    found = with_matrices(found, mine, theirs)
    if not any(f.kind == "mistake" for f in found):
        found.append(Finding("differs-from-reference", said, where=first))
    held = Property(name, False, f"{said}{f'; first in {first}' if first else ''}")
    return replace(
        report, computes=computes, findings=merged(found), properties=(*report.properties, held)
    )


def _where(trial: Trial, two: Tensor, off: float, same: float) -> str:
    if trial.first.shape != two.shape:
        return f"the output is {tuple(trial.first.shape)}, the reference's {tuple(two.shape)}"
    return f"the output differs from the reference's by {off:.2g}{first_place(trial, two, same)}"


def _constant_apart(trial: Trial, two: Tensor, same: float) -> list[Finding]:
    """Whether all rows differ by the same: the bias of the last projection."""
    if trial.first.shape != two.shape:
        return []
    try:
        off = trial.by_position(trial.first - two)
    except NotToldError:
        return []
    if float((off - off.mean((0, 1))).abs().max()) > same * float(two.abs().max()):
        return []
    said = "all rows differ by the same: the bias of the last projection is missing or differs"
    return [Finding("projection-bias-missing", said)]


def _first_module(mine: Examination, theirs: Examination, same: float) -> str:
    """The first layer whose output differs, if both run the same ones."""
    if mine.run is None or theirs.run is None:
        return ""
    one, two = list(mine.run.layers()), list(theirs.run.layers())
    if [x.shape for _, x in one] != [x.shape for _, x in two]:
        return ""
    for (name, a), (_, b) in zip(one, two):
        if part(a, b) > same:
            return name.rpartition(".")[0]
    return ""


# --- calls --------------------------------------------------------------------------------------


def _called_alike(like: Any, seen: Subject) -> Subject:
    """The reference, called with the inputs of the subject as far as it takes them."""
    errors: list[str] = []
    for given in _inputs_for(seen):
        try:
            return understood(like, given, {n: m for n, m in seen.meanings.items() if n in given})
        except Exception as error:  # whatever foreign code does with a trial
            errors.append(f"{type(error).__name__}: {error}".split("\n")[0])
    raise build(
        ArgumentError,
        "like",
        f"a reference that takes {', '.join(seen.inputs)}",
        f"one that raises with them: {errors[0]}",
        fix="pass an adapter: like=lambda x: theirs(x, x, x)",
    )


def _inputs_for(seen: Subject) -> Iterator[dict[str, Any]]:
    if seen.foreign:  # arrays, as its own code takes them
        jax = sys.modules.get("jax")
        for of in (np.asarray, *([jax.numpy.asarray] if jax else [])):
            arrays = {n: x.numpy() if isinstance(x, Tensor) else x for n, x in seen.inputs.items()}
            yield {n: of(x) if isinstance(x, np.ndarray) else x for n, x in arrays.items()}
    yield dict(seen.inputs)
    tensors = seen.of("q", "k", "v", "x", "context", "ids")
    yield {n: seen.inputs[n] for n in tensors}
    if seen.of("x") and len(tensors) == 1:
        x = seen.inputs[tensors[0]]
        yield {"query": x, "key": x, "value": x}


# --- weights ------------------------------------------------------------------------------------


def _aligned(like: Any, seen: Subject) -> tuple[Any, str]:
    """The reference with the weights of the subject where theirs differ, and what was done."""
    mine = seen.module
    if mine is None or not isinstance(like, nn.Module) or _shares(mine, like):
        return like, ""
    own, other = dict(mine.named_parameters()), dict(like.named_parameters())
    if own.keys() == other.keys() and all(own[n].shape == other[n].shape for n in own):
        return _copied(like, own), "weights copied by name"
    shapes = [[tuple(x.shape) for x in p.values()] for p in (own, other)]
    if shapes[0] == shapes[1]:
        return _copied(like, dict(zip(other, own.values()))), "weights copied in their order"
    raise build(
        ArgumentError,
        "like",
        "a reference with the same weights",
        f"different values in {len(other)} parameters that neither names nor shapes match",
        fix="copy the weights from one to the other first, as with intently.interop",
    )


def _copied(like: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    made = copy.deepcopy(like)
    with torch.no_grad():
        for name, x in made.named_parameters():
            x.copy_(values[name])
    return made


def _shares(mine: nn.Module, like: nn.Module) -> bool:
    """Whether at least half of the weights are in the reference: whole, in pieces, or turned."""
    known = {_key(row) for x in like.parameters() for y in _turned(x) for row in y}
    rows = [row for x in mine.parameters() if x.ndim >= 2 for row in x.detach().flatten(1)]
    if not rows:
        return True
    turned = [row for x in mine.parameters() if x.ndim == 2 for row in x.detach().mT]
    return any(sum(_key(r) in known for r in some) >= len(some) / 2 for some in (rows, turned))


def _turned(x: Tensor) -> list[Tensor]:
    x = x.detach().reshape(1, -1) if x.ndim < 2 else x.detach().flatten(1)
    return [x, x.mT]


def _key(row: Tensor) -> tuple[float, ...]:
    """A row by its first numbers, as far as half types keep them."""
    return (*(float(f"{v:.2e}") for v in row[:8].tolist()), float(len(row)))
