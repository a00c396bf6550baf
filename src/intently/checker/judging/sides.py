"""Which attention a stated mask or a mask argument is about: self, cross, or an encoder's."""

from __future__ import annotations

from typing import Literal

from intently.checker.calling.naming import READ_BY
from intently.checker.calling.subject import Subject
from intently.checker.measuring.attention import Attention

Side = Literal["self", "cross", "encoder"]

PREFIXES: dict[str, frozenset[Side]] = {
    "memory": frozenset(("cross",)),
    "encoder": frozenset(("cross",)),
    "context": frozenset(("cross",)),
    "cross": frozenset(("cross",)),
    "src": frozenset(("encoder",)),
    "tgt": frozenset(("self",)),
    "trg": frozenset(("self",)),
    "target": frozenset(("self",)),
    "decoder": frozenset(("self",)),
}
"""How the name of a mask begins, and the attention it is about, beside a decoder."""


def side_of(subject: Subject, found: Attention) -> Side:
    """Whether an attention is self-attention, cross-attention, or that of an encoder."""
    if not subject.of("context"):
        return "self"
    keys = found.inputs.get("k") or found.inputs["v"]
    if subject.main in keys:
        return "self"
    queries = found.inputs.get("q") or found.inputs["weights"] - keys
    return "cross" if subject.main in queries else "encoder"


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
