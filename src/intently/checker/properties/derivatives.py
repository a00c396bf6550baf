"""Gradients beside the derivatives of the outputs, by central differences."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Subject
from intently.checker.precision import EXACT
from intently.checker.properties.trial import Property, Trial, broken
from intently.checker.report.finding import Finding


def gradients(trial: Trial) -> Property:
    """Gradients are the derivatives of the outputs, for every input and parameter."""
    subject = trial.subject
    draw = torch.Generator().manual_seed(3)
    module = subject.module
    tensors: dict[str, Tensor] = {
        n: subject.inputs[n] for n in subject.contents if subject.inputs[n].is_floating_point()
    }
    if module is not None:
        padded = {
            f"{n}.weight".lstrip(".")
            for n, m in module.named_modules()
            if isinstance(m, nn.Embedding) and m.padding_idx is not None
        }
        held = module.named_parameters()
        tensors |= {n: p for n, p in held if p.requires_grad and n not in padded}
    step, little = {torch.double: (1e-5, 1e-4), torch.float: (1e-2, 0.1)}.get(
        subject.precision.dtype, (0.0, 0.0)
    )
    if bool(trial.first.isnan().any()):
        return Property("gradients", None, "the example gives NaN")
    if not tensors or not step:
        return Property("gradients", None, "too rough to tell")
    leaves = {
        n: x.detach().clone().requires_grad_() for n, x in tensors.items() if n in subject.inputs
    }
    with torch.enable_grad(), subject.running():
        y = trial.output(**leaves)
        if not y.requires_grad and (subject.foreign or not trial.whole.attentions):
            return Property("gradients", None, "computed outside PyTorch")
        if not y.requires_grad:
            said = "no gradient reaches any input: it runs without gradients"
            hazard = Finding("gradient-cut", said, "hazard")
            return Property("gradients", None, said, (hazard,))
        if trial.whole.run is not None and not trial.whole.run.gradients:
            return Property("gradients", None, "a part runs without gradients")
        out = torch.randn(y.shape, generator=draw, dtype=y.dtype)
        held = [leaves.get(n, x) for n, x in tensors.items()]
        got = torch.autograd.grad((y.nan_to_num() * out).sum(), held, allow_unused=True)
    ways = {n: torch.randn(x.shape, generator=draw, dtype=x.dtype) for n, x in tensors.items()}
    mine = {n: 0.0 if g is None else float((g * ways[n]).sum()) for n, g in zip(tensors, got)}
    every = _numeric(trial, tensors, ways, out, step)
    if abs(every - sum(mine.values())) <= little / 100 * sum(map(abs, mine.values())):
        return Property("gradients", True)
    wrong: dict[str, float] = {}
    total = max(abs(every), *map(abs, mine.values()), little)
    for name, x in tensors.items():
        numeric = _numeric(trial, {name: x}, ways, out, step)
        size = max(abs(numeric), abs(mine[name]))
        if size < 1e-3 * total or abs(numeric - mine[name]) <= max(little, 0.03) * (size + 1e-3):
            continue
        finer = _numeric(trial, {name: x}, ways, out, step / 4)
        settled = 4 if subject.precision is EXACT else 50
        if abs(finer - numeric) > abs(numeric - mine[name]) / settled:
            continue  # the difference quotient itself is not settled
        wrong[name] = mine[name] / numeric if numeric else torch.inf
        if abs(mine[name]) < 1e-9:
            said = f"no gradient reaches {name}, though the output depends on it"
            return broken("gradients", said, "gradient-cut")
    for name in wrong:
        some = _without_gradient(dict(zip(tensors, got))[name])
        if some is not None:
            rows = {name: ways[name] * some}
            if abs(_numeric(trial, {name: tensors[name]}, rows, out, step)) > little:
                said = f"no gradient reaches some rows of {name}, though the output depends on them"
                return broken("gradients", said, "gradient-cut")
    if not wrong:
        return Property("gradients", True)
    other = {n: torch.randn(x.shape, generator=draw, dtype=x.dtype) for n, x in tensors.items()}
    part = ""
    for name, times in wrong.items():
        g = dict(zip(tensors, got))[name]
        now = 0.0 if g is None else float((g * other[name]).sum())
        numeric = _numeric(trial, {name: tensors[name]}, other, out, step)
        if abs(now - times * numeric) <= 1e-2 * abs(numeric):
            said = f"the gradient of {name} is {times:.3g} times the derivative"
            return broken("gradients", said, "gradient-scaled")
        part = part or f"a part of the gradient of {name} is missing"
    return broken("gradients", part, "gradient-cut")


def gradients_of_biases(trial: Trial) -> Property:
    """A gradient reaches what is added to the scores, as it must where that is learned."""
    subject, name = trial.subject, "gradients of biases"
    added = {
        n: subject.inputs[n]
        for n, meaning in subject.meanings.items()
        if meaning in ("add", "bias") and n in subject.inputs
    }
    added = {n: x for n, x in added.items() if x.dtype == torch.double}
    if not added or bool(trial.first.isnan().any()):
        return Property(name, None)
    draw = torch.Generator().manual_seed(4)
    out = torch.randn(trial.first.shape, generator=draw, dtype=trial.first.dtype)
    for n, x in added.items():
        way = torch.randn(x.shape, generator=draw, dtype=x.dtype)
        ways = {n: way.masked_fill(x < -1e3, 0.0)}
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            y = trial.output(**{n: leaf})
            (got,) = (
                torch.autograd.grad((y.nan_to_num() * out).sum(), [leaf], allow_unused=True)
                if y.requires_grad
                else (None,)
            )
        if got is not None and bool((got != 0).any()):
            continue
        if abs(_numeric(trial, {n: x}, ways, out, 1e-5)) < 1e-6:
            continue
        said = f"no gradient reaches {n}: right for a mask, wrong for a bias that is learned"
        return Property(name, False, said, (Finding("gradient-cut", said, "hazard"),))
    return Property(name, True)


def gradients_apart(path: Subject, trial: Trial) -> Finding | None:
    """How the gradients of a path differ from those of the plain call, whose output it gives."""
    little = {torch.double: 1e-6, torch.float: 1e-2}.get(path.precision.dtype)
    if little is None or bool(trial.first.isnan().any()):
        return None
    try:
        got = [_gradients_of(x, trial) for x in (path, trial.subject)]
    except Exception:  # whatever the code does with gradients
        return None
    mine, theirs = got
    if not mine or mine.keys() != theirs.keys():
        return None
    size = max((float(g.abs().max()) for g in theirs.values()), default=0.0)
    scaled = None
    for name, g in theirs.items():
        x = mine[name]
        if float((x - g).abs().max()) <= little * (float(g.abs().max()) + 1e-3 * size):
            continue
        factor = float((x * g).sum() / (g * g).sum().clamp(min=1e-30))
        if abs(factor) < little:
            said = f"no gradient reaches {name}, though the output depends on it"
            return Finding("gradient-cut", said)
        if float((x - factor * g).abs().max()) > little * float(x.abs().max()):
            said = f"a part of the gradient of {name} is missing"
            scaled = scaled or Finding("gradient-cut", said)
        else:
            said = f"the gradient of {name} is {factor:.3g} times that of the plain call"
            return Finding("gradient-scaled", said)
    return scaled


def _gradients_of(subject: Subject, trial: Trial) -> dict[str, Tensor]:
    """The gradients of the output along one direction by name; {} if there are none."""
    leaves = {
        n: subject.inputs[n].detach().clone().requires_grad_()
        for n in subject.contents
        if subject.inputs[n].is_floating_point()
    }
    held = dict(leaves)
    if isinstance(subject.owner, nn.Module):
        held |= {n: p for n, p in subject.owner.named_parameters() if p.requires_grad}
    draw = torch.Generator().manual_seed(3)
    with torch.enable_grad():
        y = trial.read(subject.output(**leaves))
        way = torch.randn(y.shape, generator=draw, dtype=y.dtype)
        if not held or not y.requires_grad:
            return {}
        got = torch.autograd.grad((y * way).sum(), list(held.values()), allow_unused=True)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(held.items(), got)}


def _without_gradient(got: Tensor | None) -> Tensor | None:
    """Which rows of a matrix get no gradient, as (n, 1); None if all or none do."""
    if got is None or got.ndim != 2:
        return None
    none = (got == 0).all(-1, keepdim=True)
    return none.to(got.dtype) if 0 < int(none.sum()) < len(none) else None


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
