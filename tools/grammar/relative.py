"""Relative clauses, and the sentences of three clauses that only the split `deeper` shows."""

from __future__ import annotations

from .because import BECAUSE, OTHERS, SELF, resolved
from .pair import Draft
from .phrases import Phrase, phrase, phrases
from .predicates import BE, described, quality
from .sentences import FOOD, GENERAL, PERSONAL, Choose, Frame, MismatchError, Mode, check_apart
from .slots import NAMES, PEOPLE, PRONOUNS, SOMEONE, STOP
from .verbs import VERB, Verb
from .words import Noun, adjectives, held_out, nouns

WHO, THAT = phrase("who", "qui"), phrase("that", "que")
RELATED = tuple(f for f in (*GENERAL, *FOOD) if f.verb.name not in ("climb", "cross"))
EVENTS = (("past",), ("past",), ("present",))
BE_TENSES = (("past",), ("present",))


def clause_of(choose: Choose, head: Phrase) -> tuple[Phrase, Phrase, Phrase, bool]:
    """Return "who", verb and object of a relative clause whose subject is the head."""
    chosen: Frame = choose((RELATED,))
    tense: str = choose(EVENTS)
    letter = tense[0] if tense == "present" else "d"
    if letter not in chosen.verb.tenses:
        tense = "past" if letter == "p" else "present"
    object_ = choose(chosen.objects)
    held = object_.held or object_.noun in chosen.held
    return WHO, chosen.verb(tense, head.agreement), object_, bool(held)


def who_did(choose: Choose) -> Draft:
    """The man who sold the car is rich. → L'homme qui a vendu la voiture est riche."""
    head = choose((PEOPLE,))
    who, verb, object_, held = clause_of(choose, head)
    being = BE(choose(BE_TENSES), head.agreement)
    said, held_too = described(choose, head)
    return Draft((head, who, verb, object_, being, said, STOP), int(held or held_too))


def knows_who(choose: Choose) -> Draft:
    """I know the woman who sold the car. → Je connais la femme qui a vendu la voiture."""
    chosen: Frame = choose((PERSONAL,))
    subject, head = choose(SOMEONE), choose((PEOPLE,))
    check_apart(subject, head)
    mode: Mode = choose(chosen.modes[subject.agreement])
    main = chosen.verb(mode.tense, subject.agreement, mode.negative)
    who, verb, object_, held = clause_of(choose, head)
    is_held = held or subject.held or head.noun in chosen.held
    return Draft((subject, main, head, who, verb, object_, STOP), int(is_held))


HAVING = tuple(
    (VERB[verb], (phrases(nouns(classes), "the"),))
    for verb, classes in (
        ("buy", "thing vehicle clothes food"),
        ("sell", "thing vehicle clothes"),
        ("find", "small_thing container pet"),
        ("lose", "small_thing clothes pet"),
        ("take", "small_thing count_food"),
        ("see", "beast vehicle building"),
        ("read", "text"),
        ("write", "written tale"),
        ("open", "container opening"),
        ("close", "container opening"),
        ("eat", "food"),
    )
)
OWNERS = (PRONOUNS, PRONOUNS, NAMES, PEOPLE)


def clause_about(choose: Choose, verb: Verb, head: Phrase) -> tuple[Phrase, Phrase, Phrase]:
    """Return "that", subject and verb of a relative clause whose object is the head."""
    owner = choose(OWNERS)
    return THAT, owner, verb("past", owner.agreement, agree=head.agreement)


def that_was(choose: Choose) -> Draft:
    """The car that Paul sold was old. → La voiture que Paul a vendue était vieille."""
    verb, heads = choose((HAVING,))
    head = choose(heads)
    that, owner, did = clause_about(choose, verb, head)
    being = BE(choose(BE_TENSES), head.agreement)
    said, held = described(choose, head)
    is_held = held or held_out(verb.name, head.noun.name)
    return Draft((head, that, owner, did, being, said, STOP), int(is_held))


MAKING = tuple(
    (VERB[first], VERB[second], (phrases(nouns(classes), "the"),))
    for first, second, classes in (
        ("lose", "buy", "small_thing clothes"),
        ("find", "lose", "small_thing clothes pet"),
        ("lose", "find", "small_thing clothes"),
        ("eat", "buy", "food"),
        ("eat", "find", "count_food"),
        ("read", "write", "written"),
        ("sell", "buy", "thing vehicle clothes"),
        ("buy", "sell", "thing vehicle clothes"),
        ("open", "find", "container"),
        ("take", "see", "small_thing container"),
        ("read", "find", "text"),
    )
)


def that_did(choose: Choose) -> Draft:
    """Paul lost the key that I found. → Paul a perdu la clé que j'ai trouvée."""
    first, second, heads = choose((MAKING,))
    subject, head = choose(SOMEONE), choose(heads)
    that, owner, did = clause_about(choose, second, head)
    if owner.agreement == subject.agreement and (owner.noun is None or owner.noun is subject.noun):
        raise MismatchError
    main = first("past", subject.agreement, choose(((False,), (False,), (True,))))
    held = held_out(first.name, head.noun.name) or held_out(second.name, head.noun.name)
    return Draft((subject, main, head, that, owner, did, STOP), int(held or subject.held))


def because_that(choose: Choose) -> Draft:
    """The dog that I saw didn't cross the road because it was too tired. (deeper)"""
    main, clause, of_subject, held = resolved(choose)
    subject, said, preposition, object_ = main
    if subject.english[0] != "the" or not isinstance(subject.noun, Noun):
        raise MismatchError
    verb = VERB["see" if {"beast", "person"} & subject.noun.classes else "buy"]
    that, owner, did = clause_about(choose, verb, subject)
    held = held or int(held_out(verb.name, subject.noun.name))
    pronoun = (8, 0, 6) if of_subject else (8, 6, 0)
    words = (subject, that, owner, did, said, preposition, object_, *clause, STOP)
    return Draft(words, held, None, (), pronoun)


def knows_who_that(choose: Choose) -> Draft:
    """I know the woman who bought the car that Paul sold. (deeper)"""
    chosen: Frame = choose((PERSONAL,))
    subject, person = choose(SOMEONE), choose((PEOPLE,))
    first, second, heads = choose((MAKING,))
    thing = choose(heads)
    that, owner, did = clause_about(choose, second, thing)
    check_apart(subject, person)
    check_apart(person, owner)
    mode: Mode = choose(chosen.modes[subject.agreement])
    main = chosen.verb(mode.tense, subject.agreement, mode.negative)
    held = (
        subject.held
        or person.noun in chosen.held
        or held_out(first.name, thing.noun.name)
        or held_out(second.name, thing.noun.name)
    )
    done = first("past", person.agreement)
    return Draft((subject, main, person, WHO, done, thing, that, owner, did, STOP), int(held))


# Who cries, leaves … because another did so because of a mood.
CHAIN = tuple(
    (VERB[first], VERB[second], adjectives(moods))
    for first, second, moods in (
        ("cry", "leave", "sad sick tired nervous"),
        ("leave", "cry", "sad sick tired nervous"),
        ("leave", "sing", "happy brave"),
        ("come", "cry", "sad sick nervous"),
        ("stay", "leave", "sad sick tired"),
        ("sing", "arrive", "happy"),
    )
)


def because_because(choose: Choose) -> Draft:
    """Mary cried because Paul left because he was sick. (deeper)"""
    subject, other = choose(SOMEONE), choose(OTHERS)
    check_apart(subject, other)
    first, second, moods = choose((CHAIN,))
    mood = quality(choose((moods,)), other.agreement)
    cried, left = first("past", subject.agreement), second("past", other.agreement)
    reason = (BECAUSE, SELF[other.agreement], BE("past", other.agreement), mood)
    return Draft((subject, cried, BECAUSE, other, left, *reason, STOP), int(subject.held))
