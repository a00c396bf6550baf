"""Word alignments: which words of a sentence and of its translation correspond."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from intently.core.matrix.lazy import LazyMatrix
from intently.errors import ArgumentError, build


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


def links(matrix: LazyMatrix) -> set[tuple[int, int]]:
    """Return the links (key, query) of a matrix (t, s): each query's key of largest weight.

    For cross-attention, these are (source, target), as `alignment_error_rate` takes them. A
    query that may attend to nothing has no link. Raises `ArgumentError` for more than two axes.

    Source: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models".

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> sorted(links(Dense(torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.25, 0.75]]))))
    [(0, 0), (2, 1)]
    """
    if matrix.ndim != 2:
        got, fix = f"shape {matrix.shape}", "choose one, A[0, 3], or average: A[0].mean_heads()"
        raise build(ArgumentError, "matrix", "one head of one sentence, (t, s)", got, fix=fix)
    return {(key, query) for query, key in enumerate(matrix.argmax().tolist()) if key >= 0}


def alignment_errors(matrices: Sequence[LazyMatrix], gold: Sequence[Alignment]) -> list[float]:
    """Return the alignment error rate of every head over a corpus, from 0 (best) to 1.

    Each matrix (h, t, s) belongs to one sentence pair, with rows for target words and columns for
    source words (`Merged` makes words of tokens); ``gold`` holds their known links (source,
    target). Each head links a target word to the source word with the largest weight.

    Raises `ArgumentError` if the two differ in number or are empty, and for matrices of other axes
    or different numbers of heads.

    Source: Och & Ney 2003, section 5.1.

    >>> import torch
    >>> from intently.core.matrix import Dense
    >>> straight, crossed = torch.eye(2), torch.eye(2).flip(0)
    >>> A, gold = Dense(torch.stack([straight, crossed])), Alignment.of([(0, 0), (1, 1)])
    >>> alignment_errors([A], [gold])
    [0.0, 1.0]
    """
    if len(matrices) != len(gold) or not gold:
        expected = f"one for each of {len(gold)} gold alignments, and at least one"
        raise build(ArgumentError, "matrices", expected, len(matrices))
    wrong = [m.shape for m in matrices if m.ndim != 3 or m.shape[0] != matrices[0].shape[0]]
    if wrong:
        expected = "(h, t, s) each, the same h in all"
        fix = "pass one sentence pair at a time: A[0] of a batch (b, h, t, s)"
        raise build(ArgumentError, "matrices", expected, f"shape {wrong[0]}", fix=fix)
    return [
        alignment_error_rate([links(m[head]) for m in matrices], gold)
        for head in range(matrices[0].shape[0])
    ]
