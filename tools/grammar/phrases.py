"""Phrases: a few words of English, the same of French, and the links between them."""

from __future__ import annotations

from functools import cache
from itertools import product

from .words import ADJECTIVE, NAME, NUMBERS, Adjective, Name, Noun, held_out, starts_with_vowel

# Who the subject is, as the French verb needs to know it.
JE, WE, YOU, HE, SHE, THEY_M, THEY_F = range(7)
FEMININE, PLURAL = (SHE, THEY_F), (WE, THEY_M, THEY_F)

SURE, POSSIBLE = True, False

Link = tuple[int, int, bool]
Words = tuple[str, ...]


class Phrase:
    """English words, French words, and links (English index, French index, sure).

    A phrase that is a noun phrase also carries its agreement, its noun and where that stands in
    English; `denied` is what it becomes as the object of a negated verb ("a car" → "de voiture").

    >>> Phrase(("with",), ("avec",)).links
    ((0, 0, True),)
    """

    __slots__ = ("agreement", "denied", "english", "french", "head", "held", "links", "noun")

    def __init__(
        self,
        english: Words,
        french: Words,
        links: tuple[Link, ...] | None = None,
        agreement: int = HE,
        noun: Noun | Name | None = None,
        head: int = 0,
        held: bool = False,
    ) -> None:
        self.english = english
        self.french = french
        if links is None:
            links = tuple((i, j, SURE) for i in range(len(english)) for j in range(len(french)))
        self.links = links
        self.agreement = agreement
        self.noun = noun
        self.head = head
        self.held = held
        self.denied = self

    def __repr__(self) -> str:
        return f"Phrase({' '.join(self.english)} → {' '.join(self.french)})"


# A slot is what may stand in one place: groups drawn evenly, each of phrases drawn evenly.
Slot = tuple[tuple[Phrase, ...], ...]

NOTHING = Phrase((), ())


def phrase(english: str, french: str, links: str = "", head: int = 0) -> Phrase:
    """Return a fixed phrase with its links, sure (``0-1``) or possible (``0?1``).

    Without links all of its words are linked to all.

    >>> phrase("because", "parce que").french
    ('parce', 'que')
    >>> phrase("I drink milk", "je bois du lait", "0-0 1-1 2?2 2-3").links[2:]
    ((2, 2, False), (2, 3, True))
    """
    pairs = tuple((int(link[0]), int(link[2]), link[1] == "-") for link in links.split())
    return Phrase(tuple(english.split()), tuple(french.split()), pairs or None, head=head)


# The French of an English determiner: masculine and feminine, the same before a vowel, and plural.
# "" is the bare noun, for a mass noun the partitive.
POSSESSIVES = {
    # Before a vowel the feminine is as the masculine: mon amie.
    english: (masculine, feminine, masculine, masculine, plural)
    for english, masculine, feminine, plural in (
        ("my", "mon", "ma", "mes"),
        ("your", "votre", "votre", "vos"),
        ("his", "son", "sa", "ses"),
        ("her", "son", "sa", "ses"),
        ("our", "notre", "notre", "nos"),
        ("their", "leur", "leur", "leurs"),
    )
}
DETERMINERS = {
    **POSSESSIVES,
    **{number: (french,) * 5 for number, french in NUMBERS.items()},
    "the": ("le", "la", "le", "la", "les"),
    "generic": ("le", "la", "le", "la", "les"),
    "a": ("un", "une", "un", "une", ""),
    "this": ("ce", "cette", "cet", "cette", ""),
    "these": ("", "", "", "", "ces"),
    "": ("du", "de la", "de l'", "de l'", "des"),
    "some": ("du", "de la", "de l'", "de l'", "des"),
    "any": ("de",) * 5,
    "many": ("beaucoup de",) * 5,
    "how_many": ("combien de",) * 5,
}
INDEFINITE = ("a", "", "some", "any")


def french_determiner(
    determiner: str, feminine: bool, plural: bool, vowel: bool, adjective_first: bool
) -> Words:
    """Return the French for an English determiner before a word that begins so.

    >>> french_determiner("this", False, False, vowel=True, adjective_first=False)
    ('cet',)
    >>> french_determiner("", True, False, vowel=True, adjective_first=False)
    ('de', "l'")
    """
    if plural and adjective_first and determiner in ("", "some"):
        return ("de",)
    return tuple(DETERMINERS[determiner][4 if plural else feminine + 2 * vowel].split())


def indefinite_article(following: str) -> str:
    """Return "a" or "an".

    >>> indefinite_article("owl")
    'an'
    """
    return "an" if following[0].lower() in "aeio" else "a"


@cache
def noun_phrase(
    noun: Noun, determiner: str, plural: bool, adjective: Adjective | None = None
) -> Phrase:
    """Return the noun with its determiner and perhaps an adjective, every word agreeing.

    Of a compound, the words before the English noun are linked to those after the French one.
    `determiner` is English ("the", "a", "" for none, "some", "my", "two", "Mary's"), or
    "generic", which is none in English and the definite article in French (I like milk).

    >>> from .words import NOUN
    >>> noun_phrase(NOUN["tree"], "this", False, ADJECTIVE["beautiful"]).french
    ('ce', 'bel', 'arbre')
    """
    owner = NAME[determiner.removesuffix("'s")] if determiner.endswith("'s") else None
    adjective_first = adjective is not None and adjective.before_noun
    *front, _ = english_nouns = tuple(noun.english[plural].split("_"))
    _, *tail = french_nouns = tuple(noun.french[plural].split("_"))
    if adjective is not None:
        form = adjective.form(noun.feminine, plural)
        if adjective_first and not noun.feminine and not plural:
            form = adjective.before_vowel if starts_with_vowel(french_nouns[0]) else form
        english_nouns = (adjective.name, *english_nouns)
        french_nouns = (form, *french_nouns) if adjective_first else (*french_nouns, form)

    french_start = french_determiner(
        "the" if owner else determiner,
        noun.feminine,
        plural,
        starts_with_vowel(french_nouns[0]),
        adjective_first,
    )
    if owner:
        english_start: Words = (owner.name, "'s")
    elif determiner == "a":
        english_start = (indefinite_article(english_nouns[0]),)
    else:
        spoken = "" if determiner == "generic" else determiner.replace("_", " ")
        english_start = tuple(spoken.split())

    e, f = len(english_start), len(french_start)
    head = e + len(english_nouns) - 1
    at = f + adjective_first
    links: list[Link] = [(head, at, SURE)]
    if adjective is not None:
        links.append((e, f if adjective_first else at + len(tail) + 1, SURE))
    for i in range(head - len(front), head):
        links += [(i, at + j, j == len(tail)) for j in range(1, len(tail) + 1)]
    french = french_start + french_nouns
    if owner:
        french += ("de", owner.name)
        links += [(0, len(french) - 1, SURE), (1, len(french) - 2, SURE), (1, 0, POSSIBLE)]
    elif e:
        links += [(i, j, SURE) for i in range(e) for j in range(f)]
    else:
        links += [(head, j, POSSIBLE) for j in range(f)]

    agreement = (HE, SHE, THEY_M, THEY_F)[noun.feminine + 2 * plural]
    held = adjective is not None and held_out(noun.name, adjective.name)
    result = Phrase(
        english_start + english_nouns, french, tuple(links), agreement, noun, head, held
    )
    if determiner in INDEFINITE:
        result.denied = denied_phrase(result, determiner, e, f)
    return result


def denied_phrase(affirmed: Phrase, determiner: str, e: int, f: int) -> Phrase:
    """Return the indefinite phrase as the object of a negated verb: no article but "de".

    "some" becomes "any". The first e English and f French words are the determiner.
    """
    english = ("any", *affirmed.english[1:]) if determiner == "some" else affirmed.english
    links = {(i, max(j - f + 1, 0), sure) for i, j, sure in affirmed.links}
    return Phrase(
        english,
        ("de", *affirmed.french[f:]),
        tuple(sorted(links)),
        affirmed.agreement,
        affirmed.noun,
        affirmed.head,
        affirmed.held,
    )


def name_phrase(name: Name) -> Phrase:
    """Return a name as a phrase."""
    return Phrase((name.name,), (name.name,), None, SHE if name.feminine else HE, name)


CONTRACTED = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}


def after_preposition(english: str, french: str, object_: Phrase) -> Phrase:
    """Return preposition and noun phrase; à and de contract with le and les.

    >>> from .words import NOUN
    >>> after_preposition("to", "à", noun_phrase(NOUN["garden"], "the", False)).french
    ('au', 'jardin')
    """
    before, words = tuple(english.split()), tuple(french.split())
    rest = object_.french
    shift = len(words)
    contracted = CONTRACTED.get((words[-1], rest[0]))
    if contracted and not (rest[0] == "le" and starts_with_vowel(rest[1])):
        words, rest, shift = (*words[:-1], contracted), rest[1:], shift - 1
    links = [(i, j, SURE) for i in range(len(before)) for j in range(len(words))]
    if not before:
        links = [(object_.head, j, POSSIBLE) for j in range(len(words))]
    links += [(i + len(before), j + shift, sure) for i, j, sure in object_.links]
    return Phrase(
        before + object_.english,
        words + rest,
        tuple(links),
        object_.agreement,
        object_.noun,
        len(before) + object_.head,
        object_.held,
    )


def fitting(noun: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that are said of a noun."""
    return tuple(adjective for adjective in ADJECTIVE.values() if adjective.fits(noun))


GROUPS: dict[str, tuple[str, ...]] = {
    "-": ("",),
    "numbers": tuple(NUMBERS),
    "possessive": tuple(POSSESSIVES),
    "genitive": tuple(f"{name}'s" for name in NAME),
}


def phrases(
    chosen: tuple[Noun, ...], determiners: str, adjectives: bool = False
) -> tuple[Phrase, ...]:
    """Return every phrase of these nouns with these determiners, with or without an adjective.

    A determiner stands with the numbers that it allows; "-" is the bare noun. "numbers",
    "possessive" and "genitive" stand for all of these.

    >>> from .words import NOUN
    >>> [" ".join(p.french) for p in phrases((NOUN["key"],), "the -")]
    ['la clé', 'les clés', 'des clés']
    """
    expanded = [one for word in determiners.split() for one in GROUPS.get(word, (word,))]
    return tuple(
        noun_phrase(noun, determiner, plural, adjective)
        for noun in chosen
        for determiner, plural in product(expanded, noun.numbers)
        if allows(determiner, plural, noun)
        for adjective in (fitting(noun) if adjectives else (None,))
    )


def allows(determiner: str, plural: bool, noun: Noun) -> bool:
    """Return whether a determiner may stand with a noun in this number."""
    if determiner in ("a", "this"):
        return not plural and not noun.mass
    if determiner in ("", "some", "any", "generic"):
        return plural or noun.mass
    return plural or not (determiner in NUMBERS or determiner in ("many", "how_many", "these"))
