"""The learning rate: the formula of the paper, rescaled, and its ends."""

from __future__ import annotations

import itertools
import math

import pytest

from intently.tasks.training.optimiser import learning_rate
from intently.tasks.training.options import ScheduleOptions


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


def rates(options: ScheduleOptions) -> list[float]:
    return [learning_rate(step, options) for step in range(1, options.steps + 1)]


def cosine(**options: float) -> list[float]:
    return rates(ScheduleOptions(schedule="cosine", learning_rate=0.5, **options))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "cosine"])
def test_without_warmup_the_first_step_is_the_highest(kind: str) -> None:
    options = ScheduleOptions(steps=10, warmup=0, schedule=kind)
    assert rates(options)[0] == max(rates(options)) == options.learning_rate


def test_the_cosine_of_the_paper() -> None:
    """Loshchilov and Hutter 2017, equation 5, with its least rate 0 and one cycle."""
    rates = cosine(steps=1000, warmup=100)
    for current in (0, 1, 300, 450, 899, 900):
        paper = 0 + 0.5 * (0.5 - 0) * (1 + math.cos(current / 900 * math.pi))
        assert rates[99 + current] == pytest.approx(paper, rel=1e-12, abs=1e-18)


def test_the_cosine_rises_to_its_peak_and_falls_to_zero() -> None:
    rates = cosine(steps=1000, warmup=100)
    assert rates[:100] == [pytest.approx(0.5 * step / 100) for step in range(1, 101)]
    assert all(a > b for a, b in itertools.pairwise(rates[99:]))
    assert rates[549] == pytest.approx(0.25)
    assert rates[-1] == 0


@pytest.mark.parametrize("options", [{"warmup": 20}, {"warmup": 10}, {"warmup": 0}, {"warmup": 1}])
def test_a_cosine_with_little_or_no_room(options: dict[str, float]) -> None:
    rates = cosine(steps=10, **options)
    assert all(0 <= rate <= 0.5 for rate in rates)
    assert (rates[-1] == 0) == (options["warmup"] < 10)
    assert cosine(steps=1, **options)[0] > 0


def test_a_cooldown_multiplies_the_cosine() -> None:
    plain, cooled = cosine(steps=100, warmup=10), cosine(steps=100, warmup=10, cooldown=0.2)
    assert cooled[:81] == plain[:81]
    for step in range(81, 101):
        assert cooled[step - 1] == pytest.approx(plain[step - 1] * min(1, (101 - step) / 20))


@pytest.mark.parametrize("steps", [1, 5, 2499, 10_000])
@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "cosine"])
def test_a_short_run_rises_in_a_share_of_its_steps(steps: int, kind: str) -> None:
    options = ScheduleOptions(steps=steps, schedule=kind)
    found = rates(options)
    assert found.index(max(found)) + 1 == max(1, min(500, steps // 5))
    assert max(found) == pytest.approx(options.learning_rate) or (kind, steps) == ("cosine", 1)
