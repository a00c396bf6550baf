"""Alignments and their error rate."""

from __future__ import annotations

import pytest

from intently.core.matrix.alignment import Alignment, alignment_error_rate
from intently.errors import ArgumentError

# I drink milk .  /  Je bois du lait .
MILK = Alignment.of(sure=[(0, 0), (1, 1), (2, 3), (3, 4)], possible=[(2, 2)])


def test_error_rate_by_hand() -> None:
    # A = 3 links, two of them sure, one more possible: 1 - (2 + 3) / (3 + 4).
    assert alignment_error_rate([{(0, 0), (1, 1), (2, 2)}], [MILK]) == pytest.approx(2 / 7)


def test_error_rate_is_summed_over_the_corpus() -> None:
    # A second sentence, all wrong: 1 - (2 + 3) / (3 + 4 + 1 + 1).
    other = Alignment.of([(0, 0)])
    predicted = [{(0, 0), (1, 1), (2, 2)}, {(1, 0)}]
    assert alignment_error_rate(predicted, [MILK, other]) == pytest.approx(4 / 9)


def test_the_best_and_the_worst() -> None:
    assert alignment_error_rate([set(MILK.sure)], [MILK]) == 0
    assert alignment_error_rate([set(MILK.possible)], [MILK]) == 0
    assert alignment_error_rate([set()], [MILK]) == 1
    assert alignment_error_rate([], []) == 0


def test_sure_links_are_possible() -> None:
    assert MILK.sure < MILK.possible
    with pytest.raises(ArgumentError) as caught:
        Alignment(frozenset({(0, 0), (1, 1)}), frozenset({(1, 1)}))
    assert str(caught.value) == (
        "possible: expected every sure link among them; got none of [(0, 0)]. Use "
        "Alignment.of(sure, possible), which adds them."
    )


def test_as_many_predictions_as_references() -> None:
    with pytest.raises(ValueError):
        alignment_error_rate([set()], [])
