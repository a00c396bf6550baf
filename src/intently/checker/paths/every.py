"""Other ways to the same numbers: settings, returned weights, training, a cache in steps.

Each is a variant of the subject whose output must equal that of the plain call. Where it does not,
both are examined inside, and what differs there is the mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Subject, raised
from intently.checker.calling.understanding import (
    OF_PADDING,
    duplicate,
    without_context,
    without_masks,
)
from intently.checker.comparing.likeness import Inside, in_one, parted, with_matrices
from intently.checker.examined import Examination
from intently.checker.paths.stepping import differences, stepped
from intently.checker.properties.back_ends import autocast, kernels, within
from intently.checker.properties.derivatives import gradients, gradients_apart
from intently.checker.properties.trial import Property, Trial, first_place, named, part
from intently.checker.properties.wiring import WithoutDropout
from intently.checker.report.finding import Finding, Kind

Same = Mapping[str, Any] | Callable[[Any], Any]
"""What must not matter: arguments, or a change of the whole, such as `torch.compile`."""
RETURNS = (
    *("need_weights", "output_attentions", "return_attn", "return_weights", "return_attention"),
    *("return_attention_scores", "average_attn_weights", "with_weights"),
)
"""Arguments that ask for weights beside the output."""

HELD = {"softcap-missing": "softcap", "softcap-other": "softcap", "sinks-missing": "sinks"}
HELD |= {"sink": "sinks", "mask-missing": "mask", "mask-other": "mask", "padding-attended": "mask"}
HELD |= {x: "bias" for x in ("bias-missing", "bias-other", "bias-slopes", "bias-scaled")}
"""What a path lacks, by the name of the finding."""

SYMPTOMS = {"a cache": "cached-step-differs", "a setting": "setting-matters"}
"""What is wrong with a kind of path, where nothing inside tells more."""
RANDOM = "two equal calls differ"
PLAIN = (Tensor, bool, int, float, str, type(None), torch.dtype)
"""Types of inputs that no call changes."""


# How the names of differences begin that training has no right to make.
INSIDE = ("mask", "causal", "window", "padding", "scale", "no-scale", "softcap", "bias", "sink")


@dataclass(frozen=True)
class Path:
    """One way: what it is called, the subject that takes it, and what it is about."""

    said: str
    subject: Subject
    kind: str
    most: float = 0.0
    """The largest difference that is rounding; 0: that of the precision of the subject."""


def compared(
    trial: Trial, whole: Examination, inside: Inside, same: Sequence[Same]
) -> Iterator[tuple[Property, list[Finding]]]:
    """Each path of a subject: whether its output is the same, and what differs inside."""
    told: set[tuple[str, str]] = set()
    steps: list[bool] = []
    for path in _paths(whole, trial, same):
        held, found = _one(path, trial, whole, inside, told)
        told |= {(f.name, f.where) for f in found}
        if path.kind == "a cache":
            steps.append(held.holds is True)
        yield held, found
    if steps:
        yield from _beams(trial, all(steps))
    yield from _with_fewer(trial, whole, inside, told)


def _with_fewer(
    trial: Trial, whole: Examination, inside: Inside, told: set[tuple[str, str]]
) -> Iterator[tuple[Property, list[Finding]]]:
    """Steps of a cache where no mask is given, and padding where no context is."""
    alone, said = without_context(whole.subject), "without a context"
    if alone is not None:
        found = [f for f in inside(alone).findings if f.kind == "mistake" and f.name in OF_PADDING]
        found = [replace(f, said=f"{said}: {f.said}") for f in found]
        yield Property(said, not found, found[0].said if found else ""), found
    bare = without_masks(whole.subject)
    made = None if bare is None else stepped(bare, (1,) * bare.inputs[bare.main].shape[1])
    if bare is None or made is None:
        return
    path = Path("without a mask and with a cache, in steps of 1", made, "a cache")
    with torch.no_grad():
        plain = replace(trial, subject=bare, first=bare.output())
        off = part(made.output(), plain.first)
    held: tuple[Property, list[Finding]] = Property(path.said, True), []
    yield held if off <= 10 * trial.same else _one(path, plain, inside(bare), inside, told)


def _one(
    path: Path, trial: Trial, whole: Examination, inside: Inside, told: set[tuple[str, str]]
) -> tuple[Property, list[Finding]]:
    """One path, where ``told`` (name, place) was found on those before."""
    try:
        with torch.no_grad():
            y = trial.read(path.subject.output())
    except Exception as error:  # whatever the code does on this path
        return Property(path.said, None, f"raises {raised(error)}"), []
    if path.kind == "weights" and y.shape != trial.first.shape:
        return Property(path.said, None, "it returns something else"), []
    if path.kind == "autocast" and bool((trial.first.isfinite() & ~y.isfinite()).any()):
        said = f"{path.said}, the output is not finite"
        return Property(path.said, False, said), [Finding("half-overflow", said, "hazard")]
    off, same, cached = part(y, trial.first), path.most or 10 * trial.same, path.kind == "a cache"
    with torch.no_grad():
        left = _again(path, trial, y)
    if left:
        found = [] if left == RANDOM else [Finding("state-left", left)]
        return Property(path.said, False if found else None, left), found
    if off <= same:
        one = None if path.most else gradients_apart(path.subject, trial)
        if one is None:
            return Property(path.said, True), []
        one = replace(one, said=f"{path.said}, {one.said}", kind="hazard" if cached else one.kind)
        return Property(path.said, False, one.said), [one]
    said = f"{path.said}, the output differs by {off:.2g}{first_place(trial, y, same)}"
    found: list[Finding] = []
    with suppress(Exception):  # what cannot be followed inside is still wrong outside
        other = inside(path.subject)
        apart = _apart(path, other, whole, same)
        found = [replace(f, said=f"{path.said}: {f.said}") for f in apart]
        found = with_matrices(found, in_one(other, whole), whole)
    if path.kind == "training":  # losses, and dropout of their own, differ in training
        found = [f for f in found if f.name.startswith(INSIDE)]
        if not found:
            return Property(path.said, None, said), []
    if cached and not any(name.startswith("gradient") for name, _ in told):
        more = named("gradients", gradients(replace(trial, subject=path.subject, first=y)))
        found += [replace(f, said=f"{path.said}, {f.said}", kind="hazard") for f in more.findings]
    if path.most and not found and off < 4 * path.most:
        return Property(path.said, None, f"{said}, which may be rounding"), []
    kind: Kind = "hazard" if path.most else "mistake"  # a small difference may decide much
    return Property(path.said, False, said), found or [
        Finding(SYMPTOMS.get(path.kind, "paths-differ"), said, kind)
    ]


def _apart(path: Path, other: Examination, whole: Examination, same: float) -> list[Finding]:
    """What differs inside on a path, by name, and by what the path lacks."""
    if path.kind == "a cache" or len(other.attentions) > len(whole.attentions):
        return differences(other, whole, same)
    plain = {(f.name, f.where) for f in whole.findings}
    wrong = [f for f in other.findings if f.kind == "mistake" and (f.name, f.where) not in plain]
    found = wrong if path.kind == "a setting" else []
    return [in_one_path(f) for f in found or parted(other, whole, same)]


def _again(path: Path, trial: Trial, y: Tensor) -> str:
    """What is wrong if a path is taken again, in words; "" if it gives the same."""
    subject, same = path.subject, 10 * trial.same
    off = part(trial.read(subject.output()), y)
    if off > same:
        passed = any(not isinstance(x, PLAIN) for x in subject.inputs.values())
        if path.kind == "training" or _random(subject, same) or passed:
            return RANDOM  # a cache that was passed, say, goes on
        return f"{path.said}, the second call differs by {off:.2g}: state is left behind"
    off = part(trial.read(trial.output()), trial.first)
    said = f"after a call {path.said}, the plain call differs by {off:.2g}: state is left behind"
    return said if off > same and path.kind != "training" else ""


def _random(subject: Subject, same: float) -> bool:
    """Whether the output depends on the seed, and on nothing that earlier calls left."""
    made = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made.append(subject.output())
    return part(made[1], made[0]) <= same < part(made[2], made[0])


def in_one_path(found: Finding) -> Finding:
    """A finding of one path only, by what that path lacks."""
    lacks = HELD.get(found.name)
    return replace(found, name=f"{lacks}-in-one-path") if lacks else found


# --- the paths ----------------------------------------------------------------------------------


def _paths(whole: Examination, trial: Trial, same: Sequence[Same]) -> Iterator[Path]:
    subject = whole.subject
    for change in (x for x in same if callable(x)):
        inner = change.func if isinstance(change, partial) else change
        name = str(getattr(inner, "__qualname__", type(inner).__name__))
        yield Path(f"after {name}", replace(subject, call=change(subject.call)), "a setting")
    settings = [(x, "a setting") for x in same if not callable(x)]
    stated = {n for setting, _ in settings for n in setting}
    settings += [({n: x}, "weights") for n, x in _asking(subject) if n not in stated]
    for setting, kind in settings:
        said = "with " + ", ".join(f"{n}={_brief(x)}" for n, x in setting.items())
        yield Path(said, replace(subject, inputs={**subject.inputs, **setting}), kind)
    for said, other in kernels(subject, whole):
        yield Path(said, other, "a kernel")
    cast = autocast(trial)
    if cast is not None:
        yield Path("under autocast to bfloat16", cast[0], "autocast", most=cast[1])
    training = _training(subject)
    if training is not None:
        yield Path("in training mode without dropout", training, "training")
    t = trial.subject.inputs[trial.subject.main].shape[1:2].numel()
    for pieces in ((1,) * t, (t - 2, 1, 1), (t - 3, 3)) if t > 3 else ():
        made = stepped(subject, pieces)
        if made is None:
            return
        steps = ", ".join(map(str, dict.fromkeys(pieces)))
        yield Path(f"with a cache, in steps of {steps}", made, "a cache")


def _brief(x: Any) -> str:
    return f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)


def _asking(subject: Subject) -> Iterator[tuple[str, bool]]:
    """Arguments of a module that ask for weights, with the other value than their default."""
    if subject.module is None or subject.positional:
        return
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(subject.module.forward).parameters
        known = ((n, parameters[n].default) for n in RETURNS if n in parameters)
        now = ((n, subject.inputs.get(n, default)) for n, default in known)
        yield from ((n, not x) for n, x in now if x is None or isinstance(x, bool))


def _training(subject: Subject) -> Subject | None:
    """The subject in training mode, without dropout; None if the modes are the same to it."""
    module = subject.module
    if module is None or any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()
    ):
        return None
    with suppress(Exception):  # what cannot be copied is left alone
        made = duplicate(module, True)
        return within(replace(subject, call=made, owner=made, module=None), WithoutDropout)
    return None


# --- beam search: the cache has to follow the beams ----------------------------------------------

BEAMS, STEPS = 3, 4


def _beams(trial: Trial, steps_hold: bool) -> Iterator[tuple[Property, list[Finding]]]:
    """A beam search finds sequences of the same scores with a cache as without.

    Where the steps of the cache are right, what is wrong is how its rows follow the beams.
    """
    name, subject = "beam search with a cache", trial.subject
    module: Any = subject.module
    options = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "do_sample": False}
    options |= {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "output_scores": True}

    def scores(use_cache: bool, **given: Any) -> Tensor:
        given |= {**options, "use_cache": use_cache, "return_dict_in_generate": True}
        return module.generate(**given).sequences_scores

    try:
        if subject.call is not module or not module.can_generate():
            return
        with torch.no_grad():
            ways = (partial(scores, x) for x in (True, False))
            cached, plain = (replace(subject, call=x).output() for x in ways)
        off = float(((cached - plain).abs() / plain.abs().clamp(min=1e-6)).max())
    except Exception:  # models that do not generate, or not from these inputs
        return
    if off <= 10 * trial.same:
        yield Property(name, True), []
        return
    said = f"the scores of {BEAMS} beams after {STEPS} steps differ by {off:.2g} from those without"
    slug = "cache-rows-exchanged" if steps_hold else "cached-step-differs"
    yield Property(name, False, said), [Finding(slug, said)]
