"""Whether everything is connected: inputs are used, dropout stands in its place, types are kept."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from intently.checker.calling.changes import another, changed_at
from intently.checker.properties.axes import axis_of_time
from intently.checker.properties.dropping import without_dropout
from intently.checker.properties.trial import Property, Trial, broken, by_position, difference, part
from intently.checker.report.finding import Finding


def inputs_used(trial: Trial) -> Property:
    """Every input has an effect on the output."""
    subject = trial.subject
    for name in subject.of("q", "k", "v", "x", "context"):
        x = subject.inputs[name]
        other = another(x)
        if x.is_floating_point():
            other = other + torch.linspace(0, 1, x.numel(), dtype=x.dtype).view(x.shape)
        moved = trial.output(**{name: other})
        if part(moved, trial.first) > trial.same:
            continue
        said = f"the output does not depend on {name}"
        names = {"v": "values-are-keys", "context": "cross-ignores-context"}
        found = names.get(subject.roles[name])
        if found is None or x.shape[axis_of_time(x, subject.roles[name])] == 1:
            return Property("inputs used", None, said)
        return broken("inputs used", said, found)
    unused = _unused_values(trial)
    if unused:
        said = f"the weighted sum is of the keys: {unused} has no effect"
        return broken("inputs used", said, "values-are-keys")
    return Property("inputs used", True)


def _unused_values(trial: Trial) -> str:
    """The projection without effect beside an attention whose values are its keys; "" if none."""
    subject = trial.subject
    if subject.module is None:
        return ""
    found = subject.traced()
    cores = [
        [{found.sources[i].weight for i in x} for x in (c.values, c.right)] for c in found.cores
    ]
    names = {n for values, keys in cores if values == keys for n in values}
    if not names:
        return ""
    held = {n: p for n, p in subject.module.named_parameters() if p.ndim == 2 and p.requires_grad}
    changed = {n: another(subject.inputs[n]) for n in subject.contents}  # zeros hide everything
    plain = trial.output(**changed)
    with torch.enable_grad():
        y = trial.output(**changed)
        way = torch.randn(y.shape, generator=torch.Generator().manual_seed(4), dtype=y.dtype)
        got = torch.autograd.grad((y * way).sum(), list(held.values()), allow_unused=True)
    for (name, weight), g in zip(held.items(), got):
        idle = torch.zeros_like(weight) if g is None else g
        rows = (idle == 0).all(-1)
        owner = subject.module.get_submodule(name.rpartition(".")[0])
        fused = name in names and _is_part(rows)
        if not (fused or bool(rows.all())) or isinstance(owner, nn.Embedding):
            continue
        kept = weight.detach().clone()
        weight.data[rows] = another(kept)[rows]
        try:
            moved = part(trial.output(**changed), plain)
        finally:
            weight.data.copy_(kept)
        if moved <= trial.same:
            return name
    return ""


def _is_part(rows: Tensor) -> bool:
    """Whether the chosen rows (n,) of a fused projection are those of k or v: a half or a third.

    They stand together, or in each head: heads that a model leaves out stand elsewhere.
    """
    n = len(rows)
    for parts in (2, 3):
        if int(rows.sum()) * parts != n:
            continue
        for heads in (h for h in range(1, n // parts + 1) if n % (h * parts) == 0):
            if bool(rows.view(heads, parts, -1).all(-1).all(0).any()):
                return True
    return False


def left_padding(trial: Trial) -> Property:
    """A text is the same with padding before it."""
    subject = trial.subject
    name = next((n for n, m in subject.meanings.items() if m in ("attend", "ignore")), None)
    mask = subject.inputs.get(name) if name is not None else None
    main = subject.main
    x = subject.inputs[main]
    axis = axis_of_time(x, subject.roles[main])
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
    if by_position(after).shape[1] != t or by_position(alone).shape[1] != t - 2:
        return Property("padding on the left", None)
    if bool(by_position(alone).isnan().any() | by_position(after)[:, 2:].isnan().all()):
        return Property("padding on the left", None, "it gives NaN")
    off = float(difference(by_position(after)[:, 2:], by_position(alone)).amax())
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
    changed = changed_at(x, axis_of_time(x, subject.roles[main]), -1)
    with without_dropout():
        one, two = (by_position(made.output(**{main: y})) for y in (x, changed))
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
        events = replace(subject, call=training, owner=training, module=training).traced().events
    except Exception as error:  # a module that cannot train
        return Property("dropout", None, f"raises {type(error).__name__} in training mode")
    since, dropped = "", 0
    for event in events:
        if event == "dropout":
            dropped += 1
            if since == "softmax" and dropped == 2:
                said = "in training, weights are dropped twice between the softmax and the values"
                return broken("dropout", said, "dropout-twice")
            continue
        if event == "softmax" and since == "scores" and dropped:
            said = "in training, dropout zeroes scores before the softmax"
            return broken("dropout", said, "dropout-before-softmax")
        since, dropped = event, 0
    return Property("dropout", True if "dropout" in events else None)


def not_rounded(trial: Trial) -> Property:
    """No number passes through a half type."""
    if not trial.subject.rounded:
        return Property("dtype", True)
    said = "given float32 or float64, the code casts to a 16-bit float inside"
    return broken("dtype", said, "rounded")
