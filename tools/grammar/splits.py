"""The splits: endless training pairs, and sentences that training never shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any
from zlib import crc32

from intently.foundation.checks import check_word
from intently.tasks.corpora.built_in import SPLITS

from .because import because
from .families import DEEPER, FAMILIES, GREETING, Family
from .pair import Draft, Pair, english_side, french_side
from .sentences import Choose, MismatchError
from .shown import SHOWN

NOVEL_BECAUSE = 0.35

ARTICLES = ("You are a wizard, Harry.", "Building AI models is cool.", "Mary gave roses to Susan.")
"""Sentences that articles about attention use: in the grammar, but in no split."""

KEPT_BACK = frozenset((*ARTICLES, *(pair.source for pair in SHOWN)))

# Of a hundred sentences, by the checksum of the English side: 0-2 validation, 3-6 test.
RESERVED = {"validation": range(0, 3), "test": range(3, 7), "train": range(7, 100)}


def language(split: str, seed: int = 0) -> Iterator[Pair]:
    """Return an endless stream of pairs of a split, the same for the same seed everywhere.

    `train`, `validation` and `test` share one distribution and no English sentence; `novel` holds
    combinations of words that these never show, `deeper` a clause more than they ever have.
    Greetings ("How are you?") are set phrases: all are in `train`, none in the other splits.

    >>> next(language("train")) == next(language("train"))
    True
    """
    check_word(split, "split", SPLITS)
    return stream(split, seed)


def stream(split: str, seed: int) -> Iterator[Pair]:
    """Yield the pairs of a split that exists."""
    random = Random(f"{split} {seed}").random
    choose = chooser(random)
    unseen = tuple(f for f in FAMILIES if f[0] != GREETING)
    table = weighted(DEEPER if split == "deeper" else FAMILIES if split == "train" else unseen)
    others = weighted(tuple(f for f in unseen if f[0] != "because"))
    reserved = RESERVED.get(split)
    while True:
        if split == "novel":
            kind, draft = novel(random, choose, others)
        else:
            kind, family = table[int(random() * len(table))]
            draft = ordinary(family, choose)
        source, source_words = english_side(draft)
        ours = reserved is None or kind == GREETING or crc32(source.encode()) % 100 in reserved
        if ours and source not in KEPT_BACK:
            target, target_words = french_side(draft)
            yield Pair(source, target, tuple(source_words), tuple(target_words), kind, draft)


def novel(
    random: Callable[[], float], choose: Choose, others: tuple[tuple[str, Family], ...]
) -> tuple[str, Draft]:
    """Return the kind and the draft of a sentence with a held-out combination of words.

    In a because-sentence that is the adjective with the noun that the pronoun stands for.
    """
    resolved = random() < NOVEL_BECAUSE
    while True:
        kind, family = ("because", because) if resolved else others[int(random() * len(others))]
        with suppress(MismatchError):
            draft = family(choose)
            if draft.held >= (2 if resolved else 1):
                return kind, draft


def ordinary(family: Family, choose: Choose) -> Draft:
    """Return a draft of a family without any held-out combination of words."""
    while True:
        with suppress(MismatchError):
            draft = family(choose)
            if not draft.held:
                return draft


def chooser(random: Callable[[], float]) -> Choose:
    """Return the `choose` that draws: a group of the slot, then a member of the group."""

    def choose(slot: Any) -> Any:
        group = slot[int(random() * len(slot))]
        return group[int(random() * len(group))]

    return choose


def weighted(families: tuple[tuple[str, Family, int], ...]) -> tuple[tuple[str, Family], ...]:
    """Return each family as often as it weighs."""
    return tuple((kind, family) for kind, family, weight in families for _ in range(weight))


def sample(split: str, count: int, seed: int = 0) -> list[Pair]:
    """Return `count` pairs of a split with distinct English sides.

    >>> len({pair.source for pair in sample("test", 50)})
    50
    """
    found: dict[str, Pair] = {}
    for pair in language(split, seed):
        if len(found) >= count:
            break
        found.setdefault(pair.source, pair)
    return list(found.values())
