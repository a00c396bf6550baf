"""Examine something that attends: what it computes, whether that is right, and if not, why."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from intently.checker.calling.subject import Subject, raised
from intently.checker.calling.understanding import understood
from intently.checker.comparing.alongside import against
from intently.checker.examined import Examination, Intention, examined
from intently.checker.paths.every import Same, compared, in_one_path
from intently.checker.properties.every import tried
from intently.checker.properties.numbers import corrected, half_types, large_scores, with_more_keys
from intently.checker.properties.trial import Property, Trial, part
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

FOLLOWS = SYMPTOMS | {"projection-other"}
"""Findings of cached steps that a leak beside the attention explains."""

APART = ("view", "scale", "no-scale", "other-scale", "bias", "gradient", "rounded", "rota")
"""How mistakes begin that move no influence from one position to another: they explain no leak."""

RETURNS = ("output", "scores", "weights")


def check(
    subject: Any,
    *,
    mask: Mask | Mapping[str, Mask] | None = None,
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    layout: str | None = None,
    like: Any = None,
    inputs: Mapping[str, Any] | None = None,
    arguments: Mapping[str, str] | None = None,
    same: Sequence[Same] = (),
    returns: Literal["output", "scores", "weights"] | None = None,
    layers: str | Sequence[str] | None = None,
) -> Report:
    """Report what an attention computes, and name any mistake.

    ``subject`` is a function or a module, ours or anybody's, of PyTorch, NumPy, JAX or Keras; it is
    not changed. ``mask``, ``bias`` and ``scale`` are the intent, in the values of `attend`; what is
    not stated is inferred, and said so. A mask is meant for the self-attention, of a decoder where
    there is one; a mapping from patterns of module names to masks states others. ``layout`` names
    the axes of the inputs, ``"tbc"`` or ``"bthd"``, where they are not (b, t, c) or (b, h, t, d);
    ``returns`` says that the subject returns ``"scores"`` or ``"weights"``. ``layers`` are patterns
    of the names of modules: others are left out.
    ``like`` is a reference that should compute the same from the same weights: the report says
    where the two part and by which difference, and what both do is no mistake. If their weights
    differ, those of the reference are used where names or shapes tell which belongs to which.
    ``inputs`` is an example call; ``arguments`` says what an argument means: ``"attend"`` or
    ``"ignore"`` for what True means in a mask, ``"lengths"``, ``"add"``. ``same`` lists what must
    not change the output: settings, such as ``{"need_weights": True}``, and functions that return
    the subject in another form, such as `torch.compile`. ``Report.ok`` is None where something was
    not measured. Raises `ArgumentError` if the subject cannot be called or examined.

    >>> import intently as it
    >>> def mine(q, k, v):
    ...     return (q @ k.mT).softmax(-1) @ v
    >>> it.check(mine).mistakes[0].name
    'no-scale'
    """
    patterns: Any = layers if isinstance(layers, (list, tuple, type(None))) else (layers,)
    meant = Intention(_masks(mask), bias, scale, patterns)
    if isinstance(same, (str, Mapping)) or not all(
        isinstance(x, Mapping) or callable(x) for x in same
    ):
        expected = "a list of settings, such as [{'need_weights': True}]"
        raise build(ArgumentError, "same", expected, repr(same))
    if like is not None and not callable(like):
        raise build(ArgumentError, "like", "a function or a module", type(like).__name__)
    if returns not in (None, *RETURNS):
        raise build(ArgumentError, "returns", "one of " + ", ".join(RETURNS), repr(returns))
    if not isinstance(scale, (int, float, type(None))) or isinstance(scale, bool):
        raise build(ArgumentError, "scale", "a number, such as 8**-0.5", repr(scale))
    if not all(isinstance(x, str) for x in meant.layers or ()):
        raise build(ArgumentError, "layers", "patterns of names of modules", repr(layers))
    with _one_thread(), _own_randomness(), _in_words():
        seen = understood(subject, inputs, arguments, layout, returns or "output")
        report, whole = _checked(seen, meant, same, stated=inputs is not None)
        return report if like is None else against(report, whole, like, meant)


def _masks(mask: Any) -> Mask | dict[str, Mask] | None:
    if mask is None or not isinstance(mask, Mapping):
        return None if mask is None else as_mask(mask)
    return {str(n): as_mask(x) for n, x in mask.items()}


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
    seen: Subject, meant: Intention, same: Sequence[Same], *, stated: bool
) -> tuple[Report, Examination]:
    whole = examined(seen, meant)
    findings, seen = list(whole.findings), whole.subject
    with torch.no_grad():
        first = seen.output()
    plainly = whole.made
    if plainly is None or seen.returns != "output" or plainly.shape != first.shape:
        plainly = first
    if part(plainly.detach(), first) > 1e4 * seen.precision.same:  # fused kernels differ
        findings = [in_one_path(f) for f in findings]
    if seen.raising:
        said = f"every call raises at {seen.raising}: its strides allow no view; as a reshape it"
        findings.insert(0, Finding("view-raises", f"{said} gives what follows"))
    trial = Trial(seen, whole.causal, first, whole)
    properties = list(tried(trial))
    steady = next(p for p in properties if p.name == "deterministic").holds
    if steady is False:
        findings = []
    if steady:
        properties.append(large_scores(whole))
        leaks = _leaks(properties, findings)
        try:
            for held, found in compared(trial, whole, lambda x: examined(x, meant), same):
                properties.append(held)
                findings += _new([f for f in found if not (leaks and f.name in FOLLOWS)], findings)
        except Exception as error:  # whatever the code does when it is asked for its settings
            properties.append(Property("other paths", None, f"raises {raised(error)}"))
        with torch.no_grad():
            properties += half_types(whole, first)
    for p in properties:
        told = {f.name for f in findings}
        new = [f for f in p.findings if f.name not in told]
        if whole.unmeasured:  # which axis is which is not known for sure
            new = [replace(f, kind="hazard") if f.name in SYMPTOMS else f for f in new]
        guess = any(f.name in SYMPTOMS for f in new)
        if not (guess and _mistaken(findings)) or p.name == "causal before the attention":
            findings += [by_design(f, seen.owner, None) for f in new]
    longer = None if stated else with_more_keys(seen, meant.mask)
    if longer is not None:
        with suppress(Exception):  # code that takes as many keys as queries only
            findings = corrected(findings, list(examined(longer, meant).findings))
    report = Report(
        seen.told,
        tuple(x.said for x in whole.attentions),
        merged(findings),
        tuple(properties),
        _named(seen.owner),
        whole.unmeasured,
    )
    return report, whole


def _leaks(properties: list[Property], findings: list[Finding]) -> bool:
    """Whether later inputs leak beside the attention: then no cached step is as the whole pass."""
    leaking = {p.name for p in properties for f in p.findings if f.name == "leak-later"}
    beside = "causal before the attention" in leaking
    return beside or (bool(leaking) and not _mistaken(findings))


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
