"""Scores come from sacrebleu, with their signatures."""

from __future__ import annotations

import pytest
import sacrebleu

from intently.errors import ArgumentError
from intently.training.metrics import bleu, chrf, exact_match

HYPOTHESES = ["The cat sat on a mat today.", "I drink milk."]
REFERENCES = ["The cat sat on the mat today.", "I drank some milk."]


def test_equal_to_sacrebleu() -> None:
    assert bleu(HYPOTHESES, REFERENCES).value == pytest.approx(
        sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    )
    assert chrf(HYPOTHESES, REFERENCES).value == pytest.approx(
        sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    )


def test_a_score_says_how_it_was_computed() -> None:
    text = str(bleu(HYPOTHESES, REFERENCES))
    assert text.startswith("BLEU ") and "tok:13a" in text and sacrebleu.__version__ in text


@pytest.mark.parametrize("metric", [bleu, chrf, exact_match])
@pytest.mark.parametrize("hypotheses", [[], ["one"]])
def test_as_many_hypotheses_as_references(metric, hypotheses) -> None:
    with pytest.raises(ArgumentError, match="hypotheses: expected one for each of"):
        metric(hypotheses, REFERENCES if hypotheses else [])
