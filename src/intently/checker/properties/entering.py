"""What enters an attention: later inputs that leak, projections that are not used or exchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from intently.checker.calling.changes import another
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.by_values import measured
from intently.checker.measuring.flow import Operand, whole
from intently.checker.measuring.run import memory
from intently.checker.measuring.scores import gradient
from intently.checker.properties.trial import Property, Trial, broken, part
from intently.checker.report.finding import Finding

BESIDE = "causal before the attention"
"""The property that nothing later enters queries, keys and values."""

SIDES = (
    ("q", re.compile(r"(^|[._])(to_|w|W|c_)?(q|query|queries)(_?(proj|lin|linear|layer|head))?$")),
    ("k", re.compile(r"(^|[._])(to_|w|W|c_)?(k|key|keys)(_?(proj|lin|linear|layer|head))?$")),
    ("v", re.compile(r"(^|[._])(to_|w|W|c_)?(v|value|values)(_?(proj|lin|linear|layer|head))?$")),
)
"""How projections are called."""


def nothing_later_enters(trial: Trial) -> Property:
    """Under a causal mask, nothing later enters the queries, keys and values of the first."""
    subject, run = trial.subject, trial.whole.run
    own = [x for x in trial.whole.attentions if x.side == "self"]
    if not trial.causal or not own or run is None or len(subject.of("x", "ids")) != 1:
        return Property(BESIDE, None)
    x = next((y for n, y in _inputs(trial) if n == subject.main), None)
    if x is None or not x.is_floating_point() or not x.requires_grad:
        return Property(BESIDE, None)
    a, axis = own[0].attention, subject.time(subject.main)
    for name in "qkv":
        operand: Operand | None = getattr(a, name)
        if operand is None:
            continue
        y = whole(operand.value)
        if y.shape[2] != x.shape[axis] or y.shape[2] < 2:
            continue
        way = torch.zeros_like(y)
        way[0, :, 0] = torch.linspace(1, 2, y.shape[-1], dtype=y.dtype)
        g = gradient(y, x, way)
        if g is None:
            continue
        flow = g.movedim(axis, 0).flatten(1).abs().amax(-1)
        if float(flow[1:].amax()) > 1e-9 * float(flow.max().clamp(min=1e-300)):
            j = int(flow[1:].argmax()) + 1
            said = f"what enters the attention at step 0 changes with input {j}, "
            said += f"before any key is attended to ({operand.name or name})"
            return broken(BESIDE, said, "leak-later")
    return Property(BESIDE, True)


def queries_matter(trial: Trial) -> Property:
    """What queries are made of changes the weights: it does not cancel in the softmax."""
    name = "queries matter"
    tried = 0
    for one in trial.whole.attentions:
        a = one.attention
        own = a.inputs["weights"] - a.inputs["v"]
        for n, x in _inputs(trial) if own else ():
            if n not in own or not x.is_floating_point() or n not in trial.subject.contents:
                continue
            if a.site is None:
                continue
            w = a.site.weights
            draw = torch.Generator().manual_seed(2)
            g = gradient(w, x, torch.randn(w.shape, generator=draw, dtype=w.dtype))
            if g is None or bool(w.isnan().any()) or not bool((a.shown.sum(-1) > 1).any()):
                continue
            tried += 1
            if float(g.abs().max()) <= 1e-10 and _same_weights(trial, a, n):
                said = f"{n} enters the scores and has no influence on the weights: it cancels"
                return broken(name, said, "query-without-influence", one.where)
    return Property(name, True if tried else None)


def _same_weights(trial: Trial, a: Attention, name: str) -> bool:
    """Whether weights are the same for another input: a gradient may have been cut."""
    subject = trial.subject
    other = {**subject.inputs, name: another(subject.inputs[name])}
    found = [x.weights for x in measured(replace(subject, inputs=other))[2] if x.line == a.line]
    return any(w.shape == a.weights.shape and part(w, a.weights) < 1e-6 for w in found)


def across_the_batch(trial: Trial) -> Property | None:
    """The mistake that keys of one row are those of several rows of the batch, if it is one.

    Where no layout is stated and no example given, the first axis may be that of time.
    """
    subject = trial.subject
    if not subject.given or subject.layout or subject.sequence_first or subject.batch < 2:
        return None
    x = subject.inputs[subject.main]
    if subject.module is None or not (x.ndim == 3 or _is_image(subject.module, x)):
        return None
    for name, x in _inputs(trial):
        if name != subject.main or not x.requires_grad:
            continue
        for one in trial.whole.attentions:
            k = one.attention.k
            if k is None or name not in one.attention.inputs.get("k", ()):
                continue
            y = whole(k.value)
            way = torch.zeros_like(y)
            way[0] = torch.randn(y[0].shape, dtype=y.dtype)
            g = gradient(y, x, way)
            if g is None:
                continue
            flow = g.flatten(1).abs().amax(-1)
            rows = int((flow > 1e-9 * flow.max()).sum())
            if rows > 1 and x.shape[0] <= max(2, len(y)):
                said = f"a query attends to keys of {rows} rows of the batch (axis 0 of {name}); "
                said += "if that is time, state layout="
                exchanged = rows == len(x) == y.shape[2]
                slug = "batch-and-sequence-exchanged" if exchanged else "batch-mixed"
                return broken("batch", said, slug, one.where)
            break
    return None


def _is_image(module: nn.Module, x: Tensor) -> bool:
    """Whether an input (b, c, height, width) is what a convolution of a module takes."""
    layers = (m for m in module.modules() if isinstance(m, nn.Conv2d))
    return x.ndim == 4 and any(m.in_channels == x.shape[1] for m in layers)


def _inputs(trial: Trial) -> Iterable[tuple[str, Tensor]]:
    run = trial.whole.run
    assert run is not None
    for node, x in run.results.items():
        name = run.input_names.get(memory(x)) if node.name == "given" else None
        if name:
            yield name, x


def projections_named(trial: Trial) -> Property:
    """Values come from what is called values, and projections and their biases are used."""
    name, subject = "projections", trial.subject
    if subject.module is None or trial.whole.run is None:
        return Property(name, None)
    idle = _idle(trial)
    for one in trial.whole.attentions:
        a = one.attention
        if a.q is None or a.k is None:
            continue
        sides = {n: called(o.name.split(", ")) for n, o in (("q", a.q), ("k", a.k), ("v", a.v))}
        alike = {n: [m for m in "qkv" if m != n and _alike(a, m, n)] for n in "kqv"}
        for what, found in (("v", "values-are-"), ("k", "keys-are-"), ("q", "queries-are-")):
            unused = next((x for x in idle if called([x]) == what), "")
            if unused and alike[what]:
                other = {"q": "queries", "k": "keys", "v": "values"}[alike[what][0]]
                said = f"{found.rstrip('-')} {other}: `{unused}` has no effect"
                slug = found + other
                slug = (
                    slug
                    if slug in ("values-are-keys", "values-are-queries")
                    else "keys-are-queries"
                )
                return broken(name, said.replace("-are", " are"), slug, one.where)
        if not idle and alike["v"] == ["k"] and _part_unused(trial, a.v.name):
            said = f"values are keys: a part of `{a.v.name}` has no effect"
            return broken(name, said, "values-are-keys", one.where)
        if sides["v"] in ("q", "k") and "v" in sides["q"] + sides["k"]:
            said = (
                f"values come from `{a.v.name}`, and a projection of values makes queries or keys"
            )
            held = Finding("projections-exchanged", said, "hazard")
            return Property(name, False, said, (held,))
    bias = next((x for x in idle if x.endswith("bias")), "")
    weight = bias.removesuffix("bias") + "weight"
    held = dict(subject.module.named_parameters())
    if bias and weight in held and weight not in idle and held[weight].ndim == 2:
        said = f"`{bias}` has no effect, and the weight beside it has"
        found = Finding("projection-bias-missing", said, "hazard")
        return Property(name, False, said, (found,))
    return Property(name, True)


def _alike(a: Attention, m: str, n: str) -> bool:
    """Whether two operands are the same numbers of one layer, or of one projection."""
    one, two = getattr(a, m), getattr(a, n)
    same = {x.node for x in one.sources} == {x.node for x in two.sources}
    if not same and not (one.name and one.name == two.name):
        return False
    if not one.reads or not two.reads:
        return True
    return len(one.reads) == len(two.reads) and all(map(torch.equal, one.reads, two.reads))


def called(names: Iterable[str]) -> str:
    """Of which operands the names of projections tell: ``q``, ``k``, ``v``, joined; "" if none."""
    found = set[str]()
    for name in names:
        owner = re.sub(r"[._](weight|bias)$", "", name)
        found |= {side for side, pattern in SIDES if pattern.search(owner)}
    return "".join(sorted(found))


def _part_unused(trial: Trial, name: str) -> bool:
    """Whether a third or a half of a fused projection's rows get no gradient at all."""
    module = trial.subject.module
    held = dict(module.named_parameters()) if module is not None else {}
    weight = held.get(name.removesuffix("bias") + "weight", held.get(name))
    if weight is None or weight.ndim != 2 or not weight.requires_grad:
        return False
    with torch.enable_grad():
        y = trial.output()
        (g,) = torch.autograd.grad(y.pow(2).sum(), [weight], allow_unused=True)
    idle = 0 if g is None else int((g == 0).all(-1).sum())
    return idle * 2 == len(weight) or idle * 3 == len(weight)


def _idle(trial: Trial) -> list[str]:
    """The parameters that no output comes from."""
    module = trial.subject.module
    assert module is not None
    held = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if not held or (trial.whole.run is not None and not trial.whole.run.gradients):
        return []
    with torch.enable_grad():
        y = trial.output()
        if not y.requires_grad:
            return []
        got = torch.autograd.grad(y.sum(), list(held.values()), allow_unused=True)
    return [n for n, g in zip(held, got) if g is None]
