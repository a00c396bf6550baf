"""Word alignments: which words of a sentence and of its translation correspond."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from intently.corpora.files import ParallelText, TextFile, refuse_problems
from intently.errors import ArgumentError, build
from intently.text.words import word_spans

PHARAOH = re.compile(r"(\d{1,9})-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Alignment:
    """The links between the words of a pair, as (source index, target index).

    Every annotator would draw a *sure* link; a *possible* one may be drawn or left out. Sure links
    must also be possible; raises `ArgumentError` otherwise.

    >>> Alignment.of(sure=[(0, 0)], possible=[(0, 1)]).possible == {(0, 0), (0, 1)}
    True
    """

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]

    def __post_init__(self) -> None:
        if not self.sure <= self.possible:
            extra = sorted(self.sure - self.possible)
            got, fix = f"none of {extra}", "use Alignment.of(sure, possible), which adds them"
            raise build(ArgumentError, "possible", "every sure link among them", got, fix=fix)

    @classmethod
    def of(
        cls, sure: Iterable[tuple[int, int]], possible: Iterable[tuple[int, int]] = ()
    ) -> Alignment:
        """Return the alignment with these links; sure links also become possible links.

        >>> sorted(Alignment.of([(1, 1)], [(1, 0)]).possible)
        [(1, 0), (1, 1)]
        """
        certain = frozenset(sure)
        return cls(certain, certain.union(possible))


def alignment_error_rate(
    predicted: Iterable[set[tuple[int, int]]], gold: Iterable[Alignment]
) -> float:
    """Return the alignment error rate of the predicted links, between 0 (best) and 1.

    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), with A the predicted, S the sure and P the
    possible links, each counted over the whole corpus (Och & Ney 2003, "A Systematic Comparison
    of Various Statistical Alignment Models", Computational Linguistics 29(1), section 5.1).
    No predicted and no sure links give 0.0.

    >>> gold = Alignment.of(sure=[(0, 0), (2, 2)], possible=[(2, 1)])
    >>> alignment_error_rate([{(0, 0), (2, 1), (1, 1)}], [gold])  # 1 - (1 + 2) / (3 + 2)
    0.4
    """
    agreed = counted = 0
    for links, truth in zip(predicted, gold, strict=True):
        agreed += len(links & truth.sure) + len(links & truth.possible)
        counted += len(links) + len(truth.sure)
    return 1.0 - agreed / counted if counted else 0.0


def read_links(path: Path | str, text: ParallelText) -> list[dict[tuple[int, int], float]]:
    """Return the links (target word, source word) of each pair from a Pharaoh file, each worth 1.

    It is what fast_align, eflomal and awesome-align write: a line for each pair, ``0-0 1-2 2-1``,
    with source and target positions of words between white space. Where `intently.text.words`
    divides such a word, each of its parts is linked. An empty line has no links.

    Raises `DataError` that lists the lines which are not of this format or name words that the
    sentences lack, or says that the file has another number of lines than there are pairs.

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
    refuse_problems(str(path), "word links such as 0-0 1-2, a line for each sentence pair", [file])
    return found


def _between_spaces(sentence: str) -> list[list[int]]:
    """Return, for each word between white space, the indices of its parts in ``words``."""
    spans = word_spans(sentence)
    return [
        [n for n, (start, end) in enumerate(spans) if start < word.end() and end > word.start()]
        for word in re.finditer(r"\S+", sentence)
    ]
