"""The learning rate: the formula of the paper, rescaled, and its ends."""

from __future__ import annotations

import itertools

import pytest

from intently.training.options import ScheduleOptions
from intently.training.schedule import learning_rate


def test_equal_to_the_paper_up_to_scale() -> None:
    """Vaswani et al. 2017, equation 3: c^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    options = ScheduleOptions(steps=20_000, warmup=4000, learning_rate=512**-0.5 * 4000**-0.5)
    for step in (1, 100, 3999, 4000, 4001, 20_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate(step, options) == pytest.approx(paper, rel=1e-12)


def test_cooldown_falls_to_zero_and_only_at_the_end() -> None:
    options = ScheduleOptions(steps=1000, warmup=0, schedule="constant", cooldown=0.2)
    rates = [learning_rate(step, options) / options.learning_rate for step in range(1, 1001)]
    assert rates[:801] == [1.0] * 801
    assert all(a > b > 0 for a, b in itertools.pairwise(rates[800:]))
    assert rates[-1] == pytest.approx(1 / 200)


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt"])
def test_without_warmup_the_first_step_is_the_highest(kind: str) -> None:
    options = ScheduleOptions(steps=10, warmup=0, schedule=kind)
    rates = [learning_rate(step, options) for step in range(1, 11)]
    assert rates[0] == max(rates) == options.learning_rate
