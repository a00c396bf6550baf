"""What must hold of any attention, tried from outside: each property with its counterexample.

A property is tried on the example and on changes of it: other numbers at some positions, more
padding, one row of the batch alone, a prefix of the text, another dtype. It holds, is broken, or
does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Subject, another, changed_at, changed_rows, raised
from intently.checker.properties import derivatives, entering, wiring
from intently.checker.properties.trial import (
    NotToldError,
    Outcome,
    Property,
    Trial,
    difference,
    leaves,
    meant,
    named,
    padded_by,
    part,
    real_keys,
)
from intently.checker.report.finding import Finding, told

CHANCE = ("randn", "randint", "randperm", "normal", "multinomial")
"""Random numbers that no dropout draws."""

# --- the properties -----------------------------------------------------------------------------


def finite(trial: Trial) -> Outcome:
    """The example gives no NaN."""
    subject, nan = trial.subject, trial.first.isnan()
    if not bool(nan.any()):
        return True
    if any(bool(subject.inputs[n].isnan().any()) for n in subject.contents):
        return "the inputs hold NaN"
    if any(x.findings for x in trial.whole.attentions):
        return "the example gives NaN"
    masks = [x.intent.allowed for x in trial.whole.attentions if x.intent is not None]
    if not all(bool(x.any(-1).all()) for x in masks):
        return Finding("nan-without-keys", "queries that no key is left for give NaN")
    for name, x in meant(subject, "attend", "ignore"):
        real = (x != 0) == (subject.meanings[name] == "attend")
        if not bool(real.any(-1).all()):
            continue
        other = trial.output(**{name: (x == 0).to(x.dtype)}).isnan()
        if other.shape == nan.shape and not bool((other & nan).any()):
            said = f"rows with keys ({name}) give NaN, and not with the mask turned round"
            return Finding("mask-inverted", said)
    if bool(nan.all()) and not subject.of("mask"):
        return Finding("nan-with-keys", "every output is NaN")
    return "the example gives NaN"


def deterministic(trial: Trial) -> Outcome:
    """Equal calls give equal outputs, with other calls between them."""
    subject, first, same = trial.subject, trial.first, trial.same
    again = [trial.output() for _ in range(3)]
    differ = any(part(x, first) > same for x in again)
    steady = part(again[1], again[2]) <= same
    opening = subject.opening
    if opening is None or opening.dtype is not first.dtype or part(again[0], first) > same:
        opening = first
    if (differ and steady) or part(opening, first) > 1e3 * same:
        said = "the second call of the same input gives another output: state is left behind"
        meant_so = callable(getattr(subject.module, "reset", None))
        return Finding("state-left", said, "hazard" if meant_so else "mistake")
    if differ and subject.module is not None and subject.module.training:
        return "two equal calls differ; the module is in training mode"
    if differ:
        said = "two equal calls differ in evaluation mode: dropout, or another random number"
        drawn = trial.whole.run.results if trial.whole.run is not None else ()
        meant_so = any(x.name.startswith(CHANCE) for x in drawn)
        return Finding("dropout-in-eval", said, "hazard" if meant_so else "mistake")
    try:
        trial.output(**{n: another(subject.inputs[n]) for n in subject.contents})
    except Exception:
        return True
    off = part(trial.output(), first)
    said = f"after a call with other inputs, the output differs by {off:.2g}: state is left behind"
    return Finding("state-left", said) if off > same else True


def inputs_unchanged(trial: Trial) -> Outcome:
    """A call leaves its inputs as they were."""
    changes = trial.subject.changes
    said = f"the call changes {' and '.join(changes)} in place"
    return Finding("input-changed", said) if changes else True


def rows_of_the_batch(trial: Trial) -> Outcome:
    """A row of the batch depends on its own inputs only, and is the same alone."""
    subject, b = trial.subject, trial.subject.batch
    if b < 2:
        return "one row"
    crossed = entering.across_the_batch(trial)
    if crossed is not None:
        return crossed
    plain = trial.by_position(trial.first)
    if len(plain) != b:
        return "its output has no rows of the batch"
    rows = {n: x for n in subject.contents if (x := subject.inputs[n]).ndim and len(x) == b}
    for other, row in ((1, 0), (0, 1)):
        changed = {n: changed_rows(x, (other,)) for n, x in rows.items()}
        off = float(difference(trial.by_position(trial.output(**changed))[row], plain[row]).amax())
        if off > trial.same and not _same_alone(trial, row):  # else ids of a kind were changed
            said = f"batch row {row} changes by {off:.2g} with the content of row {other}"
            where = _first_module(trial, changed, 0, b, row)
            return Finding("batch-mixed", said, where=where)
    alone = {n: _row(x, b) for n, x in subject.inputs.items()}
    try:
        one = trial.output(**alone)
    except Exception as error:
        return Property("batch", True, f"a batch of one raises {raised(error)}")
    first = trial.whole.rows is not None and trial.whole.rows.batch == 0
    if one.shape != trial.first[:1].shape or not first:
        return Property("batch", True, f"a batch of one gives {tuple(one.shape)}")
    off = part(one, trial.first[:1])
    if off > trial.same:  # tables by head, where there are as many heads as rows
        tables = {n: subject.inputs[n] for n in subject.of("setting")}
        with suppress(Exception):
            off = min(off, part(trial.output(**alone | tables), trial.first[:1]))
    said = f"row 0 alone differs by {off:.2g} from row 0 in a batch"
    return Finding("batch-mixed", said) if off > trial.same else True


def _same_alone(trial: Trial, row: int) -> bool:
    """Whether a row of the batch gives the same alone."""
    subject, rows = trial.subject, trial.whole.rows
    if not subject.of("ids") or rows is None or rows.batch != 0:
        return False
    try:
        one = trial.output(**{n: _row(x, subject.batch, row) for n, x in subject.inputs.items()})
    except Exception:  # code that takes no other batch
        return False
    return part(one, trial.first[row : row + 1]) <= trial.same


def _row(x: Any, batch: int, row: int = 0) -> Any:
    """One row of the batch of an input; what has no rows as it is."""
    if isinstance(x, Tensor):
        return x[row : row + 1] if x.ndim and len(x) == batch else x
    if isinstance(x, tuple) and all(isinstance(y, Tensor) for y in x):
        return tuple(_row(y, batch, row) for y in x)
    return x


def nothing_later(trial: Trial) -> Outcome:
    """Under a causal mask, an output does not change with later inputs."""
    if not trial.causal:
        return "no causal mask is intended"
    subject, plain = trial.subject, trial.by_position(trial.first)
    t = plain.shape[1]
    names = subject.of("k", "v") if subject.of("q") else [subject.main]
    axes = {n: subject.time(n) for n in names}
    later = {n: subject.inputs[n].shape[axis] - t for n, axis in axes.items()}
    sizes = {x.attention.weights.shape[3] for x in trial.whole.attentions if x.side == "self"}
    other = {subject.inputs[n].shape[axis] for n, axis in axes.items()} - sizes
    if min(later.values()) < 0 or (other and subject.inputs[names[0]].ndim == 2):
        return "its inputs have other positions than its output"
    padding = trial.unread(*plain.shape[:2])
    for j in range(1, t):
        changed = {n: changed_at(subject.inputs[n], axes[n], later[n] + j) for n in names}
        off = difference(trial.by_position(trial.output(**changed)), plain)
        off = off.masked_fill(padding[..., None], 0.0)[:, :j]
        late = (off > trial.same).nonzero()
        if len(late):
            said = f"output {int(late[:, 1].min())} changes by {float(off.amax()):.2g}"
            said += f" with input {j}, which comes later"
            where = _first_module(trial, changed, 1, t, slice(j))
            return Finding("leak-later", said, where=where)
    return True


def padding_ignored(trial: Trial) -> Outcome:
    """What stands in padding never matters, NaN included."""
    subject = trial.subject
    masks = meant(subject, "attend", "ignore", "lengths")
    most = max((x.attention.weights.shape[-1] for x in trial.whole.attentions), default=0)
    for name, mask in masks:
        real = real_keys(subject, name, mask)
        if real is None or bool(real.all()) or real.shape[1] > most:  # of what was made shorter
            continue
        if masks[1:] and part(trial.output(**{name: mask.flip(-1)}), trial.first) <= trial.same:
            continue  # it has no effect, and another one may be meant
        for target in padded_by(subject, name):
            changed, axis = subject.inputs[target].clone(), subject.time(target)
            if changed.shape[axis] != real.shape[1]:
                continue
            view = changed.movedim(axis, 1)
            view[~real] = another(view)[~real]
            off = difference(trial.output(**{target: changed}), trial.first)
            off = off.flatten(2) if off.shape[:2] == real.shape else trial.by_position(off)
            if off.shape[:2] == real.shape:
                off = off.masked_fill(~real[..., None], 0.0)  # outputs at padding are nobody's
            off = off[real.any(1)] if off.shape[0] == real.shape[0] else off
            if float(off.amax()) > trial.same:
                said = f"outputs change by {float(off.amax()):.2g} with the padding of {name}"
                return Finding("padding-attended", said)
    return True if masks else "no padding mask"


def empty_rows(trial: Trial) -> Outcome:
    """A query that may attend to nothing gives zero, or at least no NaN."""
    subject = trial.subject
    for name, x in meant(subject, "attend", "ignore"):
        empty = x.clone()
        empty[0] = 1 if subject.meanings[name] == "ignore" else 0
        try:
            y = trial.output(**{name: empty})
        except Exception:
            continue
        row = f"a row without keys ({name}) gives"
        if bool(y[0].isnan().any()):
            return Finding("nan-without-keys", f"{row} NaN", "hazard")
        for v in (subject.inputs[n] for n in subject.of("v")):
            if y.shape[:-2] == v.shape[:-2] and y.shape[-1] == v.shape[-1]:
                mean = v[0].mean(-2, keepdim=True).expand_as(y[0])
                if part(y[0], mean) <= 10 * trial.same:
                    return Finding("mean-without-keys", f"{row} the mean of all values", "hazard")
    return True


def strides(trial: Trial) -> Outcome:
    """The layout of inputs in memory does not matter."""
    names = trial.subject.of("x", "q", "k", "v", "context")
    wide = {n: trial.subject.inputs[n].repeat_interleave(2, -1)[..., ::2] for n in names}
    if not wide:
        return None
    try:
        off = part(trial.output(**wide), trial.first)
    except RuntimeError as error:
        said = f"inputs that are not contiguous raise: {error}".split("\n")[0]
        return Property("strides", True, said)
    said = f"inputs with other strides change the output by {off:.2g}"
    return Finding("strides", said) if off > trial.same else True


def gradient_mode(trial: Trial) -> Outcome:
    """With and without gradients, other kernels run and give the same."""
    with torch.enable_grad():
        off = part(trial.read(trial.output(**leaves(trial.subject)).detach()), trial.first)
    said = f"with gradients the output differs by {off:.2g}: two paths compute different things"
    return Finding("paths-differ", said) if off > 10 * trial.same else True


# --- the first module in which a property breaks ------------------------------------------------


def _first_module(
    trial: Trial, changed: Mapping[str, Any], axis: int, size: int, at: int | slice
) -> str:
    """The innermost module that is the first to break a property, "" if none can be told.

    The subject runs twice, with its inputs as they are and ``changed``. The outputs of modules, of
    this size along an axis, are compared there ``at`` in the order in which they are made.
    """
    module = trial.subject.module
    if module is None:
        return ""
    try:
        one, two = (_outputs(trial.subject, module, x) for x in ({}, changed))
    except Exception:  # code that refuses to run so
        return ""
    if [n for n, _ in one] != [n for n, _ in two]:
        return ""
    for (name, a), (_, b) in zip(one, two):
        if a.shape != b.shape or a.shape[axis] != size or not a.numel():
            continue
        a, b = a.movedim(axis, 0)[at], b.movedim(axis, 0)[at]
        most = b.abs().nan_to_num(0.0).amax().clamp(min=1e-12)
        if float(((a - b).abs() / most).nan_to_num(0.0).amax()) > trial.same:
            return name or type(module).__name__
    return ""


def _outputs(
    subject: Subject, module: nn.Module, changed: Mapping[str, Any]
) -> list[tuple[str, Tensor]]:
    """What each module makes in a run, in order."""
    made: list[tuple[str, Tensor]] = []

    def keep(name: str, *call: Any) -> None:
        out = call[-1] if isinstance(call[-1], tuple) else call[-1:]
        first = next((x for x in out if isinstance(x, Tensor)), None)
        if first is not None and first.is_floating_point() and first.ndim > 1:
            made.append((name, first.detach().clone()))

    hooks = [m.register_forward_hook(partial(keep, n)) for n, m in module.named_modules()]
    try:
        with torch.no_grad():
            subject.output(**changed)
    finally:
        for hook in hooks:
            hook.remove()
    return made


# --- all of them --------------------------------------------------------------------------------

ALL: dict[str, Callable[[Trial], Outcome]] = {
    "inputs unchanged": inputs_unchanged,
    "deterministic": deterministic,
    "finite": finite,
    "batch": rows_of_the_batch,
    "causal": nothing_later,
    "causal before the attention": entering.nothing_later_enters,
    "padding": padding_ignored,
    "empty rows": empty_rows,
    "gradient mode": gradient_mode,
    "strides": strides,
    "gradients": derivatives.gradients,
    "gradients of biases": derivatives.gradients_of_biases,
    "inputs used": wiring.inputs_used,
    "projections": entering.projections_named,
    "queries matter": entering.queries_matter,
    "padding on the left": wiring.left_padding,
    "causal in training": wiring.nothing_later_in_training,
    "dropout": wiring.dropout_placed,
    "dtype": wiring.not_rounded,
}


def tried(trial: Trial) -> Iterator[Property]:
    """All properties in order; without determinism the others cannot be told."""
    for name, one in told("property", list(ALL.items())):
        try:
            with torch.no_grad(), trial.subject.running():
                found = named(name, one(trial))
        except NotToldError:
            why = "which output belongs to which position is not known"
            found = Property(one.__name__.replace("_", " "), None, why)
        except Exception as error:  # whatever the code does with a change of its inputs
            found = Property(one.__name__.replace("_", " "), None, f"raises {raised(error)}")
        yield found
        if name == "deterministic" and found.holds is not True:
            return
