"""The families of sentences, except those of because and of relative clauses.

A family is a function of `choose`, which picks one member of a slot; it returns a draft, or raises
`MismatchError` if the choices do not fit together. A random `choose` generates sentences (see
`splits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .pair import Draft
from .phrases import JE, WE, YOU, Phrase, Slot, after_preposition, phrase, phrases
from .slots import ANYONE, NAMED, SOMEONE, STOP, WHOM, things, when
from .verbs import ANTECEDENT, DATIVE, DIRECT, VERB, ObjectPronoun, Verb
from .words import NUMBERS, Name, Noun, held_out, nouns

Choose = Callable[[Any], Any]


class MismatchError(Exception):
    """The choices do not fit together; new ones must be drawn."""


class Mode(NamedTuple):
    """A tense and whether it is negated."""

    tense: str
    negative: bool


def modes(verb: Verb, agreement: int) -> tuple[tuple[Mode, ...], ...]:
    """Return the tenses a verb is used in, in groups drawn evenly; we and you have no future."""
    groups: list[tuple[Mode, ...]] = []
    future = 0 if agreement in (WE, YOU) else 5 if agreement == JE else 2
    for letter, tense, weight in (("p", "present", 4), ("d", "past", 4), ("f", "future", future)):
        if letter in verb.tenses:
            affirmed, denied = (Mode(tense, False),), (Mode(tense, True),)
            groups += [affirmed] * weight + [denied] * (weight // 2)
    if "i" in verb.tenses:
        groups.append((Mode("can", False), Mode("can", True)))
        groups.append((Mode("want", False), Mode("want", True)))
    return tuple(groups)


class Frame(NamedTuple):
    """A verb with what it may be said of, and of what."""

    verb: Verb
    subjects: Slot
    objects: Slot
    modes: tuple[tuple[tuple[Mode, ...], ...], ...]
    held: frozenset[Noun]


def frame(verb: str, subjects: Slot, classes: str, objects: Slot | None = None) -> Frame:
    """Return the frame of a verb whose objects are of these noun classes."""
    value = VERB[verb]
    return Frame(
        value,
        subjects,
        objects or things(classes, generic=verb == "like"),
        tuple(modes(value, agreement) for agreement in range(7)),
        frozenset(noun for noun in nouns(classes) if held_out(verb, noun.name)),
    )


WORLD: Slot = (phrases(nouns("sphere"), "the"), phrases(nouns("sphere"), "the", adjectives=True))
GENERAL = (
    frame("cross", SOMEONE, "way stream bridge land"),
    frame("cross", SOMEONE, "way stream"),
    frame("cross", SOMEONE, "way stream"),
    frame("climb", SOMEONE, "height"),
    frame("see", SOMEONE, "plant flying building"),
    frame("see", SOMEONE, "beast vehicle building plant height shore basin"),
    frame("have", SOMEONE, "kept thing vehicle clothes"),
    frame("buy", SOMEONE, "thing clothes vehicle print"),
    frame("sell", SOMEONE, "thing clothes vehicle"),
    frame("find", SOMEONE, "small_thing container pet"),
    frame("lose", SOMEONE, "small_thing clothes"),
    frame("take", SOMEONE, "small_thing container count_food"),
    frame("take", SOMEONE, "vehicle"),
    frame("open", SOMEONE, "opening container"),
    frame("close", SOMEONE, "opening container"),
    frame("build", SOMEONE, "building bridge basin"),
    frame("build", SOMEONE, "artefact"),
    frame("train", SOMEONE, "artefact"),
    frame("see", SOMEONE, "sphere", WORLD),
    frame("read", SOMEONE, "text"),
    frame("write", SOMEONE, "tale written", things("tale written", ownable=False)),
    frame("look_for", SOMEONE, "small_thing pet clothes"),
    frame("listen_to", SOMEONE, "tale"),
    frame("want", SOMEONE, "thing clothes pet"),
)
FOOD = (
    frame("eat", SOMEONE, "food"),
    frame("eat", ANYONE, "count_food"),
    frame("drink", SOMEONE, "drink"),
    frame("like", SOMEONE, "food drink tale"),
    frame("like", SOMEONE, "food drink blossom science artefact"),
    *(frame(verb, SOMEONE, "food drink") for verb in ("buy", "want", "sell")),
)
PERSONAL = tuple(
    frame(verb, SOMEONE, "person kin", WHOM)
    for verb in ("see", "help", "know", "look_for", "wait_for", "listen_to")
)


# "Paul doesn't see three houses" is true of too much to be natural.
COUNTS = frozenset((*NUMBERS, "many"))


def check_apart(subject: Phrase, other: Phrase) -> None:
    """Raise `MismatchError` where two phrases speak of the same thing: "the dog saw the dog"."""
    noun = subject.noun
    named = type(noun) is Name and other.english[:1] == (noun.name,)
    if noun is not None and (noun is other.noun or named):
        raise MismatchError


def as_object(phrase: Phrase, negative: bool) -> Phrase:
    """Return a phrase as the object of a verb; raise `MismatchError` where it cannot be denied."""
    if not negative:
        return phrase
    if phrase.english[0] in COUNTS:
        raise MismatchError
    return phrase.denied


def said(choose: Choose, frames: tuple[Frame, ...]) -> Draft:
    """Paul didn't open the window yesterday. → Paul n'a pas ouvert la fenêtre hier."""
    chosen: Frame = choose((frames,))
    subject = choose(chosen.subjects)
    mode = choose(chosen.modes[subject.agreement])
    object_ = choose(chosen.objects)
    check_apart(subject, object_)
    object_ = as_object(object_, mode.negative)
    verb = chosen.verb(mode.tense, subject.agreement, mode.negative)
    time = choose(when(mode.tense, mode.negative, "h" in chosen.verb.tenses))
    held = subject.held or object_.held or object_.noun in chosen.held
    return Draft((subject, verb, object_, time, STOP), int(held))


def gifts(classes: str) -> Slot:
    """Return what may be given, of these noun classes."""
    chosen = nouns(classes)
    return (
        phrases(chosen, "the a this"),
        phrases(chosen, "my his her"),
        phrases(chosen, "- some"),
        phrases(chosen, "two three four five six seven eight"),
        phrases(chosen, "a the", adjectives=True),
    )


GIVERS = (
    (VERB["give"], gifts("small_thing clothes container pet count_food")),
    (VERB["show"], gifts("small_thing clothes container pet")),
    (VERB["send"], gifts("small_thing clothes container")),
)
GIVING_MODES = (
    *((Mode("past", False),),) * 4,
    (Mode("past", True), Mode("present", True)),
    (Mode("present", False),),
    (Mode("future", False), Mode("future", True)),
)
TO_WHOM, TO_WHOM_WITH_TO = (
    {name: after_preposition(to, "à", name) for name in (*NAMED[0], *NAMED[2], *NAMED[3])}
    for to in ("", "to")
)


def by_subject(
    pronouns: Mapping[str, ObjectPronoun], of_i_and_we: str, of_you: str, of_others: str
) -> dict[int, tuple[tuple[ObjectPronoun, ...], ...]]:
    """Return the object pronouns that go with each subject, as slots."""
    names = {JE: of_i_and_we, WE: of_i_and_we, YOU: of_you}
    return {
        agreement: (tuple(pronouns[name] for name in names.get(agreement, of_others).split()),)
        for agreement in range(7)
    }


DATIVES = by_subject(DATIVE, "him her them", "him her me us", "him her them me us")
OBJECTS = by_subject(DIRECT, "him her them you", "me us him her them", "me us you him her them")


def without_future(
    chosen: tuple[tuple[Mode, ...], ...], agreement: int
) -> tuple[tuple[Mode, ...], ...]:
    """Return the modes, less the future where the subject is we or you."""
    if agreement not in (WE, YOU):
        return chosen
    return tuple(group for group in chosen if group[0].tense != "future")


def given(
    choose: Choose, receivers: Mapping[int, Any]
) -> tuple[Verb, Phrase, Any, Mode, Phrase, int]:
    """Return verb, subject, receiver, mode and gift of a sentence, and whether it is held out."""
    verb, presents = choose((GIVERS,))
    subject = choose(SOMEONE)
    receiver = choose(receivers[subject.agreement])
    mode = choose(without_future(GIVING_MODES, subject.agreement))
    gift: Any = as_object(choose(presents), mode.negative)
    held = int(subject.held or gift.held or held_out(verb.name, gift.noun.name))
    return verb, subject, receiver, mode, gift, held


def giving(choose: Choose) -> Draft:
    """Mary gave Susan a book. → Mary a donné un livre à Susan."""
    verb, subject, receiver, mode, gift, held = given(choose, dict.fromkeys(range(7), NAMED))
    check_apart(subject, receiver)
    said = verb(mode.tense, subject.agreement, mode.negative)
    if choose((("to", "", ""),)):
        return Draft((subject, said, gift, TO_WHOM_WITH_TO[receiver], STOP), held)
    return Draft((subject, said, TO_WHOM[receiver], gift, STOP), held, (0, 1, 3, 2, 4))


def giving_pronoun(choose: Choose) -> Draft:
    """Mary gave him a book. → Mary lui a donné un livre."""
    verb, subject, receiver, mode, gift, held = given(choose, DATIVES)
    said = verb(mode.tense, subject.agreement, mode.negative, receiver)
    return Draft((subject, said, gift, STOP), held)


def object_pronoun(choose: Choose) -> Draft:
    """I didn't see her. → Je ne l'ai pas vue."""
    chosen: Frame = choose((PERSONAL,))
    subject = choose(SOMEONE)
    mode = choose(chosen.modes[subject.agreement])
    pronoun: ObjectPronoun = choose(OBJECTS[subject.agreement])
    verb = chosen.verb(mode.tense, subject.agreement, mode.negative, pronoun)
    time = choose(when(mode.tense, mode.negative, "h" in chosen.verb.tenses))
    return Draft((subject, verb, time, STOP), int(subject.held))


CHAINS = (
    ("buy", "eat", "count_food"),
    ("take", "eat", "count_food"),
    ("find", "eat", "count_food"),
    ("buy", "sell", "vehicle clothes"),
    ("find", "open", "container"),
    ("open", "close", "container opening"),
    ("find", "read", "text"),
    ("buy", "read", "print"),
    ("write", "send", "written"),
    ("find", "take", "small_thing"),
    ("buy", "lose", "small_thing clothes"),
)
CHAINED = tuple(
    (
        VERB[first],
        VERB[second],
        (phrases(nouns(classes), "the a"), phrases(nouns(classes), "the a my his her two three")),
        frozenset(n for n in nouns(classes) if held_out(first, n.name) or held_out(second, n.name)),
    )
    for first, second, classes in CHAINS
)
AND = phrase("and", "et")


def and_it(choose: Choose) -> Draft:
    """Mary bought an apple and ate it. → Mary a acheté une pomme et l'a mangée."""
    first, second, objects, held = choose((CHAINED,))
    subject, object_ = choose(SOMEONE), choose(objects)
    pronoun = ANTECEDENT[object_.agreement]
    verb = first("past", subject.agreement)
    other = second("past", subject.agreement, False, pronoun)
    is_held = subject.held or object_.held or object_.noun in held
    return Draft((subject, verb, object_, AND, other, STOP), int(is_held))
