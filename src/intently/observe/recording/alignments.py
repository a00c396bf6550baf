"""How well heads align two sentences: their links against gold ones, over a corpus."""

from __future__ import annotations

from collections.abc import Sequence

from intently.corpora import Alignment, alignment_error_rate
from intently.errors import ArgumentError, build
from intently.matrix import LazyMatrix
from intently.matrix.patterns import links


def alignment_errors(matrices: Sequence[LazyMatrix], gold: Sequence[Alignment]) -> list[float]:
    """Return the alignment error rate of every head over a corpus, from 0 (best) to 1.

    ``matrices`` hold one sentence pair each, (h, t, s), rows for target words and columns for
    source words (`Merged` makes words of tokens); ``gold`` their known links (source, target).
    Each head links a target word to the source word that it weighs most.

    Raises `ArgumentError` where the two differ in number or are empty, and for matrices of
    other axes or different numbers of heads.

    Source: Och & Ney 2003, section 5.1, through `intently.corpora.alignment_error_rate`.

    >>> import torch
    >>> from intently.matrix import Dense
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
        raise build(
            ArgumentError,
            "matrices",
            "(h, t, s) each, the same h in all",
            f"shape {wrong[0]}",
            fix="hand in one sentence pair at a time: A[0] of a batch (b, h, t, s)",
        )
    heads = range(matrices[0].shape[0])
    return [alignment_error_rate([links(m[h]) for m in matrices], gold) for h in heads]
