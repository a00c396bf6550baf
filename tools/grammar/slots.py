"""Slots of ready-made phrases: subjects, objects, places and times."""

from __future__ import annotations

from functools import cache

from .phrases import (
    HE,
    JE,
    NOTHING,
    SHE,
    THEY_M,
    WE,
    YOU,
    Phrase,
    Slot,
    after_preposition,
    name_phrase,
    noun_phrase,
    phrase,
    phrases,
)
from .words import NAME, listed, nouns

STOP, ASK, BANG, COMMA = (phrase(mark, mark) for mark in ".?!,")

PRONOUNS = tuple(
    Phrase((english,), (french,), None, agreement)
    for english, french, agreement in (
        ("I", "je", JE),
        ("you", "vous", YOU),
        ("he", "il", HE),
        ("she", "elle", SHE),
        ("we", "nous", WE),
        ("they", "ils", THEY_M),
    )
)
NAMES = tuple(name_phrase(name) for name in NAME.values())
PEOPLE = phrases(nouns("person"), "the")
KIN = phrases(nouns("kin"), "possessive genitive")
SOME_PEOPLE = phrases(nouns("person"), "a this these two three four five")
KIND_PEOPLE = phrases(nouns("person"), "the a this these", adjectives=True) + phrases(
    nouns("kin"), "my his", adjectives=True
)
ANIMALS = phrases(nouns("beast"), "the")
PETS = phrases(nouns("pet"), "possessive genitive")
SOME_ANIMALS = phrases(nouns("beast"), "a this these numbers")
KIND_ANIMALS = phrases(nouns("beast"), "the a this these", adjectives=True)

SPEAKERS = tuple(p for p in PRONOUNS if p.agreement in (JE, YOU, WE))
SOMEONE: Slot = (
    *(PRONOUNS,) * 4,
    *(SPEAKERS,) * 4,
    *(NAMES,) * 3,
    *(PEOPLE,) * 2,
    KIN,
    SOME_PEOPLE,
    KIND_PEOPLE,
)
SOME_ANIMAL: Slot = (ANIMALS, ANIMALS, ANIMALS, PETS, SOME_ANIMALS, KIND_ANIMALS)
ANYONE: Slot = (*SOMEONE, *SOME_ANIMAL[2:])
SOME_PET: Slot = (
    phrases(nouns("pet"), "the"),
    phrases(nouns("pet"), "the a this possessive genitive"),
    phrases(nouns("pet"), "the", adjectives=True),
)
SOMEONE_OR_PET: Slot = (*SOMEONE, *SOME_PET)
NAMED: Slot = (NAMES, NAMES, PEOPLE, KIN)
WHOM: Slot = (NAMES, NAMES, PEOPLE, PEOPLE, KIN, SOME_PEOPLE, KIND_PEOPLE)

OWNED = ("thing", "small_thing", "clothes", "vehicle", "pet", "kin", "text", "container")


@cache
def things(classes: str, generic: bool = False, ownable: bool = True) -> Slot:
    """Return the objects of these noun classes: definite, indefinite, owned, counted, described.

    `generic` is for verbs of liking: the bare noun means all of it, "I like milk" → "le lait".
    """
    chosen = nouns(classes)
    owned = tuple(noun for noun in chosen if ownable and not noun.classes.isdisjoint(OWNED))
    kin = tuple(noun for noun in chosen if "kin" in noun.classes)
    plain = tuple(noun for noun in chosen if noun not in kin)
    definite = phrases(plain, "the")
    described = phrases(plain, "the this these", adjectives=True)
    if generic:
        return filled(
            phrases(plain, "generic"),
            phrases(plain, "generic"),
            definite,
            described,
            phrases(owned, "possessive genitive"),
        )
    return filled(
        definite,
        definite,
        phrases(plain, "a - some"),
        phrases(plain, "a - some"),
        phrases(plain, "this these many"),
        phrases(plain, "numbers"),
        phrases(owned, "possessive genitive"),
        described + phrases(plain, "a -", adjectives=True),
        phrases(owned, "my his her", adjectives=True)
        + phrases(plain, "two three", adjectives=True),
    )


def filled(*groups: tuple[Phrase, ...]) -> Slot:
    """Return the groups that are not empty, as a slot."""
    return tuple(group for group in groups if group)


def places(classes: str, english: str, french: str, determiners: str = "the") -> tuple[Phrase, ...]:
    """Return places: a preposition and each noun of these classes, in the singular."""
    return tuple(
        after_preposition(english, french, noun_phrase(noun, determiner, False))
        for noun in listed(classes)
        for determiner in determiners.split()
    )


IN = places("in room", "in", "dans")
INSIDE = places("container", "in", "dans")
ON = places("on surface", "on", "sur")
UNDER = places("under", "under", "sous")
BEHIND = places("behind", "behind", "derrière")
NEAR = places("near behind", "near", "près de")
FRONT = places("behind goal", "in front of", "devant")
WITH = tuple(after_preposition("with", "avec", p) for p in NAMES + KIN)
# Where small things, pets, people and large animals, and food may be.
PLACES: Slot = (IN, INSIDE, ON, ON, UNDER, BEHIND, NEAR, FRONT)
HOMES: Slot = (IN, IN, ON, UNDER, BEHIND, NEAR, FRONT)
ROOMS: Slot = (IN, IN, BEHIND, NEAR, FRONT, places("on_foot", "on", "sur"))
LARDERS: Slot = (places("kitchen house hotel", "in", "dans"), places("surface", "on", "sur"))
TO: Slot = (places("goal", "to", "à"),)
AT: Slot = (places("goal", "at", "à"),)

EVERY_DAY = phrase("every day", "tous les jours")
TIMES: dict[str, tuple[Phrase, ...]] = {
    "past": (phrase("yesterday", "hier"), phrase("this morning", "ce matin")),
    "future": (phrase("tomorrow", "demain"), phrase("tonight", "ce soir")),
}
SOMETIMES: dict[str, Slot] = {
    tense: ((NOTHING,), (NOTHING,), (NOTHING,), times) for tense, times in TIMES.items()
}
NEVER: Slot = ((NOTHING,),)


def when(tense: str, negative: bool, habits: bool) -> Slot:
    """Return the times that go with a tense, most often none."""
    if tense == "present" and habits and not negative:
        return HABITS
    return SOMETIMES.get(tense, NEVER)


HABITS: Slot = ((NOTHING,), (NOTHING,), (EVERY_DAY,))
