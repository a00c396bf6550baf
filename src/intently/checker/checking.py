"""Examine something that attends: what it computes, whether that is right, and if not, why."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.calling.understanding import understood
from intently.checker.comparing.alongside import against
from intently.checker.comparing.likeness import Whole
from intently.checker.computing.cores import Examined, examined
from intently.checker.computing.intent import Unfit, dense_mask
from intently.checker.computing.tracing import Found
from intently.checker.paths.every import Same, compared
from intently.checker.properties.entering import BESIDE
from intently.checker.properties.every import EXCHANGED, Property, Trial, by_position, tried
from intently.checker.properties.half_types import half_types
from intently.checker.properties.large import large_scores
from intently.checker.properties.more_keys import corrected, with_more_keys
from intently.checker.report.by_design import by_design
from intently.checker.report.finding import Finding, merged
from intently.checker.report.report import Report
from intently.core.biases import Bias
from intently.core.masks import Mask, as_mask
from intently.errors import ArgumentError, IntentlyError, build

SYMPTOMS = frozenset(
    (
        "leak-later",
        "padding-attended",
        "setting-matters",
        "paths-differ",
        "batch-mixed",
        "cached-step-differs",
    )
)
"""Findings of properties that a mistake found inside explains."""

GUESSES = ("finite", "inputs matter")
"""Properties whose findings are guesses, next to what was measured."""

OTHER_AXES = (EXCHANGED, "softmax-over-")
"""How findings begin without which no mask could be read."""

FOLLOWS = SYMPTOMS | {"projection-other"}
"""Findings of cached steps that a leak beside the attention explains."""

APART = (
    "view",
    "scale",
    "no-scale",
    "other-scale",
    "bias",
    "gradient",
    "rounded",
    "rota",
    "dropout",
)
"""How mistakes begin that move no influence from one position to another: they explain no leak."""


def check(
    subject: Any,
    *,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    like: Any = None,
    inputs: Mapping[str, Any] | None = None,
    arguments: Mapping[str, str] | None = None,
    same: Sequence[Same] = (),
) -> Report:
    """Report what an attention computes, and name any mistake.

    ``subject`` is a function or a module, ours or anybody's; it is not changed. ``mask`` and
    ``bias`` are the intent, in the values of `attend`; what is not stated is inferred, and said so.
    ``like`` is a reference that should compute the same from the same weights: the report says
    where the two part and by which difference, and what both do is no mistake. If their weights
    differ, those of the reference are used where names or shapes tell which belongs to which.
    ``inputs`` is an example call; ``arguments`` says what an argument means: ``"attend"`` or
    ``"ignore"`` for what True means in a mask, ``"lengths"``, ``"add"``. ``same`` lists what must
    not change the output: settings, such as ``{"need_weights": True}``, and functions that return
    the subject in another form, such as `torch.compile`. Raises `ArgumentError` if the subject
    cannot be called or examined.

    >>> import intently as it
    >>> def mine(q, k, v):
    ...     return (q @ k.mT).softmax(-1) @ v
    >>> it.check(mine).mistakes[0].name
    'no-scale'
    """
    mask = None if mask is None else as_mask(mask)
    if isinstance(same, (str, Mapping)) or not all(
        isinstance(x, Mapping) or callable(x) for x in same
    ):
        expected = "a list of settings, such as [{'need_weights': True}]"
        raise build(ArgumentError, "same", expected, repr(same))
    if like is not None and not callable(like):
        raise build(ArgumentError, "like", "a function or a module", type(like).__name__)
    with _one_thread(), _own_randomness(), _in_words():
        seen = understood(subject, inputs, arguments)
        report, cores = _checked(seen, mask, bias, same, stated=inputs is not None)
        if like is None:
            return report
        return against(report, seen, cores, like, lambda x: _inside(x, mask, bias))


@contextmanager
def _in_words() -> Iterator[None]:
    """Raise `ArgumentError` for whatever else the code of a subject raises, at any moment."""
    try:
        yield
    except (IntentlyError, MemoryError):
        raise
    except Exception as error:
        got = f"one that raises {type(error).__name__}: {error}"
        fix = "pass an adapter: lambda x: mine(x)"
        expected = "a subject that can be examined"
        raise build(ArgumentError, "subject", expected, got, fix=fix) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Thousands of small calls are faster on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Whatever code seeds or draws, the random numbers of the caller go on as they were."""
    known = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(known[0])
            np.random.set_state(known[1])


def _checked(
    seen: Subject,
    mask: Mask | None,
    bias: Bias | Tensor | None,
    same: Sequence[Same],
    *,
    stated: bool,
) -> tuple[Report, list[Examined]]:
    with torch.no_grad():
        first = seen.output()
    cores, findings = _inside(seen, mask, bias)
    if seen.raising:
        said = f"every call raises at {seen.raising}: its strides allow no view; as a reshape it"
        findings.insert(0, Finding("view-raises", f"{said} gives what follows"))
    unknown = all(x.intent is None for x in cores)
    causal = any(map(_is_causal, cores)) or (unknown and _hides_later(mask, seen.batch, first))
    trial = Trial(seen, causal, first, seen.precision.same)
    properties = list(tried(trial))
    steady = next(p for p in properties if p.name == "deterministic").holds
    if steady is False:
        findings = []
    if steady:
        properties.append(large_scores(cores))
        run = Found()
        with suppress(Exception):  # code that refuses to be followed
            run = seen.traced()
        whole = Whole(seen, run, cores)
        leaks = _leaks(properties, findings)
        for held, found in compared(trial, whole, lambda x: _inside(x, mask, bias), same):
            properties.append(held)
            findings += _new([f for f in found if not (leaks and f.name in FOLLOWS)], findings)
        with torch.no_grad():
            properties += half_types(whole, first)
    for p in properties:
        told = {f.name for f in findings}
        new = [f for f in p.findings if f.name not in told]
        if any(f.name.startswith(OTHER_AXES) for f in new):
            findings = [f for f in findings if not _about_masks(f)]
        guess = p.name in GUESSES or any(f.name in SYMPTOMS for f in new)
        if p.name == BESIDE or not (guess and _mistaken(findings)):
            findings += [by_design(f, seen.owner, None) for f in new]
    longer = with_more_keys(seen, mask) if mask is not None and not stated else None
    if longer is not None:
        with suppress(Exception):  # code that takes as many keys as queries only
            findings = corrected(findings, _inside(longer, mask, bias)[1])
    if not any(f.kind == "mistake" for f in findings):
        findings += _nan_with_keys(mask, seen, first)
    computes = tuple(x.said for x in cores)
    report = Report(seen.told, computes, merged(findings), tuple(properties), _named(seen.owner))
    return report, cores


def _inside(
    subject: Subject, mask: Mask | None, bias: Bias | Tensor | None
) -> tuple[list[Examined], list[Finding]]:
    """Each attention inside, and what is wrong with it."""
    cores = examined(subject, mask, bias)
    return cores, [f for x in cores for f in x.findings]


def _is_causal(x: Examined) -> bool:
    if x.intent is None:
        return False
    t, s = x.intent.sizes[2:]
    return min(t, s) > 1 and not bool(x.intent.by_position.triu(1 + s - t).any())


def _hides_later(mask: Mask | None, b: int, y: Tensor) -> bool:
    """Whether a stated mask allows no later key to any query of an output."""
    seen = _of_outputs(mask, b, y)
    return seen is not None and seen.shape[-1] > 1 and not bool(seen.triu(1).any())


def _of_outputs(mask: Mask | None, b: int, y: Tensor) -> Tensor | None:
    """A stated mask (b, 1, t, t) over the positions of an output; None for one of other lengths."""
    t = by_position(y).shape[1]
    try:
        return None if mask is None else dense_mask(mask, (b, 1, t, t))
    except Unfit:  # it is about an attention inside
        return None


def _leaks(properties: list[Property], findings: list[Finding]) -> bool:
    """Whether later inputs leak beside the attention: then no cached step is as the whole pass."""
    leaking = {p.name for p in properties for f in p.findings if f.name == "leak-later"}
    return BESIDE in leaking or (bool(leaking) and not _mistaken(findings))


def _about_masks(f: Finding) -> bool:
    """Whether a finding says which keys have weight, or how much in all."""
    begins = ("mask", "causal", "window", "padding", "lengths", "not-normalised")
    return f.name.startswith(begins)


def _nan_with_keys(mask: Mask | None, seen: Subject, first: Tensor) -> list[Finding]:
    """Outputs that are NaN although the stated mask leaves keys, and no argument hides any."""
    y = by_position(first)
    stated = None if seen.of("mask") else _of_outputs(mask, len(y), first)
    if stated is None or not bool(first.isnan().any()):
        return []
    keys = stated.any(-1)[:, 0]
    bad = y.isnan().any(-1) & keys
    if not bool(bad.any()):
        return []
    row, i = bad.nonzero()[0].tolist()
    said = f"output {i} of batch row {row} is NaN, and its query has keys"
    return [Finding("nan-with-keys", said)]


def _mistaken(findings: list[Finding]) -> bool:
    return any(f.kind == "mistake" and not f.name.startswith(APART) for f in findings)


def _new(found: list[Finding], known: list[Finding]) -> list[Finding]:
    """Findings of a path that the plain call has not."""
    names = {(f.name, f.where) for f in known}
    return [
        f
        for f in found
        if (f.name, f.where) not in names and not (f.name in SYMPTOMS and _mistaken(known))
    ]


def _named(subject: Any) -> str:
    """What a subject is called: a function by its name, an object by that of its class."""
    name = getattr(subject, "__name__", type(subject).__name__)
    return "attention" if name == "<lambda>" else str(name)
