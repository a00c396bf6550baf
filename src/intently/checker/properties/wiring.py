"""Whether everything is connected: inputs are used, dropout stands in its place, types are kept."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from intently.checker.calling.changes import another, changed_at
from intently.checker.measuring.by_values import measured
from intently.checker.properties.dropping import without_dropout
from intently.checker.properties.trial import Property, Trial, broken, difference, part
from intently.checker.report.finding import Finding


def inputs_used(trial: Trial) -> Property:
    """Every input has an effect on the output."""
    subject = trial.subject
    for name in subject.of("q", "k", "v", "x", "context"):
        x = subject.inputs[name]
        other = another(x)
        if x.is_floating_point():
            other = other + torch.linspace(0, 1, x.numel(), dtype=x.dtype).view(x.shape)
        if part(trial.output(**{name: other}), trial.first) > trial.same:
            continue
        said = f"the output does not depend on {name}"
        keys = [x.attention.inputs.get("k", frozenset()) for x in trial.whole.attentions]
        ignored = subject.roles[name] == "context" and keys and all(name not in k for k in keys)
        if ignored and all(k for k in keys):
            return broken("inputs used", said, "cross-ignores-context")
        return Property("inputs used", None, said)
    return Property("inputs used", True)


def left_padding(trial: Trial) -> Property:
    """A text is the same with padding before it."""
    subject = trial.subject
    name = next((n for n, m in subject.meanings.items() if m in ("attend", "ignore")), None)
    mask = subject.inputs.get(name) if name is not None else None
    main = subject.main
    x = subject.inputs[main]
    axis = subject.time(main)
    if name is None or not isinstance(mask, Tensor) or mask.shape != x.shape[:2] or axis != 1:
        return Property("padding on the left", None, "no padding mask")
    t = x.shape[1]
    if t < 4 or len(subject.of("x", "q", "k", "ids", "context")) > 1:
        return Property("padding on the left", None)
    real = mask.new_ones(()) if subject.meanings[name] == "attend" else mask.new_zeros(())
    whole = real.expand(mask.shape).clone()
    padded = whole.clone()
    padded[:, :2] = 1 - real if mask.dtype != torch.bool else ~real
    alone = trial.output(**{main: x[:, : t - 2], name: whole[:, : t - 2]})
    after = trial.output(**{main: torch.cat([x[:, -2:], x[:, : t - 2]], 1), name: padded})
    rows = trial.whole.rows
    if rows is None or (rows.batch, rows.time) != (0, (1,)) or after.shape[1] != t:
        return Property("padding on the left", None)
    if bool(alone.isnan().any() | after[:, 2:].isnan().all()):
        return Property("padding on the left", None, "it gives NaN")
    off = float(difference(after[:, 2:], alone).amax())
    if off <= 10 * trial.same:
        return Property("padding on the left", True)
    said = f"with two steps of padding before it, a text gives outputs that differ by {off:.2g}"
    found = Finding("left-padding-positions", said, "hazard")
    return Property("padding on the left", False, said, (found,))


def nothing_later_in_training(trial: Trial) -> Property:
    """Under a causal mask, statistics over positions leak in training, too."""
    subject = trial.subject
    norms = nn.modules.batchnorm._BatchNorm
    name = "causal in training"
    if not trial.causal or subject.module is None or len(subject.of("x", "ids")) != 1:
        return Property(name, None)
    if not any(isinstance(m, norms) for m in subject.module.modules()):
        return Property(name, None)
    training = copy.deepcopy(subject.module).train()
    made = replace(subject, call=training, owner=training, module=training)
    main = subject.main
    x = subject.inputs[main]
    changed = changed_at(x, subject.time(main), -1)
    with without_dropout():
        one, two = (trial.by_position(made.output(**{main: y})) for y in (x, changed))
    off = float(difference(two, one)[:, 0].amax())
    if off <= 10 * trial.same:
        return Property(name, True)
    said = f"in training, output 0 changes by {off:.2g} with the last input: a normalisation"
    return broken(name, f"{said} runs over positions", "leak-later")


def dropout_placed(trial: Trial) -> Property:
    """In training, dropout stands between the softmax and the values, once."""
    subject = trial.subject
    if subject.module is None:
        return Property("dropout", None)
    training = copy.deepcopy(subject.module).train()
    try:
        found = measured(replace(subject, call=training, owner=training, module=training))[2]
    except Exception as error:  # a module that cannot train
        return Property("dropout", None, f"raises {type(error).__name__} in training mode")
    for a in found:
        if a.dropped > 1:
            said = "in training, weights are dropped twice between the softmax and the values"
            return broken("dropout", said, "dropout-twice", a.where)
        if a.dropped_before:
            said = "in training, dropout zeroes scores before the softmax"
            return broken("dropout", said, "dropout-before-softmax", a.where)
    return Property("dropout", True if any(a.dropped for a in found) else None)


def not_rounded(trial: Trial) -> Property:
    """No number passes through a half type."""
    if not trial.subject.rounded:
        return Property("dtype", True)
    said = "given float32 or float64, the code casts to a 16-bit float inside"
    return broken("dtype", said, "rounded")
