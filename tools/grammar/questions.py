"""Questions: each English form has one French form, with est-ce que wherever there is a choice."""

from __future__ import annotations

from .pair import Draft, FarLink
from .phrases import HE, POSSIBLE, SHE, SURE, THEY_M, WE, YOU, Phrase, Slot, phrase, phrases
from .predicates import BE, LOCATED, STATE_SUBJECTS, described
from .sentences import FOOD, GENERAL, PERSONAL, Choose, Frame, check_apart
from .slots import ASK, KIN, NAMES, PEOPLE, PRONOUNS, when
from .verbs import VERB, Verb, be_words
from .words import held_out, nouns

THEY_AND_YOU = tuple(p for p in PRONOUNS if p.agreement in (YOU, THEY_M))
ASKED: Slot = (
    THEY_AND_YOU,
    tuple(p for p in PRONOUNS if p.agreement in (HE, SHE)),
    NAMES,
    PEOPLE,
    KIN,
)


def asked_tenses(verb: Verb, agreement: int) -> tuple[tuple[str, ...], ...]:
    """Return the tenses a question with this verb may have."""
    return tuple(
        (tense,)
        for letter, tense in (("p", "present"), ("d", "past"), ("f", "future"))
        if letter in verb.tenses and not (letter == "f" and agreement in (WE, YOU))
    )


def asking(tense: str, agreement: int) -> Phrase:
    """Return the word that opens an English question, with "est-ce que".

    >>> asking("present", HE).english, asking("past", YOU).french
    (('does',), ('est-ce', 'que'))
    """
    if tense == "present":
        return ASKING["does" if agreement in (HE, SHE) else "do"]
    return ASKING["did" if tense == "past" else "will"]


ASKING = {word: phrase(word, "est-ce que") for word in ("do", "does", "did", "will")}
# The English auxiliary may be linked to the French verb, two phrases on.
WHETHER_FAR: tuple[FarLink, ...] = ((0, 0, 2, 0, POSSIBLE),)
WH_FAR: tuple[FarLink, ...] = ((1, 0, 3, 0, POSSIBLE),)
FRAMES = (*GENERAL, *FOOD, *FOOD, *PERSONAL)
TENSES = {
    (verb.name, agreement): asked_tenses(verb, agreement)
    for verb in VERB.values()
    for agreement in range(7)
}


def whether(choose: Choose) -> Draft:
    """Did Mary cross the road? → Est-ce que Mary a traversé la route ?"""
    chosen: Frame = choose((FRAMES,))
    subject, object_ = choose(ASKED), choose(chosen.objects)
    tense: str = choose(TENSES[chosen.verb.name, subject.agreement])
    check_apart(subject, object_)
    time = choose(when(tense, False, "h" in chosen.verb.tenses))
    held = subject.held or object_.held or object_.noun in chosen.held
    verb = chosen.verb(tense, subject.agreement, asked=True)
    start = asking(tense, subject.agreement)
    return Draft((start, subject, verb, object_, time, ASK), int(held), None, WHETHER_FAR)


BE_TENSES = (("present",), ("past",))
BE_FAR: tuple[FarLink, ...] = ((0, 0, 2, 0, SURE),)
BE_ASKING = {
    word: Phrase((word,), ("est-ce", "que"), ((0, 0, POSSIBLE), (0, 1, POSSIBLE)))
    for word in ("is", "are", "was", "were")
}
BE_ASKED: Slot = tuple(
    tuple(p for p in group if p.english[0] not in ("I", "we")) for group in STATE_SUBJECTS
)
BE_SILENT = {
    (tense, agreement): Phrase((), BE(tense, agreement).french, ())
    for tense in ("present", "past")
    for agreement in range(7)
}


def whether_it_is(choose: Choose) -> Draft:
    """Is the soup too salty? → Est-ce que la soupe est trop salée ?"""
    subject = choose(BE_ASKED)
    tense: str = choose(BE_TENSES)
    said, held = described(choose, subject)
    start = BE_ASKING[be_words(tense, subject.agreement, False)[0]]
    verb = BE_SILENT[tense, subject.agreement]
    return Draft((start, subject, verb, said, ASK), int(held or subject.held), None, BE_FAR)


WHERE = phrase("where", "où")
WHERE_ASKED: Slot = LOCATED[:-1]


def where_is(choose: Choose) -> Draft:
    """Where is the cat? → Où est le chat ?"""
    subject = choose(WHERE_ASKED)
    tense: str = choose(BE_TENSES)
    return Draft((WHERE, BE(tense, subject.agreement), subject, ASK))


WH = (WHERE, phrase("why", "pourquoi"), phrase("when", "quand"))
WH_DOINGS = tuple(
    (VERB[verb], question)
    for verb, question in (
        ("sleep", WHERE),
        ("work", WHERE),
        ("sing", WHERE),
        ("go", WHERE),
        ("swim", WHERE),
        ("cry", WH[1]),
        ("leave", WH[1]),
        ("come", WH[1]),
        ("stay", WH[1]),
        ("arrive", WH[2]),
        ("leave", WH[2]),
        ("come", WH[2]),
        ("eat", WH[2]),
    )
)


def wondering(
    choose: Choose, question: Phrase, verb: Verb, held: int = 0, agree: int | None = None
) -> Draft:
    """Return a question with this opening about what somebody does; `agree` as of a `Verb`."""
    subject = choose(ASKED)
    tense: str = choose(TENSES[verb.name, subject.agreement])
    start = asking(tense, subject.agreement)
    said = verb(tense, subject.agreement, agree=agree, asked=True)
    return Draft((question, start, subject, said, ASK), held, None, WH_FAR)


def where_when_why(choose: Choose) -> Draft:
    """When will Paul arrive? → Quand est-ce que Paul arrivera ?"""
    verb, question = choose((WH_DOINGS,))
    return wondering(choose, question, verb)


WHAT = phrase("what", "que")
WHAT_VERBS = tuple(
    VERB[name]
    for name in [
        "buy",
        "eat",
        "drink",
        "read",
        "see",
        "find",
        "lose",
        "write",
        "sell",
        "take",
        "want",
    ]
)


def what(choose: Choose) -> Draft:
    """What did Mary buy? → Qu'est-ce que Mary a acheté ?"""
    return wondering(choose, WHAT, choose((WHAT_VERBS,)))


WHO = phrase("who", "qui")


def who(choose: Choose) -> Draft:
    """Who ate the apple? → Qui a mangé la pomme ?"""
    chosen: Frame = choose((FRAMES,))
    object_ = choose(chosen.objects)
    tense: str = choose(TENSES[chosen.verb.name, HE])
    held = object_.held or object_.noun in chosen.held
    return Draft((WHO, chosen.verb(tense, HE), object_, ASK), int(held))


HOW_MANY: tuple[tuple[Verb, tuple[Phrase, ...]], ...] = tuple(
    (VERB[verb], phrases(nouns(classes), "how_many"))
    for verb, classes in (
        ("buy", "small_thing clothes count_food"),
        ("eat", "count_food"),
        ("see", "beast vehicle"),
        ("find", "small_thing"),
        ("lose", "small_thing"),
        ("sell", "vehicle clothes"),
        ("have", "pet thing"),
        ("want", "count_food thing"),
    )
)


def how_many(choose: Choose) -> Draft:
    """How many apples did you eat? → Combien de pommes est-ce que vous avez mangées ?"""
    verb, counted = choose((HOW_MANY,))
    things = choose((counted,))
    held = int(held_out(verb.name, things.noun.name))
    return wondering(choose, things, verb, held, things.agreement)
