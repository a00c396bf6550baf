"""What somebody is, said to somebody by name, and activities as subjects: the articles' sentences.

"You are a wizard, Harry", "Mary is a student", "Building AI models is cool".
"""

from __future__ import annotations

from dataclasses import replace

from .pair import Draft
from .phrases import (
    FEMININE,
    HE,
    NOTHING,
    PLURAL,
    THEY_F,
    YOU,
    Phrase,
    Slot,
    fitting,
    noun_phrase,
    phrases,
)
from .predicates import BE, BE_MODES, SWIMMING, command, degrees, described, quality
from .sentences import Choose, MismatchError, Mode, without_future
from .slots import BANG, COMMA, IN, KIN, NAMES, PEOPLE, PRONOUNS, SOMEONE, SPEAKERS, STOP
from .verbs import VERB, Verb
from .words import ADJECTIVE, Noun, adjectives, held_out, nouns

# --- roles --------------------------------------------------------------------------------------

# Said without an article in French: "Mary est étudiante"; with an adjective they take one.
PROFESSIONS = frozenset({"teacher", "doctor", "student"})
FEMININE_FORMS = {
    "teacher": ("professeure", "professeures"),
    "doctor": ("médecin", "médecins"),
    "student": ("étudiante", "étudiantes"),
    "child": ("enfant", "enfants"),
}


def roles(feminine: bool) -> tuple[Noun, ...]:
    """Return what a man, or a woman, may be.

    >>> [noun.french[0] for noun in roles(feminine=True)][-2:]
    ['médecin', 'étudiante']
    """
    return tuple(
        replace(noun, french=FEMININE_FORMS[noun.name], feminine=True)
        if feminine and not noun.feminine
        else noun
        for noun in nouns("person")
        if noun.feminine == feminine or (feminine and noun.name in FEMININE_FORMS)
    )


WOMEN = tuple(noun for noun in nouns("person") if noun.feminine)


def without_article(affirmed: Phrase) -> Phrase:
    """Return a noun without its French article, to which an English one may be linked."""
    links = {(i, max(j - 1, 0), sure and j > 0) for i, j, sure in affirmed.links}
    words = affirmed.english, affirmed.french[1:], tuple(sorted(links))
    return Phrase(*words, affirmed.agreement, affirmed.noun, affirmed.head)


def role_phrases(feminine: bool, plural: bool) -> Slot:
    """Return "a wizard", "a student" and "a good student", or the same in the plural."""
    determiner = "" if plural else "a"
    plain = {n: noun_phrase(n, determiner, plural) for n in roles(feminine)}
    return (
        tuple(
            without_article(said) if noun.name in PROFESSIONS else said
            for noun, said in plain.items()
        ),
        tuple(
            noun_phrase(noun, determiner, plural, adjective)
            for noun in plain
            for adjective in (ADJECTIVE["good"], *fitting(noun))
            if noun.name != "doctor" or not feminine
        ),
    )


ROLES = {
    (feminine, plural): (plain, plain, described)
    for feminine in (False, True)
    for plural in (False, True)
    for plain, described in (role_phrases(feminine, plural),)
}
# "I", "you" and "we" are masculine, but for what is a woman's alone: "I am a queen".
SPEAKING_ROLES = {
    plural: (*ROLES[False, plural], phrases(WOMEN, "-" if plural else "a"))
    for plural in (False, True)
}
# "He is a wizard" is "C'est un sorcier", but "He is a student" is "Il est étudiant".
OTHERS = tuple(p for p in PRONOUNS if p not in SPEAKERS)
CE = {p.agreement: Phrase(p.english, ("ce",), None, p.agreement) for p in OTHERS}
SOMEBODY: Slot = (
    *(SPEAKERS, OTHERS, NAMES, NAMES, PEOPLE, KIN),
    phrases(WOMEN, "the these") + tuple(p for p in KIN if p.agreement == THEY_F),
)


def being_somebody(choose: Choose) -> Draft:
    """Mary is a student. → Mary est étudiante."""
    subject = choose(SOMEBODY)
    mode: Mode = choose(without_future(BE_MODES, subject.agreement))
    feminine, plural = subject.agreement in FEMININE, subject.agreement in PLURAL
    role = choose(SPEAKING_ROLES[plural] if subject in SPEAKERS else ROLES[feminine, plural])
    if isinstance(subject.noun, Noun) and subject.noun.name == role.noun.name:
        raise MismatchError
    verb = BE(mode.tense, subject.agreement, mode.negative)
    if subject in OTHERS and len(role.french) > 1:
        subject = CE[subject.agreement]
    return Draft((subject, verb, role, STOP), int(subject.held or role.held))


# --- said to somebody ---------------------------------------------------------------------------

[YOU_ARE] = (p for p in PRONOUNS if p.agreement == YOU)
KINDS = (("role", "role", "state", "command"),)
ENDS: Slot = ((STOP,), (STOP,), (BANG,))


def calling(choose: Choose) -> Draft:
    """You are a wizard, Harry. → Vous êtes un sorcier, Harry."""
    name, kind = choose((NAMES,)), choose(KINDS)
    if kind == "command":
        *said, _ = (ordered := command(choose)).phrases
        held = ordered.held
    else:
        mode: Mode = choose(without_future(BE_MODES, YOU))
        if kind == "role":
            what = choose(ROLES[name.agreement in FEMININE, False])
            held = int(what.held)
        else:
            what, _ = described(choose, name)
            held = 0
        said = [YOU_ARE, BE(mode.tense, YOU, mode.negative), what]
    if choose(((False, False, True),)):
        return Draft((name, COMMA, *said, choose(ENDS)), held)
    return Draft((*said, COMMA, name, choose(ENDS)), held)


# --- activities ---------------------------------------------------------------------------------


def gerund(base: str) -> str:
    """Return the English -ing form.

    >>> gerund("write"), gerund("see"), gerund("swim")
    ('writing', 'seeing', 'swimming')
    """
    if base in ("swim", "sit"):
        return base + base[-1] + "ing"
    return (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"


def doing(verb: Verb) -> Phrase:
    """Return a verb as the name of an activity: "building", "construire"."""
    base, *rest = verb.english[0]
    return Phrase((gerund(base), *rest), (verb.infinitive, *verb.tail))


def done_to(classes: str) -> Slot:
    """Return what an activity has as its object, most often all of a kind."""
    chosen = nouns(classes)
    return (*(phrases(chosen, "-"),) * 3, phrases(chosen, "the a"))


NO_OBJECT: Slot = ((NOTHING,), (NOTHING,), IN)
ACTIVITIES = tuple(
    (doing(VERB[verb]), objects, frozenset(n for n in held if held_out(verb, n.name)))
    for verb, classes in (
        ("build", "artefact"),
        ("build", "artefact building bridge basin"),
        ("train", "artefact"),
        ("read", "text"),
        ("write", "written tale"),
        ("eat", "food"),
        ("drink", "drink"),
        ("buy", "thing clothes vehicle print"),
        ("sell", "thing clothes vehicle"),
        ("climb", "height"),
        ("cross", "way stream bridge"),
        ("swim", "stream basin"),
        ("sing", ""),
        ("sleep", ""),
        ("work", ""),
    )
    for held in (nouns(classes),)
    for objects in ((SWIMMING if verb == "swim" else done_to(classes)) if classes else NO_OBJECT,)
)
JUDGED = adjectives("cool hard easy fun important")
LIKE = VERB["like"]


def active(choose: Choose) -> tuple[Phrase, Phrase, int]:
    """Return an activity, its object or place, and whether the two are held out."""
    activity, objects, held = choose((ACTIVITIES,))
    object_ = choose(objects)
    return activity, object_, int(object_.noun in held or object_.held)


def activity(choose: Choose) -> Draft:
    """Building AI models is cool. → Construire des modèles d'IA est cool."""
    doing, object_, held = active(choose)
    mode: Mode = choose(BE_MODES)
    adjective = choose((JUDGED,))
    said = quality(adjective, HE, *choose(degrees(adjective)))
    return Draft((doing, object_, BE(mode.tense, HE, mode.negative), said, STOP), held)


def likes_doing(choose: Choose) -> Draft:
    """I don't like building AI models. → Je n'aime pas construire des modèles d'IA."""
    subject = choose(SOMEONE)
    likes = LIKE("present", subject.agreement, choose(((False, False, True),)))
    doing, object_, held = active(choose)
    return Draft((subject, likes, doing, object_, STOP), held or int(subject.held))
