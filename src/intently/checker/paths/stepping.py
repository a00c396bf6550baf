"""Step by step with a cache: the same subject, called on pieces of its input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intently.checker.calling.applying import about
from intently.checker.calling.subject import Subject, output_of
from intently.checker.comparing.likeness import Whole
from intently.checker.computing.cores import Examined
from intently.checker.computing.intent import Intent
from intently.checker.paths.slots import misread
from intently.checker.report.finding import Finding

MASKS = ("mask", "causal", "window", "padding")
"""How the names of findings about masks begin."""
PROJECTIONS = ("projection", "weight-transposed")
"""How the names of findings begin that other inputs of an attention bring about."""
CACHES = ("past", "cache", "kv_cache", "past_key_values", "layer_past", "past_key_value", "state")


def stepped(subject: Subject, pieces: tuple[int, ...]) -> Subject | None:
    """The subject called on pieces of its input, each with the cache of the last; None without one.

    A cache is an argument of a known name, and what the call returns beside its output.
    """
    name = _cache_name(subject)
    if name is None or len(subject.of("x", "ids")) != 1:
        return None
    whole = subject.of("x", "ids")[0]

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

    made = replace(subject, call=call, positional=False)
    try:
        with torch.no_grad():
            ran = subject.raw(**{name: None})
    except Exception:
        return None
    return made if cache_of(ran) is not None else None


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
        return getattr(out, "past_key_values", None)
    if isinstance(out, (list, tuple)) and len(out) > 1:
        rest = out[1:]
        return next((x for x in rest if isinstance(x, (list, tuple, dict)) or _is_cache(x)), None)
    return None


def _is_cache(x: Any) -> bool:
    return x is not None and not isinstance(x, (Tensor, int, float, bool))


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


def held_wrongly(steps: Whole, whole: Whole) -> list[Finding]:
    """What caches and positions of steps get wrong, as the products inside read it."""
    if _mixed(steps, whole):
        said = "keys or values come from the cache of another layer"
        return [Finding("cache-layers-exchanged", said)]
    found = list(misread(steps, whole))
    if _first_embedding(steps, whole):
        said = "steps after the first get the positions of the first"
        found.append(Finding("position-offset-lost", said))
    return found


def cache_shifts(steps: Whole, whole: Whole, named: list[Finding]) -> list[Finding]:
    """Differences of cached steps from the whole pass, by the names of what caches get wrong."""
    found = held_wrongly(steps, whole)
    names = {f.name for f in found}
    if "cache-layers-exchanged" in names:
        return found
    if "position-offset-lost" in names:
        named = [f for f in named if not f.name.startswith(PROJECTIONS)]
    told = {f.where for f in found}
    named = [f for f in named if f.where not in told]
    for a, b in zip(steps.cores, whole.cores):
        if a.scores is None or b.scores is None or a.scores.seen.shape != b.scores.seen.shape:
            continue
        mine, theirs = a.scores.seen, b.scores.seen
        if a.where in told or mine.equal(theirs) or _as_intended(a, b):
            continue
        calls = () if a.weights is None else a.weights.calls
        if (
            sum(calls) == mine.shape[-2]
            and b.intent is not None
            and mine.equal(_restarted(b.intent, calls))
        ):
            said = "the mask is aligned top-left: in each step, query 0 stands at key 0"
            return [Finding("mask-top-left", said, where=a.where)]
    for f in named:
        pair = next(
            ((a, b) for a, b in zip(steps.cores, whole.cores) if a.where == f.where), (None, None)
        )
        a, b = pair
        right = a is not None and b is not None and _as_intended(a, b)
        if not (right and f.name.startswith(MASKS)):
            found.append(_in_steps(f, a, b))
    return found


def _as_intended(steps: Examined, whole: Examined) -> bool:
    """Whether the steps see what they should: then it is the whole pass that is wrong."""
    if steps.scores is None or whole.intent is None:
        return False
    allowed = whole.intent.allowed
    return steps.scores.seen.shape == allowed.shape and steps.scores.seen.equal(allowed)


def _in_steps(f: Finding, a: Examined | None, b: Examined | None) -> Finding:
    """One difference, as steps show it."""
    if f.name.startswith("rotat") or f.name in ("rotary-base", "scores-other"):
        if "twice" in f.said:
            return replace(f, name="cache-rotated-twice")
        return replace(f, name="rotation-offset-lost")
    if f.name.startswith("bias-"):
        return replace(f, name="bias-offset-lost")
    if a is None or b is None or a.scores is None or b.scores is None:
        return f
    if not f.name.startswith(MASKS):
        return f
    mine, theirs = a.scores.seen, b.scores.seen
    if mine.shape != theirs.shape:
        return f
    more, less = bool((mine & ~theirs).any()), bool((theirs & ~mine).any())
    if less and not more:
        lost = "keys and values that are still needed are no longer in the cache"
        return replace(f, name="cache-overwritten", said=f"{lost}; {f.said}")
    if more and not less:
        windowed = b.intent is not None and any(p.name == "window" for p in b.intent.parts)
        name = "window-off-in-cache" if windowed else "mask-in-cache"
        return replace(f, name=name)
    return f


def _restarted(intent: Intent, calls: Sequence[int]) -> Tensor:
    """Which keys are seen if the causal mask of each step begins at key 0."""
    out = torch.ones(intent.sizes, dtype=torch.bool)
    for part in intent.parts:
        if part.padding:
            out = out & part.allowed
    rows = torch.cat([torch.arange(n) for n in calls])
    return out & (torch.arange(out.shape[-1]) <= rows[:, None])


def _mixed(steps: Whole, whole: Whole) -> bool:
    """Whether an attention of the steps has keys of projections that belong to several layers.

    One tensor may hold the keys and the values of a layer: values are among its keys then.
    """
    layers = [
        {whole.found.sources[i].weight for i in core.left | core.right | core.values}
        for core in whole.found.cores
    ]
    keys = ({steps.found.sources[i].weight for i in core.right} for core in steps.found.cores)
    return not all(len(own) < 2 or any(own <= layer for layer in layers) for own in keys)


def _first_embedding(steps: Whole, whole: Whole) -> bool:
    """Whether the first operation with parameters that differs is an embedding."""
    for source in whole.found.sources:
        parts = [x.value for x in steps.found.sources if x.weight == source.weight]
        made = [x for x in parts if x.ndim == source.value.ndim]
        if not made or source.operation[0] != "aten::embedding":
            continue
        joined = torch.cat(made, -2)
        if joined.shape != source.value.shape or not torch.equal(joined, source.value):
            return True
    return False
