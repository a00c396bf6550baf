"""Thirteen sentences for demonstrations, with gold alignments: in the grammar, but in no split."""

from __future__ import annotations

from .pair import Draft, Pair, realise
from .phrases import SHE, Phrase, phrase


def _phrase(english: str, french: str, links: str = "", head: int = 0) -> Phrase:
    """Return a phrase; without ``links``, word i is linked to word i."""
    one_to_one = " ".join(f"{i}-{i}" for i in range(len(english.split())))
    return phrase(english, french, links or one_to_one, head)


def _pair(kind: str, english: str, french: str, links: str = "") -> Pair:
    return realise(Draft((_phrase(english, french, links),)), kind)


def _because(adjective: str, pronoun: str, french: str, right: int, wrong: int) -> Pair:
    """Return the pair in which *it* is the animal (phrase 0) or the road (phrase 1)."""
    animal = _phrase(
        "the animal didn't cross", "le animal ne a pas traversé", "0-0 1-1 2-2 2?3 2-4 3?3 3-5", 1
    )
    road = _phrase("the road because", "la route parce que", "0-0 1-1 2-2 2-3", 1)
    road.agreement = SHE
    it = _phrase(f"it was too {adjective} .", f"{pronoun} était trop {french} .")
    return realise(Draft((animal, road, it), pronoun=(2, right, wrong)), "because")


GIVING = "0-0 1?1 1-2 2?5 2-6 3-3 4-4 5-7"

SHOWN: tuple[Pair, ...] = (
    _pair("partitive", "I drink milk .", "je bois du lait .", "0-0 1-1 2?2 2-3 3-4"),
    _because("tired", "il", "fatigué", 0, 1),
    _because("wide", "elle", "large", 1, 0),
    _pair("state", "the road was too wide .", "la route était trop large ."),
    _pair("giving", "Mary gave Susan a book .", "Mary a donné un livre à Susan .", GIVING),
    _pair("giving", "Susan gave Mary a book .", "Susan a donné un livre à Mary .", GIVING),
    _pair(
        "doing",
        "the cat sat on the mat .",
        "le chat se est assis sur le tapis .",
        "0-0 1-1 2?2 2?3 2-4 3-5 4-6 5-7 6-8",
    ),
    _pair("question", "where is the cat ?", "où est le chat ?"),
    _pair(
        "partitive",
        "I don't drink milk .",
        "je ne bois pas de lait .",
        "0-0 1-1 1-3 2-2 3?4 3-5 4-6",
    ),
    _pair(
        "pronoun",
        "Mary bought an apple and ate it .",
        "Mary a acheté une pomme et la a mangée .",
        "0-0 1?1 1-2 2-3 3-4 4-5 5?7 5-8 6-6 7-9",
    ),
    _pair(
        "question",
        "do you have two black horses ?",
        "est-ce que vous avez deux chevaux noirs ?",
        "0-0 0-1 0?3 1-2 2-3 3-4 4-6 5-5 6-7",
    ),
    _pair(
        "statement", "my old friend has a beautiful house .", "mon vieil ami a une belle maison ."
    ),
    _pair(
        "relative",
        "the car that Paul sold was old .",
        "la voiture que Paul a vendue était vieille .",
        "0-0 1-1 2-2 3-3 4?4 4-5 5-6 6-7 7-8",
    ),
)
