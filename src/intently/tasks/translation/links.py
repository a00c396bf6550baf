"""What teaches a guided head: word links of a file or of a first translator, as tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from intently.errors import DataError, build
from intently.tasks.corpora.files import ParallelText, TextFile, refuse_problems
from intently.tasks.text import Tokenizer, word_spans, words
from intently.tasks.training.batches import Guide
from intently.tasks.translation.evaluation import forced, links
from intently.tasks.translation.translator import Translator

PHARAOH = re.compile(r"(\d{1,9})-(\d{1,9})")


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


def read_links(path: Path | str, text: ParallelText) -> list[dict[tuple[int, int], float]]:
    """Return the links (target word, source word) of each pair from a Pharaoh file, each worth 1.

    It is what fast_align, eflomal and awesome-align write: a line for each pair, ``0-0 1-2 2-1``,
    with source and target positions of words between white space. Where `intently.tasks.text.words`
    divides such a word, each of its parts is linked. An empty line has no links.

    Raises `DataError` that lists the lines which are not of this format or name words that the
    sentences lack, or says that no line has links or that there are not as many lines as pairs.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "links.txt")
    >>> _ = file.write_text("0-0 1-1\\n")
    >>> [sorted(row) for row in read_links(file, ParallelText(["I sleep."], ["Je dors."]))]
    [[(0, 0), (1, 1), (1, 2), (2, 1), (2, 2)]]
    """
    file, found = TextFile(Path(path)), []
    for number, line in file.lines():
        links: dict[tuple[int, int], float] = {}
        if line is not None and number <= len(text):
            pair = text.sources[number - 1], text.targets[number - 1]
            source, target = map(_between_spaces, pair)
            for link in line.split():
                one, other = (
                    map(int, match.groups()) if (match := PHARAOH.fullmatch(link)) else (-1, -1)
                )
                if match is None:
                    file.refuse(f"{link!r} is not a link such as 0-1", number)
                elif one >= len(source) or other >= len(target):
                    sizes = f"{len(source)} and {len(target)} words"
                    file.refuse(f"{link} is none of the pair's {sizes}, counted from 0", number)
                else:
                    links |= {(i, j): 1.0 for i in target[other] for j in source[one]}
        found.append(links)
    if file.complete and len(found) != len(text):
        file.refuse(f"{len(found):,} lines for {len(text):,} sentence pairs")
    elif file.complete and not any(found):
        file.refuse("no line has a link")
    refuse_problems(str(path), "word links such as 0-0 1-2, a line for each sentence pair", [file])
    return found


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


def _between_spaces(sentence: str) -> list[list[int]]:
    """Return, for each word between white space, the indices of its parts in ``words``."""
    spans = word_spans(sentence)
    return [
        [n for n, (start, end) in enumerate(spans) if start < word.end() and end > word.start()]
        for word in re.finditer(r"\S+", sentence)
    ]
