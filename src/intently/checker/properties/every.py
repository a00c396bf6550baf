"""What must hold of any attention, tried from outside: each property with its counterexample.

A property is tried on the example and on changes of it: other numbers at some positions, more
padding, one row of the batch alone, a prefix of the text, another dtype. It holds, is broken, or
does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from intently.checker.calling.changes import another, changed_at, changed_rows
from intently.checker.calling.raising import raised
from intently.checker.calling.subject import Subject
from intently.checker.properties.axes import first_row, padded_by, real_keys
from intently.checker.properties.derivatives import gradients, gradients_of_biases
from intently.checker.properties.entering import (
    across_the_batch,
    nothing_later_enters,
    projections_named,
    queries_matter,
)
from intently.checker.properties.first_module import earlier_than, first_module, of_row
from intently.checker.properties.trial import (
    NotToldError,
    Property,
    Trial,
    broken,
    difference,
    part,
)
from intently.checker.properties.wiring import (
    dropout_placed,
    inputs_used,
    left_padding,
    not_rounded,
    nothing_later_in_training,
)
from intently.checker.report.finding import Finding
from intently.checker.report.telling import told

# --- the properties -----------------------------------------------------------------------------


def finite(trial: Trial) -> Property:
    """The example gives no NaN."""
    if not bool(trial.first.isnan().any()):
        return Property("finite", True)
    subject = trial.subject
    floats = [n for n in subject.contents if subject.inputs[n].is_floating_point()]
    if any(bool(subject.inputs[n].isnan().any()) for n in floats):
        return Property("finite", None, "the inputs hold NaN")
    if any(x.findings for x in trial.whole.attentions):
        return Property("finite", None, "the example gives NaN")
    for name, meaning in subject.meanings.items():
        x = subject.inputs.get(name)
        if meaning not in ("attend", "ignore") or not isinstance(x, Tensor):
            continue
        real = (x != 0) == (meaning == "attend")
        turned = ~x if x.dtype == torch.bool else (x == 0).to(x.dtype)
        if not bool(real.any(-1).all()):
            continue
        nan, other = trial.first.isnan(), trial.output(**{name: turned}).isnan()
        if other.shape == nan.shape and not bool((other & nan).any()):
            said = f"rows with keys ({name}) give NaN, and not with the mask turned round"
            return broken("finite", said, "mask-inverted")
    if bool(trial.first.isnan().all()) and not subject.of("mask"):
        return broken("finite", "every output is NaN", "nan-with-keys")
    return Property("finite", None, "the example gives NaN")


def deterministic(trial: Trial) -> Property:
    """Equal calls give equal outputs, with other calls between them."""
    subject = trial.subject
    again = [trial.output() for _ in range(3)]
    opening = subject.opening
    if opening is not None and opening.dtype is trial.first.dtype:
        steady = part(again[0], trial.first) <= trial.same
        if steady and part(opening, trial.first) > 1e3 * trial.same:
            said = "the second call of the same input gives another output: state is left behind"
            return broken("deterministic", said, "state-left")
    if any(part(x, trial.first) > trial.same for x in again):
        steady = part(again[1], again[2]) <= trial.same
        if steady:
            said = "the second call of the same input gives another output: state is left behind"
            return broken("deterministic", said, "state-left")
        training = subject.module is not None and subject.module.training
        said = "two equal calls differ in evaluation mode: dropout, or another random number"
        if training:
            said = "two equal calls differ; the module is in training mode"
            return Property("deterministic", None, said)
        return broken("deterministic", said, "dropout-in-eval")
    other = {
        n: another(subject.inputs[n]) for n in subject.of("x", "q", "k", "v", "ids", "context")
    }
    try:
        trial.output(**other)
    except Exception:
        return Property("deterministic", True)
    off = part(trial.output(), trial.first)
    if off > trial.same:
        said = (
            f"after a call with other inputs, the output differs by {off:.2g}: state is left behind"
        )
        return broken("deterministic", said, "state-left")
    return Property("deterministic", True)


def inputs_unchanged(trial: Trial) -> Property:
    """A call leaves its inputs as they were."""
    if trial.subject.changes:
        said = f"the call changes {' and '.join(trial.subject.changes)} in place"
        return broken("inputs unchanged", said, "input-changed")
    return Property("inputs unchanged", True)


def rows_of_the_batch(trial: Trial) -> Property:
    """A row of the batch depends on its own inputs only, and is the same alone."""
    subject = trial.subject
    if subject.batch < 2:
        return Property("batch", None, "one row")
    crossed = across_the_batch(trial)
    if crossed is not None:
        return crossed
    place, names = trial.by_position, [n for n in subject.contents if _has_rows(subject, n)]
    plain = place(trial.first)
    if len(plain) != subject.batch:
        return Property("batch", None, "its output has no rows of the batch")
    for other, row in ((1, 0), (0, 1)):
        changed = {n: changed_rows(subject.inputs[n], (other,)) for n in names}
        off = float(difference(place(trial.output(**changed))[row], plain[row]).amax())
        if off > trial.same:
            said = f"batch row {row} changes by {off:.2g} with the content of row {other}"
            where = first_module(subject, changed, of_row(row, subject.batch, trial.same))
            return broken("batch", said, "batch-mixed", where)
    alone = {n: first_row(x, subject.batch) for n, x in subject.inputs.items()}
    try:
        one = trial.output(**alone)
    except Exception as error:
        said = f"a batch of one raises {raised(error)}"
        return Property("batch", True, said)
    first = trial.whole.rows is not None and trial.whole.rows.batch == 0
    if one.shape != trial.first[:1].shape or not first:
        return Property("batch", True, f"a batch of one gives {tuple(one.shape)}")
    off = part(one, trial.first[:1])
    if off > trial.same:
        return broken(
            "batch", f"row 0 alone differs by {off:.2g} from row 0 in a batch", "batch-mixed"
        )
    return Property("batch", True)


def _has_rows(subject: Subject, name: str) -> bool:
    """Whether the first axis of an input is as long as the batch."""
    x = subject.inputs[name]
    return x.ndim > 0 and len(x) == subject.batch


def nothing_later(trial: Trial) -> Property:
    """Under a causal mask, an output does not change with later inputs."""
    if not trial.causal:
        return Property("causal", None, "no causal mask is intended")
    subject = trial.subject
    t = trial.by_position(trial.first).shape[1]
    names = subject.of("k", "v") if subject.of("q") else [subject.main]
    if any(subject.inputs[n].shape[subject.time(n)] < t for n in names):
        return Property("causal", None, "its inputs have other positions than its output")
    worst: tuple[int, int, float, dict[str, Tensor]] | None = None
    for j in range(t - 1, 0, -1):
        changed = {}
        for n in names:
            x = subject.inputs[n]
            axis = subject.time(n)
            changed[n] = changed_at(x, axis, x.shape[axis] - t + j)
        off = difference(
            trial.by_position(trial.output(**changed)), trial.by_position(trial.first)
        )[:, :j]
        found = (off > trial.same).nonzero()
        if len(found):
            i = int(found[:, 1].min())
            worst = i, j, float(off.amax()), changed
    if worst is None:
        return Property("causal", True)
    i, j, size, changed = worst
    said = f"output {i} changes by {size:.2g} with input {j}, which comes later"
    where = first_module(subject, changed, earlier_than(j, t, trial.same))
    return broken("causal", said, "leak-later", where)


def padding_ignored(trial: Trial) -> Property:
    """What stands in padding never matters, NaN included."""
    subject = trial.subject
    known = ("attend", "ignore", "lengths")
    masks = {n: m for n, m in subject.meanings.items() if m in known and n in subject.inputs}
    for name, meaning in masks.items():
        real = real_keys(subject.inputs[name], meaning, subject)
        if real is None or bool(real.all()):
            continue
        for target in padded_by(subject, name):
            x = subject.inputs[target]
            axis = subject.time(target)
            if x.shape[axis] != real.shape[1]:
                continue
            changed = x.clone()
            view = changed.movedim(axis, 1)
            view[~real] = another(view)[~real]
            off = trial.by_position(difference(trial.output(**{target: changed}), trial.first))
            if target in subject.of("x", "ids") and off.shape[1] == real.shape[1]:
                off = off.masked_fill(~real[..., None], 0.0)  # outputs at padding are nobody's
            off = off[real.any(1)] if off.shape[0] == real.shape[0] else off
            if float(off.amax()) > trial.same:
                said = f"outputs change by {float(off.amax()):.2g} with the padding of {name}"
                return broken("padding", said, "padding-attended")
    return Property("padding", True if masks else None, "" if masks else "no padding mask")


def empty_rows(trial: Trial) -> Property:
    """A query that may attend to nothing gives zero, or at least no NaN."""
    subject = trial.subject
    for name, meaning in subject.meanings.items():
        x = subject.inputs.get(name)
        if meaning not in ("attend", "ignore") or not isinstance(x, Tensor):
            continue
        empty = x.clone()
        empty[0] = 1 if meaning == "ignore" else 0
        try:
            y = trial.output(**{name: empty})
        except Exception:
            continue
        if bool(y[0].isnan().any()):
            said = f"a row without keys ({name}) gives NaN"
            found = Finding("nan-without-keys", said, "hazard")
            return Property("empty rows", False, said, (found,))
        v = next((subject.inputs[n] for n in subject.of("v")), None)
        if v is not None and y.shape[:-2] == v.shape[:-2] and y.shape[-1] == v.shape[-1]:
            mean = v[0].mean(-2, keepdim=True).expand_as(y[0])
            if part(y[0], mean) <= 10 * trial.same:
                said = f"a row without keys ({name}) gives the mean of all values"
                found = Finding("mean-without-keys", said, "hazard")
                return Property("empty rows", False, said, (found,))
    return Property("empty rows", True)


def strides(trial: Trial) -> Property:
    """The layout of inputs in memory does not matter."""
    changed = {}
    for n in trial.subject.of("x", "q", "k", "v", "context"):
        x = trial.subject.inputs[n]
        wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
        wide[..., ::2] = x
        changed[n] = wide[..., ::2]
    if not changed:
        return Property("strides", None)
    try:
        off = part(trial.output(**changed), trial.first)
    except RuntimeError as error:
        said = f"inputs that are not contiguous raise: {error}".split("\n")[0]
        return Property("strides", True, said)
    if off > trial.same:
        return broken(
            "strides", f"inputs with other strides change the output by {off:.2g}", "strides"
        )
    return Property("strides", True)


def gradient_mode(trial: Trial) -> Property:
    """With and without gradients, other kernels run and give the same."""
    names = trial.subject.of("x", "q", "k", "v", "context")
    leaves = {
        n: trial.subject.inputs[n].clone().requires_grad_()
        for n in names
        if trial.subject.inputs[n].is_floating_point()
    }
    with torch.enable_grad():
        off = part(trial.read(trial.output(**leaves).detach()), trial.first)
    if off > 10 * trial.same:
        said = f"with gradients the output differs by {off:.2g}: two paths compute different things"
        return broken("gradient mode", said, "paths-differ")
    return Property("gradient mode", True)


ALL: tuple[Callable[[Trial], Property], ...] = (
    inputs_unchanged,
    deterministic,
    finite,
    rows_of_the_batch,
    nothing_later,
    nothing_later_enters,
    padding_ignored,
    empty_rows,
    gradient_mode,
    strides,
    gradients,
    gradients_of_biases,
    inputs_used,
    projections_named,
    queries_matter,
    left_padding,
    nothing_later_in_training,
    dropout_placed,
    not_rounded,
)


def tried(trial: Trial) -> Iterator[Property]:
    """All properties in order; without determinism the others cannot be told."""
    for one in told("property", ALL):
        try:
            with torch.no_grad(), trial.subject.running():
                found = one(trial)
        except NotToldError:
            name = one.__name__.replace("_", " ")
            found = Property(name, None, "which output belongs to which position is not known")
        except Exception as error:  # whatever the code does with a change of its inputs
            name = one.__name__.replace("_", " ")
            found = Property(name, None, f"raises {raised(error)}")
        yield found
        if found.name == "deterministic" and found.holds is not True:
            return


__all__ = ["ALL", "Property", "Trial", "difference", "part", "tried"]
