"""Whether everything is connected: inputs are used, dropout stands in its place, types are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from intently.checker.calling.modes import Eager
from intently.checker.calling.subject import Subject, another, changed_at
from intently.checker.calling.understanding import duplicate
from intently.checker.measuring.by_values import measured
from intently.checker.properties.trial import Outcome, Trial, difference, meant, part
from intently.checker.report.finding import Finding

DRAWS = frozenset(f"aten::{x}" for x in ("rand", "rand_like", "uniform_", "randn", "randn_like"))


def inputs_used(trial: Trial) -> Outcome:
    """Every input has an effect on the output."""
    subject = trial.subject
    for name in subject.of("q", "k", "v", "x", "context", "ids"):
        x = subject.inputs[name]
        other = another(x)
        if x.is_floating_point():
            other = other + torch.linspace(0, 1, x.numel(), dtype=x.dtype).view(x.shape)
        if part(trial.output(**{name: other}), trial.first) > trial.same:
            unread = _unread(trial, name) if subject.roles[name] == "context" else ""
            if unread:
                return Finding("cross-ignores-context", unread, "hazard")
            continue
        said = f"the output does not depend on {name}"
        keys = [x.attention.inputs.get("k") for x in trial.whole.attentions]
        ignored = subject.roles[name] == "context" and all(k and name not in k for k in keys)
        return Finding("cross-ignores-context", said) if ignored and keys else said
    return True


def _unread(trial: Trial, name: str) -> str:
    """The rows of a context that nothing is made of, in words; "" if a mask may hide them."""
    x = trial.subject.inputs[name]
    if x.ndim != 3 or not x.is_floating_point() or trial.subject.of("mask") or len(x) == 1:
        return ""
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        y = trial.output(**{name: x})
        (g,) = torch.autograd.grad(y.pow(2).sum(), x, allow_unused=True)
    rows = [] if g is None else (g == 0).all(-1).all(0).nonzero()[:, 0].tolist()
    return f"nothing depends on rows {rows[0]} … {rows[-1]} of {name}" if rows else ""


def left_padding(trial: Trial) -> Outcome:
    """A text is the same with padding before it."""
    subject, rows = trial.subject, trial.whole.rows
    x = subject.inputs[subject.main]
    name, mask = next(iter(meant(subject, "attend", "ignore")), ("", x))
    if not name or mask.shape != x.shape[:2] or subject.time(subject.main) != 1:
        return "no padding mask"
    t = x.shape[1]
    if t < 4 or len(subject.of("x", "q", "k", "ids", "context")) > 1:
        return None
    whole = torch.full_like(mask, subject.meanings[name] == "attend")
    padded = torch.cat([whole[:, :2] == 0, whole[:, 2:]], 1).to(mask.dtype)
    alone = trial.output(**{subject.main: x[:, :-2], name: whole[:, :-2]})
    after = trial.output(**{subject.main: torch.cat([x[:, -2:], x[:, :-2]], 1), name: padded})
    if rows is None or (rows.batch, rows.time) != (0, (1,)) or after.shape[1] != t:
        return None
    if bool(alone.isnan().any() | after[:, 2:].isnan().all()):
        return "it gives NaN"
    off = float(difference(after[:, 2:], alone).amax())
    said = f"with two steps of padding before it, a text gives outputs that differ by {off:.2g}"
    return Finding("left-padding-positions", said, "hazard") if off > 10 * trial.same else True


def nothing_later_in_training(trial: Trial) -> Outcome:
    """Under a causal mask, statistics over positions leak in training, too."""
    subject, norms = trial.subject, nn.modules.batchnorm._BatchNorm
    if not trial.causal or subject.module is None or len(subject.of("x", "ids")) != 1:
        return None
    if not any(isinstance(m, norms) for m in subject.module.modules()):
        return None
    x, made = subject.inputs[subject.main], _training(subject, subject.module)
    changed = changed_at(x, subject.time(subject.main), -1)
    with WithoutDropout():
        one, two = (trial.by_position(made.output(**{subject.main: y})) for y in (x, changed))
    off = float(difference(two, one)[:, 0].amax())
    said = f"in training, output 0 changes by {off:.2g} with the last input: a normalisation"
    return Finding("leak-later", f"{said} runs over positions") if off > 10 * trial.same else True


def dropout_placed(trial: Trial) -> Outcome:
    """In training, dropout stands between the softmax and the values, once."""
    if trial.subject.module is None:
        return None
    made = _training(trial.subject, trial.subject.module)
    try:
        found = measured(made)[2]
    except Exception as error:  # a module that cannot train
        return f"raises {type(error).__name__} in training mode"
    for a in found:
        if a.dropped > 1:
            said = "in training, weights are dropped twice between the softmax and the values"
            return Finding("dropout-twice", said, where=a.where)
        if a.dropped_before:
            said = "in training, dropout zeroes scores before the softmax"
            return Finding("dropout-before-softmax", said, where=a.where)
    return any(a.dropped for a in found) or None


def not_rounded(trial: Trial) -> Outcome:
    """No number passes through a half type."""
    said = "given float32 or float64, the code casts to a 16-bit float inside"
    return Finding("rounded", said) if trial.subject.rounded else True


def _training(subject: Subject, module: nn.Module) -> Subject:
    """The subject with a copy of its module in training mode."""
    made = duplicate(module, True)
    return replace(subject, call=made, owner=made, module=made)


class WithoutDropout(Eager):
    """Runs dropout as the identity, inside of fused functions too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in DRAWS:
            raise RuntimeError("it draws random numbers beside dropout, to drop whole layers, say")
        if name == "aten::native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "aten::bernoulli_":  # kept with p (0.5 if not given), then divided by p
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)
        return func(*args, **(kwargs or {}))
