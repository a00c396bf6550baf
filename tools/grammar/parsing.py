"""The grammar read the other way: the pairs that have a given English side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from intently.tasks.text import words as cut

from .families import DEEPER, FAMILIES, Family
from .pair import Draft, Pair, english_side, realise
from .phrases import Phrase
from .sentences import MismatchError
from .verbs import ObjectPronoun, Verb
from .words import Adjective

Runs = frozenset[tuple[str, ...]]


class NoMemberError(Exception):
    """No member of a slot occurs in the sentence."""


def translations(source: str) -> list[Pair]:
    """Return every pair of the grammar with this English side: one, or none if it has no such.

    >>> [pair.target for pair in translations("The owl ate two apples.")]
    ['Le hibou a mangé deux pommes.']
    """
    pairs: dict[str, Pair] = {}
    runs = occurring(source)
    for kind, family, _ in (*FAMILIES, *DEEPER):
        for draft in derivations(family, runs):
            if english_side(draft)[0] == source:
                pair = realise(draft, kind)
                pairs.setdefault(pair.target, pair)
    return list(pairs.values())


def occurring(source: str) -> Runs:
    """Return all runs of words in a sentence, its first word also without the capital."""
    words = cut(source)
    lower = [words[0][0].lower() + words[0][1:], *words[1:]]
    return frozenset(
        tuple(w[i:j]) for w in (words, lower) for i in range(len(w)) for j in range(i, len(w) + 1)
    )


def occurs(member: Any, runs: Runs) -> bool:
    """Return whether a member of a slot may be part of the sentence with these runs of words."""
    if isinstance(member, Phrase):
        return member.english in runs or member.denied.english in runs
    if isinstance(member, Verb):
        return any(form in runs for form in member.english)
    if isinstance(member, Adjective):
        return (member.name,) in runs
    if isinstance(member, ObjectPronoun):
        return (member.english,) in runs
    if isinstance(member, tuple):
        return all(occurs(part, runs) for part in member if isinstance(part, (Verb, Phrase)))
    return True


def derivations(family: Family, runs: Runs) -> Iterator[Draft]:
    """Yield the drafts of a family whose phrases all occur in a sentence.

    The family is replayed with every sequence of choices, depth first.
    """
    kept: dict[int, list[Any]] = {}

    def occurring_in(group: tuple[Any, ...]) -> list[Any]:
        if len(group) < 50:
            return [member for member in group if occurs(member, runs)]
        if id(group) not in kept:
            kept[id(group)] = [member for member in group if occurs(member, runs)]
        return kept[id(group)]

    path: list[int] = []
    sizes: list[int] = []
    while True:
        depth = 0

        def choose(slot: Any) -> Any:
            nonlocal depth
            members = list({id(m): m for group in slot for m in occurring_in(group)}.values())
            if not members:
                raise NoMemberError
            if depth == len(path):
                path.append(0)
                sizes.append(len(members))
            depth += 1
            return members[path[depth - 1]]

        try:
            draft = family(choose)
        except (NoMemberError, MismatchError):
            draft = None
        if draft is not None:
            yield draft
        while path and path[-1] + 1 == sizes[-1]:
            path.pop()
            sizes.pop()
        if not path:
            return
        path[-1] += 1
