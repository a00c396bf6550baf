"""The lexicon's rows as values: nouns, adjectives and names with their French forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from zlib import crc32

from .lexicon import ADJECTIVES, NAMES, NOUNS

NUMBERS = {
    "two": "deux",
    "three": "trois",
    "four": "quatre",
    "five": "cinq",
    "six": "six",
    "seven": "sept",
    "eight": "huit",
    "nine": "neuf",
    "ten": "dix",
    "eleven": "onze",
    "twelve": "douze",
}

# Before these, an initial vowel does not count as one: "le hibou", "parce que huit …", "que onze
# …".
ASPIRATED = ("hibou", "haut", "huit", "onze", "Harry")
VOWELS = frozenset("aàâeéèêëiîïoôuùûhœy")


@cache
def starts_with_vowel(word: str) -> bool:
    """Return whether French words elide before this one: l'homme, but le hibou.

    >>> starts_with_vowel("homme"), starts_with_vowel("hibou")
    (True, False)
    """
    return word[0].lower() in VOWELS and not word.startswith(ASPIRATED)


def held_out(*combination: str) -> bool:
    """Return whether this combination of words is kept for the split `novel` (about 7 %).

    The choice is a checksum of the words, the same in every process and for every seed.

    >>> held_out("cow", "tired") == held_out("cow", "tired")
    True
    """
    if not KEPT_WORDS.isdisjoint(combination):
        return False
    return crc32(" ".join(("held-out", *combination)).encode()) % 100 < 7


# Words of shown sentences and words with few combinations: none of theirs are held out.
KEPT_WORDS = frozenset(
    {"animal", "road", "milk", "mat", "street", "river", "river_bank", "pool", "world", "rose"}
    | {"wizard", "AI", "AI_model", "model"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """An English noun and the French one: forms (singular, plural), gender, classes."""

    name: str
    english: tuple[str, str]
    french: tuple[str, str]
    feminine: bool
    classes: frozenset[str]

    @property
    def mass(self) -> bool:
        """Whether it is a mass noun: milk, bread."""
        return not self.english[1] and "kin" not in self.classes

    @property
    def numbers(self) -> tuple[bool, ...]:
        """The numbers it has: False the singular, True the plural."""
        return (False, True) if self.english[1] else (False,)


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An English adjective and the French one: forms m, f, m plural, f plural, and place."""

    name: str
    forms: tuple[str, str, str, str]
    before_vowel: str
    before_noun: bool
    classes: frozenset[str]

    def form(self, feminine: bool, plural: bool) -> str:
        """Return the form that agrees.

        >>> ADJECTIVE["white"].form(feminine=True, plural=True)
        'blanches'
        """
        return self.forms[feminine + 2 * plural]

    def fits(self, noun: Noun) -> bool:
        """Return whether the adjective is said of this noun.

        >>> ADJECTIVE["wide"].fits(NOUN["road"]), ADJECTIVE["wide"].fits(NOUN["cat"])
        (True, False)
        """
        return not self.classes.isdisjoint(noun.classes)


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A person's name, the same in both languages."""

    name: str
    feminine: bool
    classes: frozenset[str] = field(default=frozenset({"name"}))


def rows(table: str) -> Iterator[list[list[str]]]:
    """Yield the rows of a table of the lexicon, cut into columns and those into words.

    >>> next(rows("cat cats | chat chats m | pet"))
    [['cat', 'cats'], ['chat', 'chats', 'm'], ['pet']]
    """
    for line in table.splitlines():
        if line.strip():
            yield [["" if w == "-" else w for w in cell.split()] for cell in line.split("|")]


NOUN = {
    english[0]: Noun(
        english[0],
        (english[0], english[1]),
        (french[0], french[1]),
        french[2] == "f",
        frozenset(classes),
    )
    for english, french, classes in rows(NOUNS)
}
ADJECTIVE = {
    name: Adjective(
        name,
        (forms[0], forms[1], forms[2], forms[3]),
        forms[-1] if len(forms) == 5 else forms[0],
        place == "before",
        frozenset(classes),
    )
    for (name,), forms, (place,), classes in rows(ADJECTIVES)
}
NAME = {name: Name(name, gender == "f") for (name,), (gender,) in rows(NAMES)}


def nouns(classes: str) -> tuple[Noun, ...]:
    """Return the nouns of any of these classes, in the lexicon's order.

    >>> [noun.name for noun in nouns("hollow stream")]
    ['river', 'lake', 'tunnel', 'cave']
    """
    wanted = classes.split()
    return tuple(noun for noun in NOUN.values() if not noun.classes.isdisjoint(wanted))


def listed(names: str) -> tuple[Noun, ...]:
    """Return nouns given by their names or by their classes.

    >>> [noun.name for noun in listed("water hollow")]
    ['water', 'tunnel', 'cave']
    """
    return tuple(n for w in names.split() for n in ([NOUN[w]] if w in NOUN else nouns(w)))


def adjectives(names: str) -> tuple[Adjective, ...]:
    """Return the adjectives of these names.

    >>> adjectives("wide steep")[1].forms[0]
    'raide'
    """
    return tuple(ADJECTIVE[name] for name in names.split())
