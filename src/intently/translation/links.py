"""What teaches a guided head: links read off a first translator, and guides as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intently.corpora.files import ParallelText
from intently.errors import DataError, build
from intently.text import Tokenizer, words
from intently.training.batches import Guide
from intently.translation.evaluation import forced, links
from intently.translation.translator import Translator


class Encoded(NamedTuple):
    """The sentences of one side, their tokenizer and their ids."""

    tokenizer: Tokenizer
    sentences: Sequence[str]
    ids: Sequence[Sequence[int]]

    @classmethod
    def by(cls, tokenizer: Tokenizer, sentences: Sequence[str]) -> Encoded:
        """Return the sentences, encoded."""
        return cls(tokenizer, sentences, tokenizer.encode_batch(sentences))

    def groups(self, row: int) -> list[list[int]]:
        """Return the positions of each word's tokens."""
        return self.tokenizer.word_groups(self.sentences[row], self.ids[row])


def links_of(translator: Translator, text: ParallelText) -> list[dict[tuple[int, int], float]]:
    """Return the links (target word, source word) of pairs by a translator, each worth 1.

    Each target word is linked to the source word that the translator's alignment weighs most under
    forced decoding (Garg et al. 2019, section 5.2); the final full stop has no links. Pairs too
    long for the translator have none. Raises `ArgumentError` if its model has no attention.
    """
    most, found = translator.max_length, [dict[tuple[int, int], float]() for _ in text.sources]
    read, written = translator.source_tokenizer, translator.target_tokenizer
    sizes = zip(read.encode_batch(text.sources), written.encode_batch(text.targets))
    short = [n for n, (one, other) in enumerate(sizes) if len(one) <= most and len(other) <= most]
    sides = [(text.sources[n], text.targets[n]) for n in short]
    for n, (source, target), matrices in zip(short, sides, forced(translator, sides)):
        weights = translator.align(matrices).dense()
        found[n] = {(j, i): 1.0 for i, j in links(weights, words(source), words(target))}
    return found


def token_guides(
    guides: Sequence[Guide], head: str, source: Encoded, target: Encoded
) -> list[dict[tuple[int, int], float]]:
    """Return guides between words as guides between their tokens, all of one word like it.

    The keys are source words, and so are the queries of an encoder's ``head``. Raises `DataError`
    for a word that a sentence lacks.
    """
    asking = source if head.startswith("encoder") else target
    found = [dict[tuple[int, int], float]() for _ in guides]
    for n, row in enumerate(guides):
        keys, queries = (source.groups(n), asking.groups(n)) if row else ([], [])
        for (i, j), part in row.items():
            if not (0 <= i < len(queries) and 0 <= j < len(keys)):
                expected = f"two of {len(queries)} and {len(keys)} words"
                raise build(DataError, f"guides[{n}]", expected, (i, j))
            found[n] |= {(query, key): part for query in queries[i] for key in keys[j]}
    return found
