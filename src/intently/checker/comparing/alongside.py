"""Run a subject beside its reference: the same inputs, the same weights, and where they part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Subject
from intently.checker.calling.understanding import duplicate, understood
from intently.checker.comparing.likeness import parted, with_matrices
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
    like, said = _aligned(like, seen)
    other = _called_alike(like, seen)
    with torch.no_grad():
        one, two = seen.output(), other.output()
    same, off = 10 * max(seen.precision.same, other.precision.same), part(one, two)
    theirs = examined(other, meant)
    excused = {f.name for f in theirs.findings}
    found = [f for f in report.findings if f.name not in excused]
    held = Property("like the reference", off <= same, said)
    if not held.holds:
        trial = Trial(seen, False, one, mine)
        apart = f"differs from the reference's by {off:.2g}{first_place(trial, two, same)}"
        if one.shape != two.shape:
            apart = f"is {tuple(one.shape)}, the reference's {tuple(two.shape)}"
        said = f"the output {apart}" + (f" ({said})" if said else "")
        first = _first_module(mine, theirs, same)
        held = replace(held, said=f"{said}; first in {first}" if first else said)
        known = {f.name for f in found if f.kind == "mistake"}
        named = parted(mine, theirs, same) or _constant_apart(trial, two, same)
        named = [f for f in named if f.name not in known]
        kept = [f for f in found if f.name not in {x.name for x in named}]
        found = with_matrices([*kept, *named], mine, theirs)
        if not any(f.kind == "mistake" for f in found):
            found.append(Finding("differs-from-reference", said, where=first))
    computed = (f"the reference computes: {x.said}" for x in theirs.attentions)
    return replace(
        report,
        computes=(*report.computes, *computed),
        findings=merged(found),
        properties=(*report.properties, held),
        unmeasured=() if held.holds else report.unmeasured,
    )


def _constant_apart(trial: Trial, two: Tensor, same: float) -> list[Finding]:
    """Whether all rows differ by the same: the bias of the last projection."""
    try:
        off = trial.by_position(trial.first) - trial.by_position(two)
    except NotToldError:
        return []
    if float((off - off.mean((0, 1))).abs().max()) > same * float(two.abs().max()):
        return []
    said = "all rows differ by the same: the bias of the last projection is missing or differs"
    return [Finding("projection-bias-missing", said)]


def _first_module(mine: Examination, theirs: Examination, same: float) -> str:
    """The first layer whose output differs, if both run the same ones."""
    one, two = ([] if x.run is None else list(x.run.layers()) for x in (mine, theirs))
    if [x.shape for _, x in one] != [x.shape for _, x in two]:
        return ""
    off = (name for (name, a), (_, b) in zip(one, two) if part(a, b) > same)
    return next(off, "").rpartition(".")[0]


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
            yield {n: of(x) if isinstance(x, Tensor) else x for n, x in seen.inputs.items()}
    yield dict(seen.inputs)
    tensors = seen.of("q", "k", "v", "x", "context", "ids")
    yield {n: seen.inputs[n] for n in tensors}
    if seen.of("x") and len(tensors) == 1:
        yield dict.fromkeys(("query", "key", "value"), seen.inputs[tensors[0]])


def _aligned(like: Any, seen: Subject) -> tuple[Any, str]:
    """The reference with the weights of the subject where theirs differ, and what was done."""
    mine = seen.module
    if mine is None or not isinstance(like, nn.Module) or _shares(mine, like):
        return like, ""
    own, other = (dict(x.named_parameters()) for x in (mine, like))
    sizes, others = ({n: x.shape for n, x in held.items()} for held in (own, other))
    if list(sizes.values()) != list(others.values()) and sizes != others:
        got = f"different values in {len(other)} parameters that neither names nor shapes match"
        fix = "copy the weights from one to the other first, as with intently.interop"
        raise build(ArgumentError, "like", "a reference with the same weights", got, fix=fix)
    values = own if sizes == others else dict(zip(other, own.values()))
    made = duplicate(like, like.training)
    with torch.no_grad():
        for n, x in made.named_parameters():
            x.copy_(values[n])
    return made, f"weights copied {'by name' if sizes == others else 'in their order'}"


def _shares(mine: nn.Module, like: nn.Module) -> bool:
    """Whether at least half of the weights are in the reference: whole, in pieces, or turned."""
    theirs = [torch.atleast_2d(x.detach()).flatten(1) for x in like.parameters()]
    known = {_key(row) for x in theirs for y in (x, x.mT) for row in y}
    own = [x.detach() for x in mine.parameters() if x.ndim >= 2]
    rows = [row for x in own for row in x.flatten(1)]
    turned = [row for x in own if x.ndim == 2 for row in x.mT]
    return any(sum(_key(r) in known for r in some) >= len(some) / 2 for some in (rows, turned))


def _key(row: Tensor) -> tuple[float, ...]:
    """A row by its first numbers, as far as half types keep them."""
    return (*(float(f"{v:.2e}") for v in row[:8].tolist()), float(len(row)))
