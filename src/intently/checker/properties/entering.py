"""What enters an attention: later inputs that leak, projections that are not used or exchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import another
from intently.checker.calling.trials import modules_of
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.by_values import measured
from intently.checker.measuring.flow import Operand, whole
from intently.checker.measuring.run import memory
from intently.checker.measuring.scores import gradient
from intently.checker.properties.trial import Outcome, Trial, part
from intently.checker.report.finding import Finding

CALLED = {
    side: re.compile(rf"(^|[._])(to_|w|W|c_)?({names})(_?(proj|lin|linear|layer|head))?$")
    for side, names in {"q": "q|query|queries", "k": "k|key|keys", "v": "v|value|values"}.items()
}
"""How projections are called."""
MATRICES = ("weight", "kernel", "_torch_params")
"""How the names of their matrices end."""


def nothing_later_enters(trial: Trial) -> Outcome:
    """Under a causal mask, nothing later enters the queries, keys and values of the first."""
    subject = trial.subject
    own = [x.attention for x in trial.whole.attentions if x.side == "self"]
    if not trial.causal or not own or trial.whole.run is None or len(subject.of("x", "ids")) != 1:
        return None
    x = next((x for n, x in _inputs(trial) if n == subject.main), None)
    axis = subject.time(subject.main)
    if x is None or not x.requires_grad:
        return None
    for name in "qkv":
        operand: Operand | None = getattr(own[0], name)
        if operand is None or not 2 <= operand.value.shape[-2] == x.shape[axis]:
            continue
        y = whole(operand.value)
        way = torch.zeros_like(y)
        way[0, :, 0] = torch.linspace(1, 2, y.shape[-1], dtype=y.dtype)
        flow = _flow(y, x, way, axis)
        if flow is not None and float(flow[1:].amax()) > 1e-9 * float(flow.max().clamp(min=1e-300)):
            said = f"what enters the attention at step 0 changes with input {flow[1:].argmax() + 1}"
            said += f", before any key is attended to ({operand.name or name})"
            return Finding("leak-later", said)
    return True


def _flow(y: Tensor, x: Tensor, way: Tensor, axis: int) -> Tensor | None:
    """The largest gradient of y along a way by each place on an axis of x; None if none is."""
    g = gradient(y, x, way)
    return None if g is None else g.movedim(axis, 0).flatten(1).abs().amax(-1)


def queries_matter(trial: Trial) -> Outcome:
    """What queries are made of changes the weights: it does not cancel in the softmax."""
    tried = False
    for one in trial.whole.attentions:
        a, several = one.attention, bool((one.attention.shown.sum(-1) > 1).any())
        if not several or a.site is None or bool(a.site.weights.isnan().any()):
            continue
        w, own = a.site.weights, (a.inputs["weights"] - a.inputs["v"]) & {*trial.subject.contents}
        for n, x in _inputs(trial) if own else ():
            if n not in own or not x.is_floating_point():
                continue
            draw = torch.Generator().manual_seed(2)
            g = gradient(w, x, torch.randn(w.shape, generator=draw, dtype=w.dtype))
            tried |= g is not None
            if g is not None and float(g.abs().max()) <= 1e-10 and _same_weights(trial, a, n):
                said = f"{n} enters the scores and has no influence on the weights: it cancels"
                return Finding("query-without-influence", said, where=one.where)
    return tried or None


def _same_weights(trial: Trial, a: Attention, name: str) -> bool:
    """Whether weights are the same for another input: a gradient may have been cut."""
    subject = trial.subject
    other = {**subject.inputs, name: another(subject.inputs[name])}
    found = [x.weights for x in measured(replace(subject, inputs=other))[2] if x.line == a.line]
    return any(w.shape == a.weights.shape and part(w, a.weights) < 1e-6 for w in found)


def across_the_batch(trial: Trial) -> Finding | None:
    """The mistake that keys of one row are those of several rows of the batch, if it is one.

    Where no layout is stated and no example given, the first axis may be that of time.
    """
    subject, layers = trial.subject, modules_of(trial.subject.module)
    if not subject.given or subject.layout or subject.sequence_first or subject.batch < 2:
        return None
    taken = {m.in_channels for m in layers if isinstance(m, nn.Conv2d)}
    every = [(n, x) for n, x in _inputs(trial) if x.requires_grad] if layers else []
    every = [(n, x) for n, x in every if x.ndim == 3 or (x.ndim == 4 and x.shape[1] in taken)]
    if layers and trial.whole.run is not None and subject.of("ids"):
        ids = subject.inputs[subject.main].shape
        made = (x for n, x in trial.whole.run.results.items() if n.name == "embedding")
        every += [(subject.main, x) for x in made if x.shape[:2] == ids]
    for one, (main, x) in product(trial.whole.attentions, every):
        k = one.attention.k
        if k is None or main not in one.attention.inputs.get("k", ()):
            continue
        y = whole(k.value)
        way = torch.zeros_like(y)
        way[0] = torch.randn(y[0].shape, dtype=y.dtype)
        flow = _flow(y, x, way, 0)
        rows = 0 if flow is None else int((flow > 1e-9 * flow.max()).sum())
        if rows > 1 and len(x) <= max(2, len(y)) and (x.ndim > 3 or len(x) <= x.shape[1]):
            said = f"a query attends to keys of {rows} rows of the batch (axis 0 of {main}); "
            said += "if that is time, state layout="
            exchanged = rows == len(x) == y.shape[2]
            slug = "batch-and-sequence-exchanged" if exchanged else "batch-mixed"
            return Finding(slug, said, where=one.where)
    return None


def _inputs(trial: Trial) -> Iterable[tuple[str, Tensor]]:
    run = trial.whole.run
    assert run is not None
    for node, x in run.results.items():
        name = run.input_names.get(memory(x)) if node.name == "given" else None
        if name:
            yield name, x


def projections_named(trial: Trial) -> Outcome:
    """Values come from what is called values, and projections and their biases are used."""
    module = trial.subject.module
    if module is None or trial.whole.run is None:
        return None
    reached = _reached(trial, module) if trial.whole.run.gradients else {}
    idle = [n for n, g in reached.items() if g is None]
    words = {"v": "values", "k": "keys", "q": "queries"}
    for one in trial.whole.attentions:
        a = one.attention
        if a.q is None or a.k is None:
            continue
        alike = {n: [m for m in "qkv" if m != n and _alike(a, m, n)] for n in words}
        for what, mine in words.items():
            unused = next((x for x in idle if _called([x]) == what), "")
            if unused and alike[what]:
                other = words[alike[what][0]]
                said = f"{mine} are {other}: `{unused}` has no effect"
                slug = f"values-are-{other}" if what == "v" else "keys-are-queries"
                return Finding(slug, said, where=one.where)
        if not idle and alike["v"] == ["k"] and _part_unused(reached, a.v.name):
            said = f"values are keys: a part of `{a.v.name}` has no effect"
            return Finding("values-are-keys", said, where=one.where)
        q, k, v = (_called(o.name.split(", ")) for o in (a.q, a.k, a.v))
        if v in ("q", "k") and "v" in q + k:
            said = f"values come from `{a.v.name}`"
            said += ", and a projection of values makes queries or keys"
            return Finding("projections-exchanged", said, "hazard")
    lost = [n for n in trial.whole.run.unused() if n in idle and n.endswith(MATRICES)]
    for n, one in product(lost, trial.whole.attentions):
        if n.startswith(one.attention.module):
            said = f"`{n}` is multiplied with, and nothing that comes out is made of the result"
            return Finding("projection-other", said, where=one.where)
    bias = next((x for x in idle if x.endswith("bias")), "")
    name, held = bias.removesuffix("bias") + "weight", dict(module.named_parameters())
    if bias and name in held and name not in idle and held[name].ndim == 2:
        said = f"`{bias}` has no effect, and the weight beside it has"
        return Finding("projection-bias-missing", said, "hazard")
    return True


def _alike(a: Attention, m: str, n: str) -> bool:
    """Whether two operands are the same numbers of one layer, or of one projection."""
    one, two = getattr(a, m), getattr(a, n)
    same = {x.node for x in one.sources} == {x.node for x in two.sources}
    if not same and not (one.name and one.name == two.name):
        return False
    known = one.reads and two.reads
    alike = len(one.reads) == len(two.reads) and all(map(torch.equal, one.reads, two.reads))
    return alike or not known


def _called(names: Iterable[str]) -> str:
    """Of which operands the names of projections tell: ``q``, ``k``, ``v``, joined; "" if none."""
    owners = [re.sub(r"[._](weight|bias)$", "", x) for x in names]
    return "".join(side for side in "kqv" if any(map(CALLED[side].search, owners)))


def _reached(trial: Trial, module: nn.Module) -> dict[str, Tensor | None]:
    """The gradient of the squared output by each parameter, None where it does not come from it."""
    held = {n: p for n, p in module.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        y = trial.output() if held else torch.zeros(())
        if not y.requires_grad:
            return {}
        got = torch.autograd.grad(y.pow(2).sum(), list(held.values()), allow_unused=True)
    return dict(zip(held, got))


def _part_unused(reached: Mapping[str, Tensor | None], name: str) -> bool:
    """Whether some of a fused projection's rows get no gradient at all."""
    g = reached.get(name.removesuffix("bias") + "weight", reached.get(name))
    return g is not None and g.ndim == 2 and bool((g == 0).all(-1).any())
