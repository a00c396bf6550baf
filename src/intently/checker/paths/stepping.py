"""Step by step with a cache: the same subject, called on pieces of its input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from intently.checker.calling.changes import another
from intently.checker.calling.naming import parameters_named
from intently.checker.calling.subject import Subject, output_of
from intently.checker.comparing.likeness import joined, pair
from intently.checker.examined import Examination
from intently.checker.judging.intent import Intent
from intently.checker.judging.judged import Judged
from intently.checker.judging.masks import counterexample
from intently.checker.judging.sides import about
from intently.checker.paths.slots import misread
from intently.checker.report.finding import Finding

PROJECTIONS = ("projection", "weight-transposed")
"""How the names of findings begin that other inputs of an attention bring about."""
ASKING = ("use_cache", "return_cache", "return_past", "return_kv", "cached")
"""Arguments that ask for the cache."""
STARTS = ("start_pos", "start", "offset", "input_pos", "n_past", "past_length")
"""Arguments that say at which position a piece starts, of a module that holds its cache itself."""
CACHES = ("past", "cache", "kv_cache", "past_key_values", "layer_past", "past_key_value", "state")


def stepped(subject: Subject, pieces: tuple[int, ...]) -> Subject | None:
    """The subject called on pieces of its input, each with the cache of the last; None without one.

    A cache is an argument of a known name, and what the call returns beside its output.
    """
    if len(subject.of("x", "ids")) != 1:
        return None
    whole = subject.of("x", "ids")[0]
    start = next((n for n in STARTS if type(subject.inputs.get(n)) is int), None)
    if start is not None and subject.inputs[start] == 0 and _keeps(subject):
        return replace(subject, call=_from_positions(subject, whole, start, pieces))
    name = _cache_name(subject)
    if name is None or subject.inputs.get(name) is not None:
        return None

    def call(**given: Any) -> Tensor:
        x, past, out = given.pop(whole), None, []
        own = {m: y for m, y in given.items() if _goes_on(subject, m)}
        start = 0
        for n in pieces:
            known = {m: _so_far(y, start, start + n, x.shape[1]) for m, y in own.items()}
            known = {m: known.get(m, y) for m, y in given.items()}
            piece = {**known, whole: x[:, start : start + n], name: past}
            made = subject.call(**piece)
            out.append(output_of(made))
            past = cache_of(made)
            start += n
        return torch.cat(out, 1)

    for asked in ({}, {_asks(subject): True}):
        subject = replace(subject, inputs={**subject.inputs, **asked})
        try:
            with torch.no_grad():
                ran = subject.raw(**{name: None})
        except Exception:
            return None
        if cache_of(ran) is not None:
            return replace(subject, call=call, positional=False)
        if not _asks(subject):
            break
    return None


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


def _from_positions(
    subject: Subject, whole: str, start: str, pieces: tuple[int, ...]
) -> Callable[..., Tensor]:
    def call(**given: Any) -> Tensor:
        out, at = [], 0
        for n in pieces:
            made = subject.call(**{**given, whole: given[whole][:, at : at + n], start: at})
            out.append(output_of(made))
            at += n
        return torch.cat(out, 1)

    return call


def _asks(subject: Subject) -> str:
    """The argument that asks for the cache, "" if there is none."""
    return next((n for n in ASKING if n in parameters_named(subject.owner)), "")


def _goes_on(subject: Subject, name: str) -> bool:
    """Whether an input is as long as the text so far: not the context, nor its mask."""
    if subject.roles.get(name) == "context":
        return False
    return (
        not subject.of("context")
        or subject.roles.get(name) != "mask"
        or "self" in about(subject, name)
    )


def _so_far(x: Any, start: int, stop: int, t: int) -> Any:
    """A mask of the whole text as a step has it: its keys so far, its own queries."""
    if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[-1] != t or x.is_floating_point():
        return x
    x = x[..., :stop]
    return x[..., start:stop, :] if x.ndim > 2 and x.shape[-2] == t else x


def cache_of(out: Any) -> Any:
    """What a call returns for the next one, None if nothing."""
    if isinstance(out, Mapping) or hasattr(out, "past_key_values"):
        held = getattr(out, "past_key_values", None)
        return held if _is_cache(held) else None
    if isinstance(out, (list, tuple)) and len(out) > 1:
        rest = out[1:]
        return next((x for x in rest if _is_cache(x)), None)
    return None


def _is_cache(x: Any) -> bool:
    """Whether something may hold keys and values: no numbers, and no container of nothing."""
    if isinstance(x, (list, tuple, dict)):
        return any(isinstance(y, Tensor) or _is_cache(y) for y in tree.tree_leaves(x))
    if isinstance(x, Tensor):
        return x.ndim > 4  # of keys and values together
    return x is not None and not isinstance(x, (int, float, bool))


def _cache_name(subject: Subject) -> str | None:
    said = next((n for n, meaning in subject.meanings.items() if meaning == "past"), None)
    if said is not None:
        return said
    target: Callable[..., Any] = subject.call
    if subject.module is not None and subject.call is subject.module:
        target = subject.module.forward
    try:
        names = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None
    return next((n for n in CACHES if n in names), None)


# --- what goes wrong in steps -------------------------------------------------------------------


def held_wrongly(steps: Examination, whole: Examination) -> list[Finding]:
    """What caches and positions of steps get wrong, as the products inside read it."""
    if _mixed(steps, whole):
        said = "keys or values come from the cache of another layer"
        return [Finding("cache-layers-exchanged", said)]
    found = list(misread(steps, whole))
    if _first_embedding(steps, whole):
        said = "steps after the first get the positions of the first"
        found.append(Finding("position-offset-lost", said))
    return found


def differences(steps: Examination, whole: Examination, same: float) -> list[Finding]:
    """Differences of cached steps from the whole pass, by the names of what caches get wrong."""
    found = held_wrongly(steps, whole)
    told = {f.where for f in found}
    if any(f.name == "cache-layers-exchanged" for f in found):
        return found
    moved = any(f.name == "position-offset-lost" for f in found)
    for b in whole.attentions:
        calls = [x for x in steps.attentions if x.where == b.where]
        if not calls or b.where in told:
            continue
        a = joined(calls, b)
        mine, theirs = a.attention.shown, b.attention.shown
        if mine.shape == theirs.shape and not torch.equal(mine, theirs):
            found += _masked(a, b, [x.attention.weights.shape[-2] for x in calls])
            continue
        late = (x for x in calls if x.attention.weights.shape[-1] > 1)
        for one in late:
            for f in one.findings:
                if f.kind == "mistake" and f.name not in {x.name for x in b.findings}:
                    found.append(f)
            break
        for f in pair(a, b, steps, whole, same, first=False):
            if not (moved and f.name.startswith(PROJECTIONS)):
                found.append(_in_steps(f))
    return merged_once(found)


def merged_once(found: list[Finding]) -> list[Finding]:
    """Each finding once for each place."""
    return list({(f.name, f.where): f for f in reversed(found)}.values())[::-1]


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
    more, less = bool((mine & ~theirs).any()), bool((theirs & ~mine).any())
    if less and not more:
        lost = "keys and values that are still needed are no longer seen"
        return [Finding("cache-overwritten", f"{lost}; {text}", where=where, cell=at)]
    windowed = intent is not None and any(p.name == "window" for p in intent.parts)
    name = "window-off-in-cache" if windowed else "mask-in-cache"
    return [Finding(name, text, where=where, cell=at)]


def _in_steps(f: Finding) -> Finding:
    """One difference, as steps show it."""
    if f.name.startswith("rota") or f.name == "scores-other":
        return replace(f, name="rotation-offset-lost")
    if f.name.startswith("bias-"):
        return replace(f, name="bias-offset-lost")
    return f


def _restarted(intent: Intent, calls: Sequence[int]) -> Tensor:
    """Which keys are seen if the causal mask of each step begins at key 0."""
    out = torch.ones(intent.sizes, dtype=torch.bool)
    for part in intent.parts:
        if part.padding:
            out = out & part.allowed
    rows = torch.cat([torch.arange(n) for n in calls])
    return out & (torch.arange(out.shape[-1]) <= rows[:, None])


def _mixed(steps: Examination, whole: Examination) -> bool:
    """Whether an attention of the steps has keys of projections that belong to another layer."""
    layers = {
        x.where: {s.name for o in (x.attention.k, x.attention.v) if o for s in o.sources}
        for x in whole.attentions
    }
    for x in steps.attentions:
        own = {s.name for o in (x.attention.k, x.attention.v) if o for s in o.sources}
        known = layers.get(x.where, own)
        if len(own) > 1 and not own <= known and own & {n for y in layers.values() for n in y}:
            return True
    return False


def _first_embedding(steps: Examination, whole: Examination) -> bool:
    """Whether the steps read other rows of an embedding than the whole pass."""
    if steps.run is None or whole.run is None:
        return False
    made: list[dict[str, list[Tensor]]] = []
    for run in (steps.run, whole.run):
        found: dict[str, list[Tensor]] = {}
        for node, x in run.results.items():
            if node.name == "embedding" and x.ndim > 1:
                names = [n for _, v in node.views if (n := run.name_of(v))]
                found.setdefault(names[0] if names else "", []).append(x.detach())
        made.append(found)
    for name, (first, *more) in made[1].items():
        parts = [x for x in made[0].get(name, []) if x.ndim == first.ndim]
        if more or not parts:
            continue
        together = torch.cat(parts, -2)
        if together.shape != first.shape or not torch.equal(together, first):
            return True
    return False
