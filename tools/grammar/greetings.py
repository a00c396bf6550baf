"""Greetings and small talk: set phrases, each of which training shows.

They are too few to be reserved for an evaluation, so all of them are in the training pairs, and
none in the other splits (see `splits`).
"""

from __future__ import annotations

from .pair import Draft
from .phrases import HE, NOTHING, SHE, Phrase, Slot, phrase, phrases
from .sentences import Choose
from .slots import ASK, BANG, COMMA, KIN, NAMES, PRONOUNS, STOP
from .words import NUMBERS, nouns, rows


def table(text: str) -> tuple[Phrase, ...]:
    """Return the phrases of a table: English, French, and links where not all words are linked.

    >>> table("thank you very much | merci beaucoup | 0-0 1-0 2-1 3-1")[0].links[-1]
    (3, 1, True)
    """
    columns = ([*map(" ".join, cells), ""] for cells in rows(text))
    return tuple(phrase(english, french, links) for english, french, links, *_ in columns)


# Said with a stop or an exclamation mark, alone or to somebody: "Good morning, Mary!"
GREETINGS = table("""
hello          | bonjour
hi             | salut
good morning   | bonjour
good evening   | bonsoir
good night     | bonne nuit
goodbye        | au revoir
see you tomorrow | à demain  | 0-0 1-0 2-1
welcome        | bienvenue
thank you      | merci
thank you very much | merci beaucoup | 0-0 1-0 2-1 3-1
please         | s' il vous plaît
yes            | oui
no             | non
excuse me      | excusez-moi
I am sorry     | je suis désolé | 0-0 1-1 2-2
nice to meet you | enchanté
happy birthday | joyeux anniversaire | 0-0 1-1
I love you     | je t' aime | 0-0 1-2 2-1
""")
# What may come before more, or before a name and more: "Hello, how are you?"
OPENINGS = tuple(
    said
    for said in GREETINGS
    if " ".join(said.english)
    in ("hello", "hi", "good morning", "good evening", "excuse me", "thank you", "yes", "no")
)
QUESTIONS = table("""
how are you     | comment allez-vous | 0-0 1-1 2-1
how is he       | comment va-t-il    | 0-0 1-1 2-1
how is she      | comment va-t-elle  | 0-0 1-1 2-1
how are they    | comment vont-ils   | 0-0 1-1 2-1
where are you   | où êtes-vous       | 0-0 1-1 2-1
where is he     | où est-il          | 0-0 1-1 2-1
where is she    | où est-elle        | 0-0 1-1 2-1
where are they  | où sont-ils        | 0-0 1-1 2-1
who are you     | qui êtes-vous      | 0-0 1-1 2-1
who is he       | qui est-il         | 0-0 1-1 2-1
who is she      | qui est-elle       | 0-0 1-1 2-1
who is this     | qui est-ce         | 0-0 1-1 2-1
how old are you  | quel âge avez-vous | 0-0 1-1 2-2 3-2
how old is he    | quel âge a-t-il    | 0-0 1-1 2-2 3-2
how old is she   | quel âge a-t-elle  | 0-0 1-1 2-2 3-2
what is your name | comment vous appelez-vous | 0-0 1?1 1-2 2-1 2?2 3-2
what 's your name | comment vous appelez-vous | 0-0 1?1 1-2 2-1 2?2 3-2
what is his name  | comment se appelle-t-il   | 0-0 1?1 1-2 2?1 2-2 3-2
what is her name  | comment se appelle-t-elle | 0-0 1?1 1-2 2?1 2-2 3-2
what is this    | que est-ce que ce est | 0-0 0-1 0-2 1-4 2-3
what is that    | que est-ce que ce est | 0-0 0-1 0-2 1-4 2-3
what time is it | quelle heure est-il | 0-0 1-1 2-2 3-2
and you         | et vous | 0-0 1-1
""")
WELL = table("""
I am fine  | je vais bien | 0-0 1-1 2-2
I 'm fine  | je vais bien | 0-0 1-1 2-2
I am well  | je vais bien | 0-0 1-1 2-2
I 'm well  | je vais bien | 0-0 1-1 2-2
he is fine | il va bien   | 0-0 1-1 2-2
she is fine   | elle va bien   | 0-0 1-1 2-2
they are fine | ils vont bien  | 0-0 1-1 2-2
""")
THANKS = table("""
, thank you | , merci | 0-0 1-1 2-1
""")
AND_YOU = table("""
, and you ? | , et vous ? | 0-0 1-1 2-2 3-3
. And you ? | . Et vous ? | 0-0 1-1 2-2 3-3
""")
ANSWERS = table("""
I don't know  | je ne sais pas | 0-0 1-1 1-3 2-2
I don't understand | je ne comprends pas | 0-0 1-1 1-3 2-2
""")

# --- talk of somebody or something --------------------------------------------------------------

RELATIVES = tuple(p for p in KIN if p.agreement in (HE, SHE))
SOMEBODY: Slot = (NAMES, NAMES, RELATIVES)
THINGS = tuple(
    p for p in phrases(nouns("pet thing small_thing vehicle"), "a my") if p.agreement in (HE, SHE)
)
ASKED_OF = table("""
how is     | comment va | 0-0 1-1
who is     | qui est    | 0-0 1-1
how old is | quel âge a | 0-0 1-1 2-2
""")
NAMED_BY = table("""
my name is  | je me appelle   | 0-0 0-1 1-2 2?2
I am        | je suis         | 0-0 1-1
I 'm        | je suis         | 0-0 1-1
""")
FEMININE_NAMES, MASCULINE_NAMES = (
    tuple(p for p in NAMES if p.agreement == gender) for gender in (SHE, HE)
)
INTRODUCTIONS: tuple[tuple[tuple[Phrase, ...], Slot], ...] = (
    (NAMED_BY[:1], (NAMES,)),
    (NAMED_BY[1:], (NAMES,)),
    (table("his name is | il se appelle | 0-0 0-1 1-2 2?2"), (MASCULINE_NAMES,)),
    (table("her name is | elle se appelle | 0-0 0-1 1-2 2?2"), (FEMININE_NAMES,)),
    (table("this is | ce est | 0-0 1-1"), (NAMES, RELATIVES, THINGS)),
)
HAVING = {"I": "am ai", "you": "are avez", "he": "is a", "she": "is a", "we": "are avons"}
AGES = table(
    "\n".join(
        f"{p.english[0]} {be} {number} years old | "
        f"{p.french[0]} {have} {french} ans | 0-0 1-1 2-2 3-3 4-3"
        for p in PRONOUNS
        if p.english[0] in HAVING
        for be, have in (HAVING[p.english[0]].split(),)
        for number, french in NUMBERS.items()
    )
)

# --- the families -------------------------------------------------------------------------------

MARKS: Slot = ((STOP,), (STOP,), (BANG,))
PAUSES: Slot = ((COMMA,), (NOTHING,))
TO_NAME: Slot = ((NOTHING,), (NOTHING,), NAMES)


def addressed(choose: Choose, said: Phrase) -> tuple[Phrase, ...]:
    """Return the phrase, perhaps said to somebody: "hello", "hello, Paul", "hello Paul"."""
    name = choose(TO_NAME)
    return (said,) if name is NOTHING else (said, choose(PAUSES), name)


def greeting(choose: Choose) -> Draft:
    """Good morning, Mary! → Bonjour, Mary !"""
    return Draft((*addressed(choose, choose((GREETINGS,))), choose(MARKS)))


ALONE: Slot = ((NOTHING,), (NOTHING,), (NOTHING,), OPENINGS)


def opened(choose: Choose, *said: Phrase) -> Draft:
    """Return the draft, perhaps after a greeting: "Hello, how are you?"."""
    opening = choose(ALONE)
    if opening is NOTHING:
        return Draft(said)
    return Draft((*addressed(choose, opening), COMMA, *said))


def small_question(choose: Choose) -> Draft:
    """How are you? → Comment allez-vous ?"""
    return opened(choose, choose((QUESTIONS,)), ASK)


def question_of(choose: Choose) -> Draft:
    """How old is your sister? → Quel âge a votre sœur ?"""
    return opened(choose, choose((ASKED_OF,)), choose(SOMEBODY), ASK)


THANKING: Slot = ((NOTHING,), THANKS)
ENDS: Slot = (*MARKS, AND_YOU)


def being_well(choose: Choose) -> Draft:
    """I am fine, thank you. → Je vais bien, merci."""
    return opened(choose, choose((WELL,)), choose(THANKING), choose(ENDS))


def answer(choose: Choose) -> Draft:
    """I am ten years old. → J'ai dix ans."""
    return opened(choose, choose((ANSWERS, ANSWERS, AGES)), choose(MARKS))


def introduction(choose: Choose) -> Draft:
    """My name is Mary. → Je m'appelle Mary."""
    said, whom = choose((INTRODUCTIONS,))
    return opened(choose, choose((said,)), choose(whom), choose(MARKS))
