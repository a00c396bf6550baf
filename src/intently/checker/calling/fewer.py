"""The same subject with fewer inputs: without optional masks, without an optional context."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import replace

from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.judging.sides import about

OF_PADDING = ("padding-attended", "lengths-off-by-one", "padding-side")
"""Mistakes in padding that hold whatever else is hidden."""


def without_masks(subject: Subject) -> Subject | None:
    """The subject without the masks that may be left out; None if there are none."""
    optional = _optional(subject)
    return _without(subject, [n for n in subject.of("mask") if n in optional])


def without_context(subject: Subject) -> Subject | None:
    """The subject that attends to itself, where a mask of its context is about itself as well.

    None if it needs a context, or if its masks are of other lengths.
    """
    optional, x = _optional(subject), subject.inputs[subject.main]
    names = [n for n in subject.of("context") if n in optional]
    if len(names) != 1 or subject.is_tokens or x.shape[1] != subject.inputs[names[0]].shape[1]:
        return None
    masks = [
        n for n in subject.of("mask") if subject.meanings.get(n) in ("attend", "ignore", "lengths")
    ]
    if not masks or any("self" not in about(subject, n) for n in masks):
        return None
    return _without(subject, names)


def _optional(subject: Subject) -> Collection[str]:
    """The inputs that are None by default."""
    if subject.module is None or subject.positional:
        return ()
    try:
        known = inspect.signature(subject.module.forward).parameters
    except (TypeError, ValueError):
        return ()
    return [
        n
        for n, x in subject.inputs.items()
        if isinstance(x, Tensor) and n in known and known[n].default is None
    ]


def _without(subject: Subject, names: Collection[str]) -> Subject | None:
    if not names:
        return None
    inputs, roles, meanings = (
        {n: x for n, x in held.items() if n not in names}
        for held in (subject.inputs, subject.roles, subject.meanings)
    )
    return replace(subject, inputs=inputs, roles=roles, meanings=meanings)
