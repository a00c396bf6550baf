"""Step by step with a cache: the same subject, called on pieces of its input."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from intently.checker.calling.naming import parameters_named
from intently.checker.calling.subject import Subject, another, output_of
from intently.checker.comparing.likeness import joined, pair
from intently.checker.examined import Examination
from intently.checker.judging.intent import Intent
from intently.checker.judging.judged import Judged
from intently.checker.judging.masks import counterexample
from intently.checker.judging.sides import about
from intently.checker.measuring.run import Run
from intently.checker.paths.slots import misread
from intently.checker.report.finding import Finding, merged

PROJECTIONS = ("projection", "weight-transposed")
"""How the names of findings begin that other inputs of an attention bring about."""
ASKING = ("use_cache", "return_cache", "return_past", "return_kv", "cached")
"""Arguments that ask for the cache."""
STARTS = ("start_pos", "start", "offset", "input_pos", "n_past", "past_length", "index", "position")
"""Arguments that say at which position a piece starts, of a module that holds its cache itself."""
CACHES = ("past", "cache", "kv_cache", "past_key_values", "layer_past", "past_key_value", "state")


def stepped(subject: Subject, pieces: tuple[int, ...]) -> Subject | None:
    """The subject called on pieces of its input, each with the cache of the last; None without one.

    A cache is an argument of a known name, and what the call returns beside its output.
    """
    if len(subject.of("x", "ids")) != 1:
        return None
    (whole,), spans = subject.of("x", "ids"), list(pairwise(accumulate(pieces, initial=0)))
    start = next((n for n in STARTS if type(subject.inputs.get(n)) is int), None)
    if start is not None and subject.inputs[start] == 0 and _keeps(subject):

        def at_positions(**given: Any) -> Tensor:
            calls = ({**given, whole: given[whole][:, i:j], start: i} for i, j in spans)
            return torch.cat([output_of(subject.call(**x)) for x in calls], 1)

        return replace(subject, call=at_positions)
    name, takes = _cache_name(subject), parameters_named(subject.owner)
    if name is None or subject.inputs.get(name) is not None:
        return None
    asks = ({}, *({n: True} for n in ASKING if n in takes))[:2]
    try:
        with torch.no_grad():
            ran = ((x, subject.raw(**x, **{name: None})) for x in asks)
            asked = next(x for x, made in ran if _cache_of(made) is not None)
    except Exception:  # where none of them returns a cache, too
        return None
    counts = [n for n in STARTS if n in takes and type(takes[n].default) is int][:1]

    def with_cache(**given: Any) -> Tensor:
        x, past, out = given.pop(whole), None, []
        for i, j in spans:
            cut = ((n, y) for n, y in given.items() if _goes_on(subject, n))
            piece = {**given, **{n: _so_far(y, i, j, x.shape[1]) for n, y in cut}}
            piece |= {**dict.fromkeys(counts, i), whole: x[:, i:j], name: past}
            made = subject.call(**piece)
            out.append(output_of(made))
            past = _cache_of(made)
        return torch.cat(out, 1)

    given = {**subject.inputs, **asked}
    return replace(subject, inputs=given, call=with_cache, positional=False)


def _keeps(subject: Subject) -> bool:
    """Whether a call changes tensors that a module holds beside its parameters."""
    if subject.module is None:
        return False
    parts = [x for m in subject.module.modules() for x in (*m._buffers.values(), *vars(m).values())]
    held = [x for x in parts if isinstance(x, Tensor) and not isinstance(x, nn.Parameter)]
    before = [x.clone() for x in held]
    with torch.no_grad():
        subject.output(**{subject.main: another(subject.inputs[subject.main])})
    return not all(map(torch.equal, held, before))


def _goes_on(subject: Subject, name: str) -> bool:
    """Whether an input is as long as the text so far: not the context, nor its mask."""
    role = subject.roles.get(name)
    return role != "context" and (role != "mask" or "self" in about(subject, name))


def _so_far(x: Any, start: int, stop: int, t: int) -> Any:
    """A mask of the whole text as a step has it: its keys so far, its own queries."""
    if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[-1] != t or x.is_floating_point():
        return x
    x = x[..., :stop]
    return x[..., start:stop, :] if x.ndim > 2 and x.shape[-2] == t else x


def _cache_of(out: Any) -> Any:
    """What a call returns for the next one, None if nothing."""
    held: Sequence[Any] = out[1:] if isinstance(out, (list, tuple)) else ()
    if hasattr(out, "past_key_values"):
        held = (getattr(out, "past_key_values", None),)
    return next(filter(_is_cache, held), None)


def _is_cache(x: Any) -> bool:
    """Whether something may hold keys and values: no numbers, and no container of nothing."""
    if isinstance(x, (list, tuple, dict)):
        return any(isinstance(y, Tensor) or _is_cache(y) for y in tree.tree_leaves(x))
    both = not isinstance(x, Tensor) or x.ndim > 4  # keys and values together
    return both and x is not None and not isinstance(x, (int, float, bool))


def _cache_name(subject: Subject) -> str | None:
    """The argument that takes the cache."""
    said = [n for n, meaning in subject.meanings.items() if meaning == "past"]
    with suppress(TypeError, ValueError):
        module = subject.module if subject.call is subject.module else None
        target = subject.call if module is None else module.forward
        said += [n for n in CACHES if n in inspect.signature(target).parameters]
    return said[0] if said else None


# --- what goes wrong in steps -------------------------------------------------------------------


def differences(steps: Examination, whole: Examination, same: float) -> list[Finding]:
    """Differences of cached steps from the whole pass, by the names of what caches get wrong.

    What the products inside read tells first; what it explains is not said again.
    """
    if _mixed(steps, whole):
        said = "keys or values come from the cache of another layer"
        return [Finding("cache-layers-exchanged", said)]
    found, moved = list(misread(steps, whole)), _first_embedding(steps, whole)
    if moved:
        said = "steps after the first get the positions of the first"
        found.append(Finding("position-offset-lost", said))
    told = {f.where for f in found}
    for b in whole.attentions:
        calls = [x for x in steps.attentions if x.where == b.where]
        if not calls or b.where in told:
            continue
        a = joined(calls, b)
        mine, theirs = a.attention.shown, b.attention.shown
        if mine.shape == theirs.shape and not torch.equal(mine, theirs):
            found += _masked(a, b, [x.attention.weights.shape[-2] for x in calls])
            continue
        known = {f.name for f in b.findings}
        late = next((x for x in calls if x.attention.weights.shape[-1] > 1), None)
        new = late.findings if late is not None else ()
        found += [f for f in new if f.kind == "mistake" and f.name not in known]
        apart = pair(a, b, steps, whole, same, first=False)
        found += [_in_steps(f) for f in apart if not (moved and f.name.startswith(PROJECTIONS))]
    return list(merged(found))


def _masked(a: Judged, b: Judged, calls: Sequence[int]) -> list[Finding]:
    """Keys that steps see otherwise than the whole pass."""
    mine, theirs, where = a.attention.shown, b.attention.shown, b.where
    intent = b.intent
    if intent is not None and torch.equal(mine, intent.allowed):
        return []  # it is the whole pass that is wrong
    at, text = counterexample(mine, theirs)
    if intent is not None and torch.equal(mine, _restarted(intent, calls)):
        said = "the mask is aligned top-left: in each step, query 0 stands at key 0"
        return [Finding("mask-top-left", said, where=where)]
    if not bool((mine & ~theirs).any()):
        lost = "keys and values that are still needed are no longer seen"
        return [Finding("cache-overwritten", f"{lost}; {text}", where=where, cell=at)]
    windowed = intent is not None and any(p.name == "window" for p in intent.parts)
    name = "window-off-in-cache" if windowed else "mask-in-cache"
    return [Finding(name, text, where=where, cell=at)]


def _in_steps(f: Finding) -> Finding:
    """One difference, as steps show it."""
    turned = f.name.startswith("rota") or f.name == "scores-other"
    lost = "rotation" if turned else "bias" if f.name.startswith("bias-") else ""
    return replace(f, name=f"{lost}-offset-lost") if lost else f


def _restarted(intent: Intent, calls: Sequence[int]) -> Tensor:
    """Which keys are seen if the causal mask of each step begins at key 0."""
    rows = torch.cat([torch.arange(n) for n in calls])
    out = (torch.arange(intent.sizes[-1]) <= rows[:, None]).expand(intent.sizes)
    for part in (x for x in intent.parts if x.padding):
        out = out & part.allowed
    return out


def _mixed(steps: Examination, whole: Examination) -> bool:
    """Whether an attention of the steps has keys of projections that belong to another layer."""
    layers = {x.where: _projections(x) for x in whole.attentions}
    every = set[str]().union(*layers.values())
    read = ((_projections(x), x.where) for x in steps.attentions)
    return any(len(x) > 1 and not x <= layers.get(at, x) and x & every for x, at in read)


def _projections(x: Judged) -> set[str]:
    """The names of what the keys and values of an attention are made of."""
    return {s.name for o in (x.attention.k, x.attention.v) if o for s in o.sources}


def _first_embedding(steps: Examination, whole: Examination) -> bool:
    """Whether the steps read other rows of an embedding than the whole pass."""
    if steps.run is None or whole.run is None:
        return False
    read = _embedded(steps.run)
    for name, (first, *more) in _embedded(whole.run).items():
        parts = [x for x in read[name] if x.ndim == first.ndim]
        if parts and not more and not torch.equal(torch.cat(parts, -2), first):
            return True
    return False


def _embedded(run: Run) -> dict[str, list[Tensor]]:
    """What embeddings give in a run, by the names of their weights."""
    found = defaultdict[str, list[Tensor]](list)
    for node, x in run.results.items():
        if node.name == "embedding" and x.ndim > 1:
            name = next(filter(None, (run.name_of(v) for _, v in node.views)), "")
            found[name].append(x.detach())
    return found
