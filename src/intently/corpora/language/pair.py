"""A sentence pair, and how phrases become one: word order, elision, capitals, punctuation."""

from __future__ import annotations

from typing import NamedTuple

from intently.corpora.alignment import Alignment
from intently.corpora.language.phrases import Phrase
from intently.corpora.language.words import starts_with_vowel


class Pronoun(NamedTuple):
    """Which noun a pronoun stands for, as word indices of the pair.

    `source` is the index of it or they among the source words, `target` that of the French
    pronoun among the target words; `right` and `wrong` are the source indices of the noun it
    stands for and of the other one; `expected` is il, elle, ils or elles.
    """

    source: int
    target: int
    right: int
    wrong: int
    expected: str


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

    >>> from intently.corpora import SHOWN
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
        draft = self.draft
        starts = None if draft.order is None else french_starts(draft)
        sure: set[tuple[int, int]] = set()
        possible: set[tuple[int, int]] = set()
        e = f = 0
        for index, phrase in enumerate(draft.phrases):
            if starts is not None:
                f = starts[index]
            for i, j in phrase.sure:
                sure.add((e + i, f + j))
            for i, j in phrase.possible:
                possible.add((e + i, f + j))
            e += len(phrase.english)
            f += len(phrase.french)
        if draft.far:
            starts = french_starts(draft)
            for one, i, other, j, certain in draft.far:
                e = sum(len(phrase.english) for phrase in draft.phrases[:one])
                (sure if certain else possible).add((e + i, starts[other] + j))
        return Alignment(frozenset(sure), frozenset(possible | sure))

    @property
    def pronoun(self) -> Pronoun | None:
        """The referent of the pronoun of a because-sentence, or None."""
        if self.draft.pronoun is None:
            return None
        it, right, wrong = self.draft.pronoun
        starts, phrases, start = [], self.draft.phrases, 0
        for phrase in phrases:
            starts.append(start + phrase.head)
            start += len(phrase.english)
        target = french_starts(self.draft)[it]
        return Pronoun(starts[it], target, starts[right], starts[wrong], phrases[it].french[0])


def french_starts(draft: Draft) -> list[int]:
    """Return, for each phrase, the index of its first word in the French sentence."""
    starts = [0] * len(draft.phrases)
    start = 0
    for index in draft.order or range(len(draft.phrases)):
        starts[index] = start
        start += len(draft.phrases[index].french)
    return starts


ELIDED = {word: word[:-1] + "'" for word in ("le", "la", "je", "ne", "de", "que", "me", "se", "ce")}


class Cache(dict[str, str]):
    """Cache of capitalised words."""

    def __missing__(self, word: str) -> str:
        self[word] = result = word[0].upper() + word[1:]
        return result


class Vowels(dict[str, bool]):
    """Cache of whether a word elides the one before it."""

    def __missing__(self, word: str) -> bool:
        self[word] = result = starts_with_vowel(word)
        return result


CAPITAL = Cache()
BEFORE_VOWEL = Vowels()


def english_side(draft: Draft) -> tuple[str, list[str]]:
    """Return the English sentence and its words.

    >>> from intently.corpora.language.phrases import phrase
    >>> english_side(Draft((phrase("milk", "lait"), phrase(".", "."))))
    ('Milk.', ['Milk', '.'])
    """
    words: list[str] = []
    for phrase in draft.phrases:
        words += phrase.english
    words[0] = CAPITAL[words[0]]
    text = " ".join(words[:-1]) + words[-1]
    return (text.replace(" 's", "'s") if " 's" in text else text), words


def french_side(draft: Draft) -> tuple[str, list[str]]:
    """Return the French sentence and its words, elided.

    >>> from intently.corpora.language.phrases import phrase
    >>> french_side(Draft((phrase("the", "le"), phrase("tree", "arbre"), phrase("?", "?"))))
    ("L'arbre ?", ["L'", 'arbre', '?'])
    """
    words: list[str] = []
    phrases = draft.phrases
    if draft.order is None:
        for phrase in phrases:
            words += phrase.french
    else:
        for index in draft.order:
            words += phrases[index].french
    last = ""
    for index, word in enumerate(words):
        if last in ELIDED and BEFORE_VOWEL[word]:
            words[index - 1] = ELIDED[last]
        last = word
    words[0] = CAPITAL[words[0]]
    end = words[-1]
    text = " ".join(words[:-1]) + (end if end == "." else " " + end)
    return text.replace("' ", "'"), words


def realise(draft: Draft, kind: str) -> Pair:
    """Return the pair that a draft stands for."""
    source, source_words = english_side(draft)
    target, target_words = french_side(draft)
    return Pair(source, target, tuple(source_words), tuple(target_words), kind, draft)
