"""A sentence pair, and how phrases become one: word order, elision, capitals, punctuation."""

from __future__ import annotations

from functools import cache
from itertools import accumulate, chain
from typing import NamedTuple

from intently.core.matrix.alignment import Alignment
from intently.tasks.corpora.built_in import Pronoun

from .phrases import HE, SHE, THEY_F, THEY_M, Phrase
from .words import starts_with_vowel

THIRD = {HE: "il", SHE: "elle", THEY_M: "ils", THEY_F: "elles"}
"""The French pronoun of a thing, by its agreement."""


# A link between words of different phrases: English phrase, word; French phrase, word; sure.
FarLink = tuple[int, int, int, int, bool]


class Draft(NamedTuple):
    """A sentence before its words are joined.

    `phrases` stand in English order; `order` lists their indices in French order, where that
    differs. `held` is 0, or 1 with a held-out combination, 2 with one that decides a pronoun.
    `pronoun` gives the indices of three phrases: the pronoun, the right and the wrong noun.
    """

    phrases: tuple[Phrase, ...]
    held: int = 0
    order: tuple[int, ...] | None = None
    far: tuple[FarLink, ...] = ()
    pronoun: tuple[int, int, int] | None = None


class Pair(NamedTuple):
    """A sentence in English and in French, its words, and how they are aligned.

    >>> from .shown import SHOWN
    >>> SHOWN[0].source, SHOWN[0].target_words
    ('I drink milk.', ('Je', 'bois', 'du', 'lait', '.'))
    >>> sorted(SHOWN[0].alignment.possible - SHOWN[0].alignment.sure)  # milk, du
    [(2, 2)]
    """

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    kind: str
    draft: Draft

    @property
    def alignment(self) -> Alignment:
        """The gold word alignment, as the grammar knows it."""
        e, f = starts(self.draft)
        links = [
            (e[index] + i, f[index] + j, certain)
            for index, phrase in enumerate(self.draft.phrases)
            for i, j, certain in phrase.links
        ]
        links += [(e[one] + i, f[other] + j, sure) for one, i, other, j, sure in self.draft.far]
        sure = [(i, j) for i, j, certain in links if certain]
        return Alignment.of(sure, [(i, j) for i, j, _ in links])

    @property
    def pronoun(self) -> Pronoun | None:
        """The referent of the pronoun of a because-sentence, or None."""
        if self.draft.pronoun is None:
            return None
        (e, f), phrases = starts(self.draft), self.draft.phrases
        it = self.draft.pronoun[0]
        source, right, wrong = (e[index] + phrases[index].head for index in self.draft.pronoun)
        other = THIRD[phrases[self.draft.pronoun[2]].agreement]
        return Pronoun(source, f[it], right, wrong, phrases[it].french[0], other)


def starts(draft: Draft) -> tuple[list[int], list[int]]:
    """Return the index of each phrase's first word in the English and in the French sentence."""
    english = [0, *accumulate(len(phrase.english) for phrase in draft.phrases)]
    french, start = [0] * len(draft.phrases), 0
    for index in draft.order or range(len(draft.phrases)):
        french[index] = start
        start += len(draft.phrases[index].french)
    return english, french


ELIDED = {word: word[:-1] + "'" for word in ("le", "la", "je", "ne", "de", "que", "me", "se", "ce")}


@cache
def capitalised(word: str) -> str:
    """Return the word with a capital, its other letters as they are.

    >>> capitalised("mary's")
    "Mary's"
    """
    return word[0].upper() + word[1:]


def attached(text: str) -> str:
    """Return the text without spaces before its commas and inner stops.

    >>> attached("I am fine , thank you . And you?")
    'I am fine, thank you. And you?'
    """
    if " ," in text:
        text = text.replace(" ,", ",")
    return text.replace(" . ", ". ") if " . " in text else text


def english_side(draft: Draft) -> tuple[str, list[str]]:
    """Return the English sentence and its words.

    >>> from .phrases import phrase
    >>> english_side(Draft((phrase("milk", "lait"), phrase(".", "."))))
    ('Milk.', ['Milk', '.'])
    """
    words = [*chain.from_iterable([phrase.english for phrase in draft.phrases])]
    words[0] = capitalised(words[0])
    text = " ".join(words[:-1]) + words[-1]
    return attached(text.replace(" '", "'") if " '" in text else text), words


def french_side(draft: Draft) -> tuple[str, list[str]]:
    """Return the French sentence and its words, elided.

    >>> from .phrases import phrase
    >>> french_side(Draft((phrase("the", "le"), phrase("tree", "arbre"), phrase("?", "?"))))
    ("L'arbre ?", ["L'", 'arbre', '?'])
    """
    phrases = draft.phrases if draft.order is None else [draft.phrases[n] for n in draft.order]
    words = [*chain.from_iterable([phrase.french for phrase in phrases])]
    last = ""
    for index, word in enumerate(words):
        if last in ELIDED and starts_with_vowel(word):
            words[index - 1] = ELIDED[last]
        last = word
    words[0] = capitalised(words[0])
    end = words[-1]
    text = " ".join(words[:-1]) + (end if end == "." else " " + end)
    return attached(text.replace("' ", "'")), words


def realise(draft: Draft, kind: str) -> Pair:
    """Return the pair that a draft stands for."""
    source, source_words = english_side(draft)
    target, target_words = french_side(draft)
    return Pair(source, target, tuple(source_words), tuple(target_words), kind, draft)
