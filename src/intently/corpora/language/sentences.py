"""The families of sentences, except those of because and of relative clauses.

A family is a function of `choose`, which picks one member of a slot; it returns a draft, or None
where the choices do not go together. A random `choose` generates sentences (see `splits`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from intently.corpora.language.pair import Draft
from intently.corpora.language.phrases import (
    HE,
    JE,
    SHE,
    THEY_F,
    THEY_M,
    WE,
    YOU,
    Phrase,
    Slot,
    after_preposition,
    phrase,
    phrases,
)
from intently.corpora.language.slots import ANYONE, NAMED, SOMEONE, STOP, WHOM, things, when
from intently.corpora.language.verbs import (
    HER,
    HIM,
    IT_F,
    IT_M,
    ME,
    THEM,
    THEM_F,
    TO_HER,
    TO_HIM,
    TO_ME,
    TO_THEM,
    TO_US,
    US,
    VERB,
    YOU_OBJECT,
    ObjectPronoun,
    Verb,
)
from intently.corpora.language.words import NUMBERS, Name, Noun, held_out, nouns

Choose = Callable[[Any], Any]


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
    generic: bool


def frame(verb: str, subjects: Slot, classes: str, objects: Slot | None = None) -> Frame:
    """Return the frame of a verb whose objects are of these noun classes."""
    value = VERB[verb]
    generic = verb in ("like",)
    return Frame(
        value,
        subjects,
        objects or things(classes, generic),
        tuple(modes(value, agreement) for agreement in range(7)),
        frozenset(noun for noun in nouns(*classes.split()) if held_out(verb, noun.name)),
        generic,
    )


GENERAL = (
    frame("cross", SOMEONE, "way stream bridge land"),
    frame("cross", SOMEONE, "way stream"),
    frame("cross", SOMEONE, "way stream"),
    frame("climb", SOMEONE, "height"),
    frame("see", SOMEONE, "plant flying building"),
    frame("see", SOMEONE, "beast vehicle building plant height"),
    frame("have", SOMEONE, "kept thing vehicle clothes"),
    frame("buy", SOMEONE, "thing clothes vehicle print"),
    frame("sell", SOMEONE, "thing clothes vehicle"),
    frame("find", SOMEONE, "small_thing container pet"),
    frame("lose", SOMEONE, "small_thing clothes"),
    frame("take", SOMEONE, "small_thing container count_food"),
    frame("take", SOMEONE, "vehicle"),
    frame("open", SOMEONE, "opening container"),
    frame("close", SOMEONE, "opening container"),
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
    frame("buy", SOMEONE, "food drink"),
    frame("want", SOMEONE, "food drink"),
    frame("sell", SOMEONE, "food drink"),
)
PERSONAL = tuple(
    frame(verb, SOMEONE, "person kin", WHOM)
    for verb in ("see", "help", "know", "look_for", "wait_for", "listen_to")
)


# "Paul doesn't see three houses" is true of too much to be said.
COUNTS = frozenset((*NUMBERS, "many"))


def same(subject: Phrase, other: Phrase) -> bool:
    """Return whether two phrases speak of the same thing: "the dog saw the dog"."""
    noun = subject.noun
    return noun is not None and (
        noun is other.noun or (type(noun) is Name and other.english[:1] == (noun.name,))
    )


def predicate(choose: Choose, chosen: Frame, subject: Phrase) -> tuple[Mode, Phrase, Phrase] | None:
    """Return the mode, the verb and the object of a frame for this subject."""
    mode = choose(chosen.modes[subject.agreement])
    object_ = choose(chosen.objects)
    if same(subject, object_):
        return None
    if mode.negative:
        if object_.english[0] in COUNTS:
            return None
        object_ = object_.denied
    return mode, chosen.verb(mode.tense, subject.agreement, mode.negative), object_


def said(choose: Choose, frames: tuple[Frame, ...]) -> Draft | None:
    """Subject, verb, object, and sometimes when."""
    chosen: Frame = choose((frames,))
    subject = choose(chosen.subjects)
    found = predicate(choose, chosen, subject)
    if found is None:
        return None
    mode, verb, object_ = found
    time = choose(when(mode.tense, mode.negative, "h" in chosen.verb.tenses))
    held = subject.held or object_.held or object_.noun in chosen.held
    return Draft((subject, verb, object_, time, STOP), int(held))


def statement(choose: Choose) -> Draft | None:
    """Paul didn't open the window yesterday. → Paul n'a pas ouvert la fenêtre hier."""
    return said(choose, GENERAL)


def partitive(choose: Choose) -> Draft | None:
    """I don't drink milk. → Je ne bois pas de lait."""
    return said(choose, FOOD)


def person(choose: Choose) -> Draft | None:
    """She knows my brother. → Elle connaît mon frère."""
    return said(choose, PERSONAL)


def gifts(classes: str) -> Slot:
    """Return what may be given, of these noun classes."""
    chosen = nouns(*classes.split())
    return (
        phrases(chosen, "the a this"),
        phrases(chosen, "my his her"),
        phrases(chosen, "two three four five six seven eight - some"),
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
TO_WHOM = {name: after_preposition("", "à", name) for name in (*NAMED[0], *NAMED[2], *NAMED[3])}
TO_WHOM_WITH_TO = {
    name: after_preposition("to", "à", name) for name in (*NAMED[0], *NAMED[2], *NAMED[3])
}
DATIVES = {
    JE: ((TO_HIM, TO_HER, TO_THEM),),
    WE: ((TO_HIM, TO_HER, TO_THEM),),
    YOU: ((TO_HIM, TO_HER, TO_ME, TO_US),),
}
DATIVES_OF_OTHERS = ((TO_HIM, TO_HER, TO_THEM, TO_ME, TO_US),)


def without_future(
    chosen: tuple[tuple[Mode, ...], ...], agreement: int
) -> tuple[tuple[Mode, ...], ...]:
    """Return the modes, less the future where the subject is we or you."""
    if agreement not in (WE, YOU):
        return chosen
    return tuple(group for group in chosen if group[0].tense != "future")


def giving(choose: Choose) -> Draft | None:
    """Mary gave Susan a book. → Mary a donné un livre à Susan."""
    verb, presents = choose((GIVERS,))
    subject, receiver = choose(SOMEONE), choose(NAMED)
    mode = choose(without_future(GIVING_MODES, subject.agreement))
    gift = choose(presents)
    if same(subject, receiver):
        return None
    if mode.negative:
        if gift.english[0] in COUNTS:
            return None
        gift = gift.denied
    held = int(subject.held or gift.held or held_out(verb.name, gift.noun.name))
    said = verb(mode.tense, subject.agreement, mode.negative)
    if choose((("to", "", ""),)):
        return Draft((subject, said, gift, TO_WHOM_WITH_TO[receiver], STOP), held)
    return Draft((subject, said, TO_WHOM[receiver], gift, STOP), held, (0, 1, 3, 2, 4))


def giving_pronoun(choose: Choose) -> Draft | None:
    """Mary gave him a book. → Mary lui a donné un livre."""
    verb, presents = choose((GIVERS,))
    subject = choose(SOMEONE)
    receiver: ObjectPronoun = choose(DATIVES.get(subject.agreement, DATIVES_OF_OTHERS))
    mode = choose(without_future(GIVING_MODES, subject.agreement))
    gift = choose(presents)
    if mode.negative:
        if gift.english[0] in COUNTS:
            return None
        gift = gift.denied
    held = int(subject.held or gift.held or held_out(verb.name, gift.noun.name))
    said = verb(mode.tense, subject.agreement, mode.negative, receiver)
    return Draft((subject, said, gift, STOP), held)


OBJECTS: dict[int, tuple[tuple[ObjectPronoun, ...], ...]] = {
    JE: ((HIM, HER, THEM, YOU_OBJECT),),
    WE: ((HIM, HER, THEM, YOU_OBJECT),),
    YOU: ((ME, US, HIM, HER, THEM),),
}
OBJECTS_OF_OTHERS = ((ME, US, YOU_OBJECT, HIM, HER, THEM),)


def object_pronoun(choose: Choose) -> Draft | None:
    """I didn't see her. → Je ne l'ai pas vue."""
    chosen: Frame = choose((PERSONAL,))
    subject = choose(SOMEONE)
    mode = choose(chosen.modes[subject.agreement])
    pronoun: ObjectPronoun = choose(OBJECTS.get(subject.agreement, OBJECTS_OF_OTHERS))
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
        (
            phrases(nouns(*classes.split()), "the a"),
            phrases(nouns(*classes.split()), "the a my his her two three"),
        ),
        frozenset(
            n
            for n in nouns(*classes.split())
            if held_out(first, n.name) or held_out(second, n.name)
        ),
    )
    for first, second, classes in CHAINS
)
AND = phrase("and", "et")
ANTECEDENT = {HE: IT_M, SHE: IT_F, THEY_M: THEM, THEY_F: THEM_F}


def and_it(choose: Choose) -> Draft | None:
    """Mary bought an apple and ate it. → Mary a acheté une pomme et l'a mangée."""
    first, second, objects, held = choose((CHAINED,))
    subject, object_ = choose(SOMEONE), choose(objects)
    pronoun = ANTECEDENT[object_.agreement]
    verb, other = (
        first("past", subject.agreement),
        second("past", subject.agreement, False, pronoun),
    )
    is_held = subject.held or object_.held or object_.noun in held
    return Draft((subject, verb, object_, AND, other, STOP), int(is_held))
