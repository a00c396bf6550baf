"""Which attention a stated mask or a mask argument is about: self, cross, or an encoder's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from intently.checker.calling.naming import READ_BY
from intently.checker.calling.subject import Subject
from intently.checker.computing.tracing import Found

Side = Literal["self", "cross", "encoder"]

PREFIXES: dict[str, frozenset[Side]] = {
    "memory": frozenset(("cross",)),
    "encoder": frozenset(("cross",)),
    "context": frozenset(("cross",)),
    "cross": frozenset(("cross",)),
    "src": frozenset(("encoder",)),
    "tgt": frozenset(("self",)),
    "target": frozenset(("self",)),
    "decoder": frozenset(("self",)),
}
"""How the name of a mask begins, and the attention it is about, beside a decoder."""


def sides(
    subject: Subject, found: Found, other: Callable[[Any], Any]
) -> Callable[[Sequence[int], Sequence[int]], Side]:
    """Tells, of the sources of queries and keys, whether they come from the main input."""
    if not subject.of("context"):
        return lambda q, k: "self"
    main = subject.main
    again = subject.traced(**{main: other(subject.inputs[main])})
    if len(again.sources) != len(found.sources):
        return lambda q, k: "self"
    moved = [
        a.value.shape != b.value.shape or not torch.equal(a.value, b.value)
        for a, b in zip(found.sources, again.sources)
    ]

    def side(q: Sequence[int], k: Sequence[int]) -> Side:
        if any(moved[i] for i in k):
            return "self"
        return "cross" if any(moved[i] for i in q) else "encoder"

    return side


def about(subject: Subject, name: str) -> frozenset[Side]:
    """The attention that a mask argument is about, by its name and by what is beside it."""
    every: frozenset[Side] = frozenset(("self", "cross", "encoder"))
    if not subject.of("context"):
        return every
    reader = any(n in READ_BY for n in subject.inputs)
    for prefix, found in PREFIXES.items():
        if name.startswith(prefix):
            return found if reader or prefix != "src" else every
    return frozenset(("encoder", "cross")) if reader else every
