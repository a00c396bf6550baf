"""What enters an attention: queries that are scaled before their projection, inputs that leak."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor

from intently.checker.calling.changes import changed_at
from intently.checker.calling.subject import Subject
from intently.checker.computing.tracing import Found
from intently.checker.properties.axes import axis_of_time
from intently.checker.properties.trial import Property, Trial, broken, by_position, difference
from intently.checker.report.finding import Finding

BESIDE = "causal before the attention"
"""The property that nothing later enters queries, keys and values."""

SIDES = (
    ("q", re.compile(r"(^|[._])(to_|w|W|c_)?(q|query|queries)(_?(proj|lin|linear|layer|head))?$")),
    ("k", re.compile(r"(^|[._])(to_|w|W|c_)?(k|key|keys)(_?(proj|lin|linear|layer|head))?$")),
    ("v", re.compile(r"(^|[._])(to_|w|W|c_)?(v|value|values)(_?(proj|lin|linear|layer|head))?$")),
)
"""How projections are called."""


def scaled_before(
    subject: Subject, found: Found, q: int, k: int, width: int, where: str
) -> Finding | None:
    """The finding that the input of the queries' projection is scaled, as scores are again."""
    entry = _entered(found, q)
    if entry is None or q == k or found.sources[q].operation == ("", 0):
        return None
    others = [_entered(found, k), subject.inputs.get(subject.main)]
    for x in others:
        if not isinstance(x, Tensor) or x.numel() != entry.numel() or not x.is_floating_point():
            continue
        x = x.reshape(entry.shape)
        factor = float((x * entry).sum() / (x * x).sum().clamp(min=1e-30))
        same = float((entry - factor * x).abs().max()) <= 1e-6 * float(entry.abs().max())
        if same and math.isclose(factor, width**-0.5, rel_tol=1e-4):
            said = f"what is projected to queries is divided by √{width}, and so are the scores"
            return Finding("scale-one-over-d", said, where=where)
    return None


def _entered(found: Found, number: int) -> Tensor | None:
    """What enters a projection, through the sum with its bias where that is a step of its own."""
    entry = found.sources[number].entry
    for before in reversed(found.sources[:number]):
        if entry is None or before.entry is None or before.value.numel() != entry.numel():
            continue
        if torch.equal(before.value.reshape(entry.shape), entry):
            entry = before.entry
    return entry


def nothing_later_enters(trial: Trial) -> Property:
    """Under a causal mask, nothing later enters the queries, keys and values of the first."""
    subject = trial.subject
    if not trial.causal or len(subject.of("x", "ids")) != 1 or subject.of("q", "k", "v"):
        return Property(BESIDE, None)
    x, b = subject.inputs[subject.main], subject.batch
    t = by_position(trial.first).shape[1]
    changed = changed_at(x, axis_of_time(x, subject.roles[subject.main]), -1)
    one, two = (subject.traced(**{subject.main: y}) for y in (x, changed))
    if not one.cores or len(one.sources) != len(two.sources):
        return Property(BESIDE, None)
    core = one.cores[0]
    for i in sorted(core.left | core.right | core.values):
        rows = [_rows(run.sources[i].value, b, t, subject.sequence_first) for run in (one, two)]
        if rows[0] is None or rows[1] is None:
            continue
        off = float(difference(rows[1], rows[0])[:, :-1].amax())
        if off > trial.same:
            said = f"what enters the attention at step 0 … {t - 2} changes by {off:.2g} with the "
            said += f"last input, before any key is attended to ({one.sources[i].weight})"
            return broken(BESIDE, said, "leak-later")
    return Property(BESIDE, True)


def _rows(x: Tensor, b: int, t: int, sequence_first: bool) -> Tensor | None:
    """The output of a projection as (b, t, n)."""
    if x.numel() % (b * t) or x.shape[0] not in (b, t, b * t):
        return None
    if x.ndim == 3 and {x.shape[0], x.shape[1]} != {b, t}:
        return None
    if x.ndim > 3:  # heads may stand before the steps, as behind a norm of queries
        steps = [axis for axis in range(x.ndim - 1) if x.shape[axis] == t]
        if x.shape[0] != b or b == t or len(steps) != 1:
            return None
        x = x.movedim(steps[0], 1).flatten(2)
    first = sequence_first if x.ndim == 2 or b == t else x.shape[0] == t
    x = x.reshape(t, b, -1).transpose(0, 1) if first else x.reshape(b, t, -1)
    return x if t > 1 else None


def projections_named(trial: Trial) -> Property:
    """Values come from what is called values, and biases beside weights are used."""
    name, subject = "projections", trial.subject
    if subject.module is None:
        return Property(name, None)
    found = subject.traced()
    for core in found.cores:
        keys, values = (
            _called(found.sources[i].weight for i in x)
            for x in (core.left | core.right, core.values)
        )
        if values in ("q", "k") and "v" in keys:
            where = found.sources[min(core.values)].weight
            said = f"values come from `{where}`, and a projection of values makes queries or keys"
            held = Finding("projections-exchanged", said, "hazard")
            return Property(name, False, said, (held,))
    idle = _idle_bias(trial)
    if idle:
        said = f"`{idle}` has no effect, and the weight beside it has"
        held = Finding("projection-bias-missing", said, "hazard")
        return Property(name, False, said, (held,))
    return Property(name, True)


def _called(names: Iterable[str]) -> str:
    """Of which operands the names of projections tell: ``q``, ``k``, ``v``, joined; "" if none."""
    found = set[str]()
    for name in names:
        owner = re.sub(r"[._](weight|bias)$", "", name)
        found |= {side for side, pattern in SIDES if pattern.search(owner)}
    return "".join(sorted(found))


def _idle_bias(trial: Trial) -> str:
    """A bias that no output comes from, beside a matrix that is used; "" if there is none."""
    module = trial.subject.module
    assert module is not None
    held = {n: p for n, p in module.named_parameters() if p.requires_grad}
    pairs = {
        n: n.removesuffix("bias") + "weight"
        for n in held
        if n.endswith("bias") and n.removesuffix("bias") + "weight" in held
    }
    pairs = {n: w for n, w in pairs.items() if held[w].ndim == 2}
    if not pairs:
        return ""
    with torch.enable_grad():
        y = trial.output()
        every = [held[n] for n in (*pairs, *pairs.values())]
        got = torch.autograd.grad(y.sum(), every, allow_unused=True)
    n = len(pairs)
    return next((b for b, x, w in zip(pairs, got[:n], got[n:]) if x is None and w is not None), "")
