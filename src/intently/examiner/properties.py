"""What must hold of any attention, tried from outside: each property with its counterexample.

A property is tried on the example and on changes of it: other numbers at some positions, more
padding, one row of the batch alone, a prefix of the text, another dtype. It holds, is broken, or
does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intently.examiner.axes import axis_of_time, first_row, nobodys, padded_by, real_keys
from intently.examiner.changes import another, changed_at, changed_rows
from intently.examiner.finding import Finding
from intently.examiner.precision import EXACT
from intently.examiner.subject import Subject, output_of
from intently.examiner.telling import told


@dataclass(frozen=True)
class Property:
    """A property by name, whether it holds (None: it does not apply), and what was seen."""

    name: str
    holds: bool | None
    said: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Trial:
    """What properties are tried with: the subject, what it should do, and the first output."""

    subject: Subject
    causal: bool
    first: Tensor
    same: float = EXACT.same
    settings: dict[str, Any] = field(default_factory=dict)

    def output(self, **changed: Any) -> Tensor:
        """The output with some inputs changed."""
        return self.subject.output(**{**self.settings, **changed})

    def rows(self, y: Tensor) -> Tensor:
        """An output as (b, t, n)."""
        return by_position(y)


def by_position(y: Tensor) -> Tensor:
    """An output (b, t, n), (b, h, t, e) or an image (b, c, height, width) as (b, t, n)."""
    if y.ndim == 4:
        return y.transpose(1, 2).flatten(2)
    if y.ndim == 2:
        return y[None]
    return y


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Where two outputs differ, relative to the largest entry; NaN differs from all but NaN."""
    size = b.detach().abs().nan_to_num(0.0).amax().clamp(min=1e-12)
    off = ((a - b).abs() / size).detach()
    off = torch.where(a.isnan() & b.isnan(), torch.zeros_like(off), off)
    return off.nan_to_num(torch.inf)


def part(a: Tensor, b: Tensor) -> float:
    """The largest relative difference of two outputs; infinite if their shapes differ."""
    return float(difference(a, b).amax()) if a.shape == b.shape and a.numel() else torch.inf


# --- the properties -----------------------------------------------------------------------------


def deterministic(trial: Trial) -> Property:
    """Equal calls give equal outputs, with other calls between them."""
    subject = trial.subject
    again = [trial.output() for _ in range(3)]
    if any(part(x, trial.first) > trial.same for x in again):
        steady = part(again[1], again[2]) <= trial.same
        if steady:
            said = "the second call of the same input gives another output: state is left behind"
            return _broken("deterministic", said, "state-left")
        training = subject.module is not None and subject.module.training
        said = "two equal calls differ in evaluation mode: dropout, or another random number"
        if training:
            said = "two equal calls differ; the module is in training mode"
            return Property("deterministic", None, said)
        return _broken("deterministic", said, "dropout-in-eval")
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
        return _broken("deterministic", said, "state-left")
    return Property("deterministic", True)


def inputs_unchanged(trial: Trial) -> Property:
    """A call leaves its inputs as they were."""
    held = {n: x.clone() for n, x in trial.subject.inputs.items() if isinstance(x, Tensor)}
    trial.output()
    for name, before in held.items():
        now = trial.subject.inputs[name]
        if not torch.equal(now.nan_to_num(), before.nan_to_num()):
            now.copy_(before)
            return _broken("inputs unchanged", f"the call changes {name} in place", "input-changed")
    return Property("inputs unchanged", True)


def rows_of_the_batch(trial: Trial) -> Property:
    """A row of the batch depends on its own inputs only, and is the same alone."""
    subject = trial.subject
    if subject.batch < 2:
        return Property("batch", None, "one row")
    names = subject.contents
    changed = {n: changed_rows(subject.inputs[n], (1,)) for n in names}
    off = difference(trial.output(**changed)[0], trial.first[0])
    if float(off.amax()) > trial.same:
        said = f"batch row 0 changes by {float(off.amax()):.2g} with the content of row 1"
        return _broken("batch", said, "batch-mixed")
    alone = {n: first_row(x, subject.batch) for n, x in subject.inputs.items()}
    try:
        one = trial.output(**alone)
    except Exception as error:
        said = f"a batch of one raises {type(error).__name__}: {error}".split("\n")[0]
        return Property("batch", True, said)
    if one.shape != trial.first[:1].shape:
        return Property("batch", True, f"a batch of one gives {tuple(one.shape)}")
    off = part(one, trial.first[:1])
    if off > trial.same:
        return _broken(
            "batch", f"row 0 alone differs by {off:.2g} from row 0 in a batch", "batch-mixed"
        )
    return Property("batch", True)


def nothing_later(trial: Trial) -> Property:
    """Under a causal mask, an output does not change with later inputs."""
    if not trial.causal:
        return Property("causal", None, "no causal mask is intended")
    subject = trial.subject
    if trial.first.ndim == 2 and subject.inputs[subject.main].ndim + subject.is_tokens > 2:
        return Property("causal", None, "its outputs have no positions")
    names = [n for n in subject.of("x", "ids", "k", "v") if n != subject.main]
    names = [subject.main] * (not subject.of("q")) + names
    t = by_position(trial.first).shape[1]
    worst: tuple[int, int, float] | None = None
    for j in range(t - 1, 0, -1):
        changed = {}
        for n in names:
            x = subject.inputs[n]
            axis = axis_of_time(x, subject.roles[n])
            changed[n] = changed_at(x, axis, x.shape[axis] - t + j)
        off = difference(by_position(trial.output(**changed)), by_position(trial.first))[:, :j]
        found = (off > trial.same).nonzero()
        if len(found):
            i = int(found[:, 1].min())
            worst = i, j, float(off.amax())
    if worst is None:
        return Property("causal", True)
    i, j, size = worst
    said = f"output {i} changes by {size:.2g} with input {j}, which comes later"
    return _broken("causal", said, "leak-later")


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
            axis = axis_of_time(x, subject.roles[target])
            if x.shape[axis] != real.shape[1]:
                continue
            changed = x.clone()
            view = changed.movedim(axis, 1)
            view[~real] = another(view)[~real]
            off = difference(trial.output(**{target: changed}), trial.first)
            off = by_position(off)
            if target in subject.of("x", "ids") and off.shape[1] == real.shape[1]:
                off = off.masked_fill(~real[..., None], 0.0)  # outputs at padding are nobody's
            off = off[real.any(1)] if off.shape[0] == real.shape[0] else off
            if float(off.amax()) > trial.same:
                said = f"outputs change by {float(off.amax()):.2g} with the padding of {name}"
                return _broken("padding", said, "padding-attended")
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
            return Property(
                "empty rows", False, said, (Finding("nan-without-keys", said, "hazard"),)
            )
    return Property("empty rows", True)


def gradients(trial: Trial) -> Property:
    """Gradients are the derivatives of the outputs, for every input and parameter."""
    subject = trial.subject
    draw = torch.Generator().manual_seed(3)
    module = subject.module
    tensors: dict[str, Tensor] = {
        n: subject.inputs[n] for n in subject.contents if subject.inputs[n].is_floating_point()
    }
    if module is not None:
        tensors |= {n: p for n, p in module.named_parameters() if p.requires_grad}
    step, little = {torch.double: (1e-5, 1e-4), torch.float: (1e-2, 0.1)}.get(
        subject.precision.dtype, (0.0, 0.0)
    )
    if not tensors or not step:
        return Property("gradients", None, "too rough to tell")
    leaves = {
        n: x.detach().clone().requires_grad_() for n, x in tensors.items() if n in subject.inputs
    }
    with torch.enable_grad(), subject.running():
        y = trial.output(**leaves)
        if not y.requires_grad and not subject.traced().cores:
            return Property("gradients", None, "computed outside PyTorch")
        if not y.requires_grad:
            said = "no gradient reaches any input: it runs without gradients"
            hazard = Finding("gradient-cut", said, "hazard")
            return Property("gradients", None, said, (hazard,))
        out = torch.randn(y.shape, generator=draw, dtype=y.dtype)
        held = [leaves.get(n, x) for n, x in tensors.items()]
        got = torch.autograd.grad((y.nan_to_num() * out).sum(), held, allow_unused=True)
    ways = {n: torch.randn(x.shape, generator=draw, dtype=x.dtype) for n, x in tensors.items()}
    mine = {n: 0.0 if g is None else float((g * ways[n]).sum()) for n, g in zip(tensors, got)}
    every = _numeric(trial, tensors, ways, out, step)
    if abs(every - sum(mine.values())) <= little / 100 * sum(map(abs, mine.values())):
        return Property("gradients", True)
    for name, x in tensors.items():
        numeric = _numeric(trial, {name: x}, ways, out, step)
        size = max(abs(numeric), abs(mine[name]))
        if size < little / 1000 or abs(numeric - mine[name]) <= little * (size + 1e-3):
            continue
        finer = _numeric(trial, {name: x}, ways, out, step / 4)
        settled = 4 if subject.precision is EXACT else 50
        if abs(finer - numeric) > abs(numeric - mine[name]) / settled:
            continue  # the difference quotient itself is not settled
        if abs(mine[name]) < 1e-9:
            said = f"no gradient reaches {name}, though the output depends on it"
            return _broken("gradients", said, "gradient-cut")
        times = mine[name] / numeric if numeric else torch.inf
        said = f"the gradient of {name} is {times:.3g} times the derivative"
        return _broken("gradients", said, "gradient-scaled")
    return Property("gradients", True)


def _numeric(
    trial: Trial,
    tensors: Mapping[str, Tensor],
    ways: Mapping[str, Tensor],
    out: Tensor,
    step: float,
) -> float:
    """The derivative along a direction, by central differences."""
    inputs = trial.subject.inputs

    def at(size: float) -> float:
        moved = {n: x.detach() + size * ways[n] for n, x in tensors.items()}
        given = {n: x.requires_grad_() for n, x in moved.items() if n in inputs}
        kept = {n: x.detach().clone() for n, x in tensors.items() if n not in inputs}
        for n in kept:
            tensors[n].data.copy_(moved[n])
        try:
            with torch.enable_grad():  # the path whose gradient it is
                y = trial.output(**given)
        finally:
            for n, x in kept.items():
                tensors[n].data.copy_(x)
        return float((y.detach().nan_to_num() * out).sum())

    return (at(step) - at(-step)) / (2 * step)


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
        return _broken(
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
        y = trial.output(**leaves).detach()
    apart = difference(by_position(y), by_position(trial.first))
    off = float(apart.masked_fill(nobodys(trial.subject, apart), 0.0).amax())
    if off > 10 * trial.same:
        said = f"with gradients the output differs by {off:.2g}: two paths compute different things"
        return _broken("gradient mode", said, "paths-differ")
    return Property("gradient mode", True)


ALL: tuple[Callable[[Trial], Property], ...] = (
    inputs_unchanged,
    deterministic,
    rows_of_the_batch,
    nothing_later,
    padding_ignored,
    empty_rows,
    gradient_mode,
    strides,
    gradients,
)


def tried(trial: Trial) -> Iterator[Property]:
    """All properties in order; without determinism the others cannot be told."""
    for one in told("property", ALL):
        try:
            with torch.no_grad():
                found = one(trial)
        except Exception as error:  # whatever the code does with a change of its inputs
            name = one.__name__.replace("_", " ")
            found = Property(name, None, f"raises {type(error).__name__}: {error}".split("\n")[0])
        yield found
        if found.name == "deterministic" and found.holds is not True:
            return


# --- changes ------------------------------------------------------------------------------------


def _broken(name: str, said: str, finding: str) -> Property:
    return Property(name, False, said, (Finding(finding, said),))


__all__ = ["ALL", "Property", "Trial", "by_position", "difference", "output_of", "part", "tried"]
