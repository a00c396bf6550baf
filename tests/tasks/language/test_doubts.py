"""An undertrained run is told from a trained one by the slope of its loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from intently.tasks.language.comparison import FALLING, slope, undertrained
from intently.tasks.language.runs import fit
from intently.tasks.training.options import ScheduleOptions
from intently.tasks.training.progress import Evaluation, History, Record

from .book import text
from .test_runs import options


def history(
    loss: Callable[[int], float], steps: int = 400, held: tuple[float, ...] = ()
) -> History:
    noise = Random(0)
    records = [
        Record(n, loss(n) + noise.gauss(0, 0.02), 1e-3, 9 * n, n / 10) for n in range(1, steps + 1)
    ]
    return History(records, [Evaluation(n, {"loss": x}, 0.0) for n, x in enumerate(held)])


@pytest.mark.parametrize("per_doubling", [0.0, 0.02, 0.3])
def test_the_slope_is_that_of_a_line_over_doublings(per_doubling: float) -> None:
    found = slope(history(lambda n: 5 - per_doubling * math.log2(n)), ScheduleOptions(steps=400))
    assert found == pytest.approx(-per_doubling, abs=0.02)


def test_a_loss_that_falls_is_doubted_and_one_that_stays_is_not() -> None:
    schedule = ScheduleOptions(steps=400)
    falling = undertrained(history(lambda n: 5 - 3 * FALLING * math.log2(n)), schedule)
    assert falling is not None
    assert falling.startswith("undertrained: its loss still falls by 0.1")
    assert falling.endswith("train longer than 400 steps")
    assert undertrained(history(lambda n: 2 + 3 / n), schedule) is None


def test_the_fall_in_the_cooldown_is_no_doubt() -> None:
    """The rate falls to zero over the last fifth of the steps, and every loss with it."""
    cooled = history(lambda n: 2.0 - 0.01 * max(0, n - 320))
    assert undertrained(cooled, ScheduleOptions(steps=400, cooldown=0.2)) is None
    assert undertrained(cooled, ScheduleOptions(steps=400)) is not None


def test_a_run_whose_held_out_loss_rises_needs_no_more_steps() -> None:
    def falls(n: int) -> float:
        return 5 - 0.3 * math.log2(n)

    schedule = ScheduleOptions(steps=400)
    assert undertrained(history(falls, held=(3.0, 2.5, 2.7)), schedule) is None
    assert undertrained(history(falls, held=(3.0, 2.7, 2.5)), schedule) is not None


@pytest.mark.parametrize("steps", [0, 1, 10])
def test_too_few_steps_are_too_few_to_tell(steps: int) -> None:
    said = undertrained(history(lambda n: 2.0, steps), ScheduleOptions(steps=400))
    assert said is not None and said.startswith("undertrained: too few steps to see whether")
    assert said.endswith(f"train longer than {steps} step{'s' * (steps != 1)}")


def test_a_run_that_still_learns_is_told_from_one_with_nothing_left_to_learn(
    tmp_path: Path,
) -> None:
    draw = Random(1)
    letters = "".join(draw.choices("abcdef", k=6000))
    for source, steps, doubted in ((text(), 30, True), (letters, 150, False)):
        made = options(source, steps=steps, evaluate_every=steps, dropout=0.0)
        run = fit(source, made, tmp_path / str(steps))
        said = undertrained(run.history, run.text_model.options.schedule)
        assert (said is not None) == doubted, said
