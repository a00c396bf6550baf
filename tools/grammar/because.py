"""Sentences of two clauses: pronouns that the adjective resolves, reasons, relative clauses.

"The animal didn't cross the road because it was too tired" speaks of the animal, "… too wide" of
the road. Frames determine which adjectives go with which noun: each lists adjectives that can be a
reason only for its subjects, and adjectives that can be a reason only for its objects.
"""

from __future__ import annotations

from typing import NamedTuple

from .pair import Draft
from .phrases import HE, NOTHING, SHE, THEY_F, THEY_M, Phrase, Slot, noun_phrase, phrase
from .predicates import BE, quality
from .sentences import Choose, Mode, check_apart, without_future
from .slots import AT, IN, NAMES, PEOPLE, PRONOUNS, SOMEONE, STOP, TO, WITH
from .verbs import VERB, Verb
from .words import Adjective, Noun, adjectives, held_out, listed

BECAUSE = phrase("because", "parce que")
IT = {
    agreement: Phrase((english,), (french,), None, agreement)
    for agreement, english, french in (
        (HE, "it", "il"),
        (SHE, "it", "elle"),
        (THEY_M, "they", "ils"),
        (THEY_F, "they", "elles"),
    )
}


class Reason(NamedTuple):
    """A verb with its subjects and objects, and the adjectives that are a reason on either side."""

    verb: Verb
    preposition: Phrase
    negative: bool
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]
    of_subject: tuple[Adjective, ...]
    of_object: tuple[Adjective, ...]


def reason(
    verb: str,
    subjects: str,
    objects: str,
    of_subject: str,
    of_object: str,
    negative: bool = True,
    preposition: Phrase = NOTHING,
) -> Reason:
    """Return a reason from classes of nouns (or nouns) and names of adjectives."""
    return Reason(
        VERB[verb],
        preposition,
        negative,
        listed(subjects),
        listed(objects),
        adjectives(of_subject),
        adjectives(of_object),
    )


ON = phrase("on", "sur")
WEARY, EAGER = "tired sick lazy nervous", "curious brave happy"
GREEDY = "greedy curious happy"
UNWELL = "tired sick nervous sad"
WALKERS, PLENTY = "beast", "beast person"
REASONS = (
    reason("cross", PLENTY, "way", WEARY, "wide slippery"),
    reason("cross", PLENTY, "stream", WEARY, "wide deep"),
    reason("cross", PLENTY, "bridge", WEARY, "long narrow slippery"),
    reason("cross", WALKERS, "land", WEARY, "wide"),
    reason("climb", "climber person", "hill mountain", WEARY, "high steep slippery"),
    reason("climb", "climber", "barrier", WEARY, "high slippery"),
    reason("eat", WALKERS, "dry_food", UNWELL, "dry salty"),
    reason("eat", WALKERS, "soup rice", UNWELL, "salty spicy"),
    reason("eat", PLENTY, "sour_food", UNWELL, "sour hard"),
    reason("eat", PLENTY, "hard_food", UNWELL, "hard"),
    reason("eat", PLENTY, "cake chocolate", UNWELL, "sweet"),
    reason("drink", WALKERS, "water milk", UNWELL, "salty bitter"),
    reason("drink", WALKERS, "juice lemonade", UNWELL, "sweet sour bitter"),
    reason("sleep", "pet", "furniture", "nervous sick", "hard narrow high", preposition=ON),
    reason("enter", WALKERS, "hollow", WEARY, "narrow deep"),
    reason("enter", "pet goat", "room", WEARY, "crowded"),
    reason("cross", "car truck bus", "bridge", "slow heavy", "narrow slippery long"),
    reason("cross", "car truck bus", "valley", "slow heavy", "deep"),
    reason("fit_in", "fitting", "container", "big long wide", "small narrow"),
    reason("cross", WALKERS, "road street river", EAGER, "narrow", negative=False),
    reason("climb", "climber", "barrier", EAGER, "low", negative=False),
    reason("eat", WALKERS, "bread meat cheese egg carrot", GREEDY, "fresh", negative=False),
    reason("eat", WALKERS, "apple orange cake", GREEDY, "fresh sweet", negative=False),
    reason("drink", WALKERS, "milk juice", "tired sick sad", "fresh", negative=False),
    reason(
        "sleep",
        "pet",
        "furniture",
        "tired sick lazy",
        "comfortable",
        negative=False,
        preposition=ON,
    ),
)

REFUSED = tuple(r for r in REASONS if r.negative)
DONE = tuple(r for r in REASONS if not r.negative)
REASON_SLOT = (REFUSED, REFUSED, REFUSED, DONE)
TOO = ((("too", "trop"),), (("too", "trop"),), (("very", "très"), ("so", "si")))
SO = ((("very", "très"), ("so", "si")),)
TENSES = (("past",), ("past",), ("past",), ("present",), ("future",))
STATE_TENSES = (("past",), ("past",), ("present",))
EITHER = ((True,), (False,))


OWNABLE = frozenset({"pet", "thing", "small_thing", "food", "vehicle"})


def reason_nouns(chosen: tuple[Noun, ...], plural: bool) -> Slot:
    """Return the noun phrases, all singular or all plural, that a reason draws from.

    Each gender has its own groups, so that il and elle are equally frequent. People are plural
    here, because *it* never refers to them.
    """
    groups: list[tuple[Phrase, ...]] = []
    for feminine in (False, True):
        members = tuple(
            n
            for n in chosen
            if n.feminine == feminine
            and plural in n.numbers
            and (plural or "person" not in n.classes)
        )
        owned = tuple(n for n in members if not n.classes.isdisjoint(OWNABLE))
        definite = tuple(noun_phrase(n, "the", plural) for n in members)
        others = tuple(
            noun_phrase(n, determiner, plural)
            for kind, determiner in ((members, "these" if plural else "this"), (owned, "my"))
            for n in kind
            if plural or determiner != "this" or not n.mass
        )
        if definite:
            groups += [definite] * 3 + [others or definite]
    return tuple(groups)


REASON_NOUNS = {
    (r, plural, is_subject): reason_nouns(r.subjects if is_subject else r.objects, plural)
    for r in REASONS
    for plural in (False, True)
    for is_subject in (False, True)
}


def resolved(choose: Choose) -> tuple[list[Phrase], tuple[Phrase, ...], bool, int]:
    """Draw the parts of a because-sentence.

    Returns the main clause, the because-clause, whether the pronoun stands for the subject, and
    what is held out.
    """
    chosen: Reason = choose(REASON_SLOT)
    plural = choose(EITHER if REASON_NOUNS[chosen, True, False] else EITHER[1:])
    subject = choose(REASON_NOUNS[chosen, plural, True])
    object_ = choose(REASON_NOUNS[chosen, plural, False])
    of_subject = choose(EITHER)
    adjective = choose((chosen.of_subject if of_subject else chosen.of_object,))
    english, french = choose(TOO if chosen.negative else SO)
    tense = choose(STATE_TENSES if chosen.verb.state else TENSES)
    right = subject if of_subject else object_
    said = chosen.verb(tense, subject.agreement, chosen.negative)
    pronoun = IT[right.agreement]
    being = BE("past" if tense == "past" else "present", right.agreement)
    held = 2 * held_out(right.noun.name, adjective.name) or int(
        chosen.preposition is NOTHING and held_out(chosen.verb.name, object_.noun.name)
    )
    clause = (BECAUSE, pronoun, being, quality(adjective, right.agreement, english, french))
    return [subject, said, chosen.preposition, object_], clause, of_subject, held


def because(choose: Choose) -> Draft:
    """The animal didn't cross the road because it was too tired. → … parce qu'il était trop …"""
    main, clause, of_subject, held = resolved(choose)
    pronoun = (5, 0, 3) if of_subject else (5, 3, 0)
    return Draft((*main, *clause, STOP), held, None, (), pronoun)


# A verb, its complements, the moods that are a reason for it and against it, and what causes it.
MOODS = tuple(
    (
        VERB[verb],
        complements,
        adjectives(moods),
        adjectives(against),
        tuple(VERB[event] for event in events.split()),
    )
    for verb, complements, moods, against, events in (
        ("stay", (IN, AT[0]), "tired sick happy lazy", "nervous sad sick", "arrive cry"),
        ("sleep", (IN, (NOTHING,)), "tired sick lazy", "nervous sad", "leave"),
        ("cry", (IN, (NOTHING,)), "sad tired nervous sick", "happy brave", "leave fall"),
        ("leave", ((NOTHING,), WITH), "sad sick tired nervous", "tired sick lazy", "cry sing"),
        ("sing", (IN, (NOTHING,)), "happy brave", "sad sick nervous tired", "arrive come"),
        ("work", (IN, (NOTHING,)), "happy brave", "tired sick lazy sad", "sleep leave"),
        ("go", TO, "curious happy brave", "tired sick lazy nervous", "arrive"),
    )
)
PAST = Mode("past", False)
MOOD_TENSES = (
    *((PAST,),) * 4,
    (Mode("past", True),),
    (Mode("present", False), Mode("present", True)),
    (Mode("future", False), Mode("future", True)),
)
MOOD_DEGREES = ((("", ""),), (("very", "très"), ("too", "trop")))
GLAD_DEGREES = ((("", ""),), (("very", "très"), ("so", "si")))
GLAD = adjectives("happy brave curious")
SELF = {p.agreement: p for p in PRONOUNS} | {THEY_F: IT[THEY_F]}
OTHERS: Slot = (NAMES, PEOPLE)
MOOD_MODES = {agreement: without_future(MOOD_TENSES, agreement) for agreement in range(7)}


def sake(choose: Choose) -> Draft:
    """Mary left because she was sick. → Mary est partie parce qu'elle était malade."""
    verb, complements, moods, moods_against, events = choose((MOODS,))
    subject = choose(SOMEONE)
    mode = choose(MOOD_MODES[subject.agreement])
    complement = choose(complements)
    check_apart(subject, complement)
    said = verb(mode.tense, subject.agreement, mode.negative)
    start = (subject, said, complement, BECAUSE)
    if mode == PAST and choose(EITHER):
        other = choose(OTHERS)
        check_apart(subject, other)
        event: Verb = choose((events,))
        return Draft((*start, other, event("past", other.agreement), STOP), int(subject.held))
    adjective = choose((moods_against if mode.negative else moods,))
    english, french = choose(GLAD_DEGREES if adjective in GLAD else MOOD_DEGREES)
    being = BE("past" if mode.tense == "past" else "present", subject.agreement)
    feeling = quality(adjective, subject.agreement, english, french)
    return Draft((*start, SELF[subject.agreement], being, feeling, STOP), int(subject.held))
