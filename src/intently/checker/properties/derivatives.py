"""Gradients beside the derivatives of the outputs, by central differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor, nn

from intently.checker.calling.modes import Detaching
from intently.checker.calling.subject import Subject
from intently.checker.precision import EXACT
from intently.checker.properties.trial import Outcome, Property, Trial, leaves, meant
from intently.checker.report.finding import Finding, Kind

Named = Mapping[str, Tensor]
JUMP = 1e-6
"""How far a value may be from the mean of those beside it, where a function does not jump."""
HUGE = 1e6
"""Outputs beside whose rounding nothing shows."""
MOST = 8
"""Tensors at most whose gradients are looked at one by one."""


def gradients(trial: Trial) -> Outcome:
    """Gradients are the derivatives of the outputs, for every input and parameter."""
    subject, inputs = trial.subject, leaves(trial.subject)
    inputs = {n: x for n, x in inputs.items() if not bool(((x == 0) | (x == 1)).all())}  # no masks
    tensors = inputs | _parameters(subject.module)
    step, little = {torch.double: (1e-5, 1e-4), torch.float: (1e-2, 0.1)}.get(
        subject.precision.dtype, (0.0, 0.0)
    )
    if bool(trial.first.isnan().any()):
        return "the example gives NaN"
    if not tensors or not step:
        return "too rough to tell"
    draw = torch.Generator().manual_seed(3)
    with torch.enable_grad(), subject.running(), Detaching() as detaching:
        y = trial.output(**inputs)
        if not y.requires_grad and (subject.foreign or not trial.whole.attentions):
            return "computed outside PyTorch"
        if not y.requires_grad:
            said = "no gradient reaches any input: it runs without gradients"
            return Property("gradients", None, said, (Finding("gradient-cut", said, "hazard"),))
        run = trial.whole.run
        if run is not None and not run.gradients and len(tensors) > len(inputs):
            return "a part runs without gradients"
        out = torch.randn(y.shape, generator=draw, dtype=y.dtype)
        out = out.masked_fill(y.detach().abs() > HUGE, 0.0)  # what a mask of scores leaves
        got = _along(y.nan_to_num(), out, tensors)
    ways = _ways(tensors, draw)
    mine = {n: float((g * ways[n]).sum()) for n, g in got.items()}

    def apart(names: list[str]) -> tuple[float, float]:
        """The derivative along some, and how far it is from their gradients; 0 for what is near."""
        made = _numeric(trial, {n: tensors[n] for n in names}, ways, out, step)
        off = abs(made - sum(mine[n] for n in names))
        return made, off if off > little / 100 * sum(abs(mine[n]) for n in names) else 0.0

    def kind(name: str, part: bool = False) -> Kind:  # cut on purpose, where some of it is left
        outside = name in inputs and len(tensors) > len(inputs)
        return "hazard" if outside or (part and detaching.heard) else "mistake"

    def suspects(names: list[str]) -> Iterator[str]:
        if not apart(names)[1]:
            return
        half = len(names) // 2
        for some in (names[:half], names[half:]) if half else ():
            yield from suspects(some)
        yield from names[half:] if not half else ()

    every, off = apart([*tensors])
    if math.isnan(every):
        return "the output jumps"
    if not off:
        return True
    if abs(_numeric(trial, tensors, ways, out, step / 4) - every) > off / 4:
        return "too rough to tell"  # the difference quotient is not settled
    wrong: dict[str, float] = {}
    total = max(abs(every), *map(abs, mine.values()), little)
    for name in islice(suspects([*tensors]), MOST):
        x, numeric = tensors[name], apart([name])[0]
        size, off = max(abs(numeric), abs(mine[name])), abs(numeric - mine[name])
        if size < 1e-3 * total or off <= max(little, 0.03) * (size + 1e-3):
            continue
        finer = _numeric(trial, {name: x}, ways, out, step / 4)
        if abs(finer - numeric) > off / (4 if subject.precision is EXACT else 50):
            continue  # the difference quotient itself is not settled
        wrong[name] = mine[name] / numeric if numeric else torch.inf
        if abs(mine[name]) < 1e-9:
            said = f"no gradient reaches {name}, though the output depends on it"
            return Finding("gradient-cut", said, kind(name))
    for name in wrong:
        idle = (got[name] == 0).all(-1, keepdim=True)
        if got[name].ndim != 2 or not 0 < int(idle.sum()) < len(idle):
            continue
        if (
            abs(_numeric(trial, {name: tensors[name]}, {name: ways[name] * idle}, out, step))
            > little
        ):
            said = f"no gradient reaches some rows of {name}, though the output depends on them"
            return Finding("gradient-cut", said)
    other = _ways(tensors, draw)
    for name, times in wrong.items():
        numeric = _numeric(trial, {name: tensors[name]}, other, out, step)
        if abs(float((got[name] * other[name]).sum()) - times * numeric) <= 1e-2 * abs(numeric):
            said = f"the gradient of {name} is {times:.3g} times the derivative"
            deep = len(trial.whole.attentions) > 2  # where steps of the difference quotient add up
            return Finding("gradient-scaled", said, "hazard" if deep else kind(name, part=True))
    if not wrong:
        return True
    name = next(iter(wrong))
    return Finding(
        "gradient-cut", f"a part of the gradient of {name} is missing", kind(name, part=True)
    )


def gradients_of_biases(trial: Trial) -> Outcome:
    """A gradient reaches what is added to the scores, as it must where that is learned."""
    added = [(n, x) for n, x in meant(trial.subject, "add", "bias") if x.dtype == torch.double]
    if not added or bool(trial.first.isnan().any()):
        return None
    draw = torch.Generator().manual_seed(4)
    out = torch.randn(trial.first.shape, generator=draw, dtype=trial.first.dtype)
    for n, x in added:
        ways = {n: _ways({n: x}, draw)[n].masked_fill(x < -1e3, 0.0)}
        leaf = {n: x.detach().clone().requires_grad_()}
        with torch.enable_grad():
            y = trial.output(**leaf)
            reached = y.requires_grad and bool((_along(y.nan_to_num(), out, leaf)[n] != 0).any())
        if not reached and abs(_numeric(trial, {n: x}, ways, out, 1e-5)) >= 1e-6:
            said = f"no gradient reaches {n}: right for a mask, wrong for a bias that is learned"
            return Finding("gradient-cut", said, "hazard")
    return True


def gradients_apart(path: Subject, trial: Trial) -> Finding | None:
    """How the gradients of a path differ from those of the plain call, whose output it gives."""
    little = {torch.double: 1e-6, torch.float: 1e-2}.get(path.precision.dtype)
    if little is None or bool(trial.first.isnan().any()):
        return None
    try:
        mine, theirs = (_gradients_of(x, trial) for x in (path, trial.subject))
    except Exception:  # whatever the code does with gradients
        return None
    if not mine or mine.keys() != theirs.keys():
        return None
    size = max(float(g.abs().max()) for g in theirs.values())
    missing = None
    for name, g in theirs.items():
        x = mine[name]
        if float((x - g).abs().max()) <= little * (float(g.abs().max()) + 1e-3 * size):
            continue
        factor = float((x * g).sum() / (g * g).sum().clamp(min=1e-30))
        if abs(factor) < little:
            said = f"no gradient reaches {name}, though the output depends on it"
            return Finding("gradient-cut", said)
        if float((x - factor * g).abs().max()) <= little * float(x.abs().max()):
            said = f"the gradient of {name} is {factor:.3g} times that of the plain call"
            return Finding("gradient-scaled", said)
        said = f"a part of the gradient of {name} is missing"
        missing = missing or Finding("gradient-cut", said)
    return missing


def _gradients_of(subject: Subject, trial: Trial) -> dict[str, Tensor]:
    """The gradients of the output along one direction by name; {} if there are none."""
    inputs = leaves(subject)
    held = inputs
    if isinstance(subject.owner, nn.Module):
        held = held | {n: p for n, p in subject.owner.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        y = trial.read(subject.output(**inputs))
        if not held or not y.requires_grad:
            return {}
        draw = torch.Generator().manual_seed(3)
        return _along(y, torch.randn(y.shape, generator=draw, dtype=y.dtype), held)


def _parameters(module: nn.Module | None) -> dict[str, Tensor]:
    """The parameters that have gradients everywhere: no embedding with a row for padding."""
    if module is None:
        return {}
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    padded = {id(m.weight) for m in tables if m.padding_idx is not None}
    held = module.named_parameters()
    return {n: p for n, p in held if p.requires_grad and id(p) not in padded}


def _along(y: Tensor, out: Tensor, tensors: Named) -> dict[str, Tensor]:
    """The gradients of an output along a direction, zeros where there are none."""
    held = list(tensors.values())
    got = torch.autograd.grad((y * out).sum(), held, allow_unused=True, materialize_grads=True)
    return dict(zip(tensors, got))


def _ways(tensors: Named, draw: torch.Generator) -> dict[str, Tensor]:
    """A direction for each tensor."""
    return {n: torch.randn(x.shape, generator=draw, dtype=x.dtype) for n, x in tensors.items()}


def _numeric(trial: Trial, tensors: Named, ways: Named, out: Tensor, step: float) -> float:
    """The derivative along a direction, by central differences."""
    inputs = trial.subject.inputs
    known = {n: x.detach().clone() for n, x in tensors.items()}

    def at(size: float) -> float:
        moved = {n: x + size * ways[n] for n, x in known.items()}
        given = {n: x.requires_grad_() for n, x in moved.items() if n in inputs}
        held = [n for n in tensors if n not in inputs]
        try:
            for n in held:
                tensors[n].data.copy_(moved[n])
            with torch.enable_grad():  # the path whose gradient it is
                y = trial.output(**given)
        finally:
            for n in held:
                tensors[n].data.copy_(known[n])
        return float((y.detach().nan_to_num() * out).sum())

    up, down = at(step), at(-step)
    middle = trial.first.nan_to_num() * out
    bend = 1e-2 if step < 1e-3 else 1  # a jump, or the kink of a ReLU at 0
    jump = abs(up + down - 2 * float(middle.sum())) > max(
        bend * abs(up - down), JUMP * step * float(middle.abs().sum())
    )
    return math.nan if jump else (up - down) / (2 * step)
