"""How good translations are: BLEU and chrF as sacrebleu computes them, and exact matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from intently.errors import ArgumentError, build


@dataclass(frozen=True)
class Score:
    """A score from 0 to 100, and the signature without which it cannot be compared."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Return the BLEU of a corpus, one reference each.

    Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation",
    computed by sacrebleu (Post 2018, "A Call for Clarity in Reporting BLEU Scores"). Raises
    ArgumentError where the two differ in number or are empty.

    >>> bleu(["The cat sat on the mat."], ["The cat sat on the mat."]).value
    100.0
    """
    from sacrebleu.metrics.bleu import BLEU

    return _score("BLEU", BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Return the chrF of a corpus, one reference each.

    Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", computed by
    sacrebleu. Raises ArgumentError where the two differ in number or are empty.

    >>> chrf(["Le chat dort."], ["Le chat dort."]).signature.partition("|version")[0]
    'nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no'
    """
    from sacrebleu.metrics.chrf import CHRF

    return _score("chrF", CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share, from 0 to 1, of hypotheses equal to their reference.

    >>> exact_match(["Le chat dort.", "Il boit."], ["Le chat dort.", "Elle boit."])
    0.5
    """
    _check(hypotheses, references)
    return sum(map(str.__eq__, hypotheses, references)) / len(references)


def _score(name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    _check(hypotheses, references)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    # a product of n-gram precisions, rounded: a perfect score is 100.00000000000004
    return Score(name, min(100.0, score), str(metric.get_signature()))


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        expected = f"one for each of {len(references)} references, and at least one"
        raise build(ArgumentError, "hypotheses", expected, f"{len(hypotheses)} sentences")
