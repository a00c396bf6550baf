"""More families: being, being somewhere, going, doing, commands and questions."""

from __future__ import annotations

from functools import cache

from .pair import Draft
from .phrases import (
    FEMININE,
    HE,
    NOTHING,
    PLURAL,
    SURE,
    THEY_M,
    YOU,
    Phrase,
    Slot,
    after_preposition,
    fitting,
    noun_phrase,
    phrases,
)
from .sentences import (
    FOOD,
    GENERAL,
    PERSONAL,
    Choose,
    Frame,
    Mode,
    as_object,
    check_apart,
    modes,
    without_future,
)
from .slots import (
    ANYONE,
    AT,
    HOMES,
    IN,
    LARDERS,
    NAMES,
    NEAR,
    ON,
    PEOPLE,
    PLACES,
    PRONOUNS,
    ROOMS,
    SOME_ANIMAL,
    SOMEONE,
    SOMEONE_OR_PET,
    SPEAKERS,
    STOP,
    TO,
    UNDER,
    WITH,
    filled,
    when,
)
from .verbs import VERB, be_words
from .words import NOUN, Adjective, Noun, adjectives, held_out, nouns

BE = VERB["be"]
BE_MODES = (
    (Mode("present", False),),
    (Mode("present", False),),
    (Mode("past", False),),
    (Mode("past", False),),
    (Mode("present", True),),
    (Mode("past", True),),
    (Mode("future", False), Mode("future", True)),
)
DEGREES = ((("", ""),), (("", ""),), (("very", "très"), ("too", "trop")))
PLAIN = ((("", ""),),)
# Said without degree (a red hat is not very red), or without "too" (nobody is too good).
ABSOLUTE = adjectives("red white black green new crowded")
WELCOME = adjectives("beautiful good happy brave fresh comfortable big cool fun important")
VERY = ((("", ""),), (("", ""),), (("very", "très"),))


@cache
def quality(adjective: Adjective, agreement: int, english: str = "", french: str = "") -> Phrase:
    """Return the adjective as a predicate that agrees, perhaps with its degree.

    >>> from .phrases import SHE
    >>> from .words import ADJECTIVE
    >>> quality(ADJECTIVE["wide"], SHE, "too", "trop").french
    ('trop', 'large')
    """
    form = adjective.form(agreement in FEMININE, agreement in PLURAL)
    if not english:
        return Phrase((adjective.name,), (form,))
    return Phrase((english, adjective.name), (french, form), ((0, 0, SURE), (1, 1, SURE)))


# "New" stands before the noun only: une nouvelle voiture, but elle est neuve.
PERSONAL_QUALITIES = fitting(NOUN["man"])
QUALITIES = {noun: tuple(a for a in fitting(noun) if a.name != "new") for noun in NOUN.values()}


def qualities(subject: Phrase) -> tuple[Adjective, ...]:
    """Return the adjectives said of a subject; pronouns and names stand for people."""
    return QUALITIES[subject.noun] if isinstance(subject.noun, Noun) else PERSONAL_QUALITIES


def degrees(adjective: Adjective) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the adverbs that go with an adjective."""
    return PLAIN if adjective in ABSOLUTE else VERY if adjective in WELCOME else DEGREES


def described(choose: Choose, subject: Phrase) -> tuple[Phrase, bool]:
    """Return a predicate adjective for a subject, and whether the two are held out."""
    adjective: Adjective = choose((qualities(subject),))
    english, french = choose(degrees(adjective))
    held = isinstance(subject.noun, Noun) and held_out(subject.noun.name, adjective.name)
    return quality(adjective, subject.agreement, english, french), held


ALL_THINGS = tuple(
    noun
    for noun in NOUN.values()
    if QUALITIES[noun] and noun.classes.isdisjoint(("person", "kin", "beast"))
)
OWN_THINGS = tuple(n for n in ALL_THINGS if not n.classes.isdisjoint(("thing", "small_thing")))
STATE_SUBJECTS: Slot = (
    *(PRONOUNS, PRONOUNS, SPEAKERS, NAMES, PEOPLE, PEOPLE),
    *(phrases(ALL_THINGS, "the"),) * 5,
    phrases(ALL_THINGS, "this these"),
    phrases(ALL_THINGS, "generic"),
    phrases(OWN_THINGS, "possessive genitive"),
    *SOME_ANIMAL[:2],
    *SOME_ANIMAL[3:5],
)


def state(choose: Choose) -> Draft:
    """The road was too wide. → La route était trop large."""
    subject = choose(STATE_SUBJECTS)
    mode = choose(without_future(BE_MODES, subject.agreement))
    said, held = described(choose, subject)
    verb = BE(mode.tense, subject.agreement, mode.negative)
    return Draft((subject, verb, said, STOP), int(held or subject.held))


LOCATED: Slot = (
    phrases(nouns("pet"), "the possessive genitive"),
    phrases(nouns("small_thing clothes"), "the possessive genitive"),
    NAMES,
    PEOPLE,
    PRONOUNS,
)


def where(subject: Phrase) -> Slot:
    """Return the places where a subject may be: a key in a box, a person in a room."""
    if not isinstance(subject.noun, Noun) or "person" in subject.noun.classes:
        return ROOMS
    return HOMES if "pet" in subject.noun.classes else PLACES


def being_somewhere(choose: Choose) -> Draft:
    """My keys were under the bed. → Mes clés étaient sous le lit."""
    subject = choose(LOCATED)
    mode = choose(without_future(BE_MODES, subject.agreement))
    verb = BE(mode.tense, subject.agreement, mode.negative)
    return Draft((subject, verb, choose(where(subject)), STOP))


THERE = {
    (tense, negative, plural): Phrase(
        ("there", *be_words(tense, THEY_M if plural else HE, negative)),
        ("il", "ne", "y", verb, "pas") if negative else ("il", "y", verb),
        ((0, 0, SURE), (0, 2, SURE), (1, 1, SURE), (1, 3, SURE), (1, 4, SURE))
        if negative
        else ((0, 0, SURE), (0, 1, SURE), (1, 2, SURE)),
    )
    for tense, verb in (("present", "a"), ("past", "avait"))
    for negative in (False, True)
    for plural in (False, True)
}
THERE_MODES = tuple(
    ((Mode(tense, negative),)) for tense in ("present", "past") for negative in (False, False, True)
)


def existing(classes: str) -> Slot:
    """Return what there is, of these noun classes."""
    chosen = nouns(classes)
    return filled(
        phrases(chosen, "a - some"),
        phrases(chosen, "a - some"),
        phrases(chosen, "numbers many"),
        phrases(chosen, "a two three", adjectives=True),
    )


EXISTING = (
    (existing("small_thing"), PLACES),
    (existing("pet"), HOMES),
    (existing("small_thing container"), PLACES),
    (existing("beast person"), ROOMS),
    (existing("food drink"), LARDERS),
)


def there_is(choose: Choose) -> Draft:
    """There isn't any milk in the kitchen. → Il n'y a pas de lait dans la cuisine."""
    things, places = choose((EXISTING,))
    thing, mode, place = choose(things), choose(THERE_MODES), choose(places)
    check_apart(thing, place)
    thing = as_object(thing, mode.negative)
    plural = thing.agreement in PLURAL
    return Draft((THERE[mode.tense, mode.negative, plural], thing, place, STOP), int(thing.held))


SWIMMING: Slot = (
    tuple(
        after_preposition("in", "dans", noun_phrase(n, "the", False)) for n in nouns("stream basin")
    ),
)
SURFACES: Slot = (ON, ON, UNDER, NEAR)
ENTERED: Slot = filled(
    phrases(nouns("building room hollow"), "the this"),
    phrases(nouns("building room hollow"), "the"),
    phrases(nouns("building room"), "the a", adjectives=True),
)
SOMETIMES_THERE: Slot = (*ROOMS, (NOTHING,), (NOTHING,), WITH)
DOINGS = tuple(
    (
        VERB[verb],
        subjects,
        complements,
        tuple(modes(VERB[verb], agreement) for agreement in range(7)),
    )
    for verb, subjects, complements in (
        ("sleep", SOMEONE_OR_PET, (*ROOMS[:4], (NOTHING,), ON)),
        ("sing", SOMEONE, SOMETIMES_THERE),
        ("work", SOMEONE, SOMETIMES_THERE),
        ("cry", SOMEONE, SOMETIMES_THERE[:-1]),
        ("swim", SOMEONE, SWIMMING),
        ("swim", SOMEONE, (SWIMMING[0], WITH)),
        ("sit", SOMEONE_OR_PET, SURFACES),
        ("go", SOMEONE, TO),
        ("come", SOMEONE, TO),
        ("come", SOMEONE, (TO[0], WITH)),
        ("arrive", SOMEONE, (AT[0], (NOTHING,))),
        ("arrive", SOMEONE, (AT[0], WITH)),
        ("leave", SOMEONE, (WITH, (NOTHING,))),
        ("fall", ANYONE, ((NOTHING,), IN, NEAR)),
        ("stay", SOMEONE, (IN, WITH, AT[0])),
        ("enter", SOMEONE, ENTERED),
        ("enter", SOMEONE_OR_PET, ENTERED),
    )
)


def doing(choose: Choose) -> Draft:
    """The women didn't go to the school. → Les femmes ne sont pas allées à l'école."""
    verb, subjects, complements, all_modes = choose((DOINGS,))
    subject = choose(subjects)
    mode = choose(all_modes[subject.agreement])
    complement = choose(complements)
    check_apart(subject, complement)
    time = choose(when(mode.tense, mode.negative, "h" in verb.tenses))
    said = verb(mode.tense, subject.agreement, mode.negative)
    held = (
        subject.held
        or complement.held
        or (verb.name == "enter" and held_out("enter", complement.noun.name))
    )
    return Draft((subject, said, complement, time, STOP), int(held))


COMMANDED = tuple(f for f in (*GENERAL, *FOOD, *PERSONAL) if "c" in f.verb.tenses)


def command(choose: Choose) -> Draft:
    """Don't open the door. → N'ouvrez pas la porte."""
    chosen: Frame = choose((COMMANDED,))
    object_ = choose(chosen.objects)
    negative = choose(((False,), (False,), (True,)))
    object_ = as_object(object_, negative)
    held = object_.held or object_.noun in chosen.held
    return Draft((chosen.verb("present", YOU, negative), object_, STOP), int(held))
