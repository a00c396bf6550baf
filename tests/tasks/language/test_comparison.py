"""The value of context: intervals, contradictions, undertrained models, the result, its figure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch

from intently.tasks.corpora import stories
from intently.tasks.language import comparison
from intently.tasks.language.comparison import FALLING, slope, undertrained
from intently.tasks.language.runs import LanguageRun, fit
from intently.tasks.language.text_model import language_options
from intently.tasks.training.options import ScheduleOptions
from intently.tasks.training.progress import Evaluation, History, Record

SMALL = {
    "width": 16,
    "heads": 2,
    "layers": 1,
    "warmup": 5,
    "batch_tokens": 240,
    "learning_rate": 0.01,
    "threads": 1,
}


def losses(*means: float, windows: int = 400, noise: float = 0.3) -> torch.Tensor:
    """Losses (windows, window) around a mean for each position."""
    generator = torch.Generator().manual_seed(len(means))
    return torch.tensor(means) + noise * torch.randn(windows, len(means), generator=generator)


def test_an_interval_holds_the_mean_of_most_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [2 + torch.randn(100, 4, generator=generator) for _ in range(200)]
    inside = sum(low <= 2 <= high for _, low, high in (comparison.interval(x, 1) for x in draws))
    assert 180 <= inside <= 198


def test_windows_of_one_passage_count_as_one_observation() -> None:
    alike = torch.randn(100, 1).repeat_interleave(10, 0)
    apart, together = (comparison.interval(alike, n) for n in (1, 10))
    assert together[2] - together[0] > 2.5 * (apart[2] - apart[0])
    assert together[0] == pytest.approx(apart[0])

    assert comparison.interval(torch.full((1, 3), 2.0), 1) == (2, 2, 2)  # no width
    assert [comparison.passage(torch.ones(n, 8), 20) for n in (100, 3)] == [3, 1]
    assert comparison.contexts(9) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 9)]
    assert comparison.contexts(3, 8) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 8)]
    assert comparison.contexts(1) == [(1, 1)]


@pytest.mark.parametrize(
    ("large", "said"),
    [
        ((3.5, 2.5, 1.8, 1.7), "after 1–2 tokens window 4 has a loss of 3.0"),
        ((3, 2, 2.4, 2.4), "with all of its context window 4 has a loss of 2."),
    ],
)
def test_a_larger_window_that_is_worse_is_doubted(large: tuple[float, ...], said: str) -> None:
    [found] = comparison.disagreements([losses(*large), losses(3, 2)])
    assert found.startswith(f"windows disagree: {said}")
    assert "train both longer" in found


def test_a_difference_within_the_noise_is_not_doubted() -> None:
    assert comparison.disagreements([losses(3.01, 2.02, 1.8, 1.7), losses(3, 2)]) == []
    small, large = losses(3, 2, windows=6, noise=2), losses(3.1, 2.1, 2, 2, windows=6, noise=2)
    assert comparison.disagreements([small, large]) == []


def source() -> str:
    return "\n".join(islice(stories(), 60))


def run(folder: Path, window: int, steps: int) -> LanguageRun:
    options = language_options(
        source(), **SMALL, tokenizer="word", window=window, steps=steps, evaluate_every=steps
    )
    return fit(source(), options, folder / str(window))


def test_the_result_holds_all_that_the_figure_needs(tmp_path: Path) -> None:
    runs = [run(tmp_path, window, 12) for window in (12, 3)]
    result = comparison.measure(runs, "stories")
    comparison.write(result, tmp_path)
    stored = json.loads((tmp_path / "context.json").read_text(encoding="utf-8"))
    assert stored["versions"]["torch"] and stored["threads"] >= 1
    assert stored["contexts"] == [[1, 1], [2, 2], [3, 3], [4, 4], [5, 8], [9, 12]]
    large, small = stored["models"]
    assert (len(large["losses"]), len(small["losses"])) == (6, 3)
    assert large["losses"][4][0] == pytest.approx(float(runs[0].losses[:, 4:8].mean()), rel=1e-3)
    assert large["steps"] == small["steps"] == 12
    assert large["tokens"] == small["tokens"] == 12 * 240
    comparison.draw(stored, tmp_path / "again.png")
    again = (tmp_path / "again.png").read_bytes()
    assert again == (tmp_path / "context.png").read_bytes()


def test_an_untrained_large_window_is_told_from_a_trained_small_one(tmp_path: Path) -> None:
    large, small = run(tmp_path, 12, 2), run(tmp_path, 3, 150)
    warnings = comparison.measure([large, small], "stories")["warnings"]
    assert warnings[0].startswith("window 12 is undertrained: too few steps")
    assert warnings[-1].startswith("windows disagree: after 1–3 tokens window 12 has a loss of")


# --- undertrained models ------------------------------------------------------------------------


def history(
    loss: Callable[[int], float], steps: int = 400, held: tuple[float, ...] = ()
) -> History:
    noise = Random(0)
    records = [
        Record(n, loss(n) + noise.gauss(0, 0.02), 1e-3, 9 * n, n / 10) for n in range(1, steps + 1)
    ]
    return History(records, [Evaluation(n, {"loss": x}, 0.0) for n, x in enumerate(held)])


def test_a_loss_that_falls_is_doubted_and_one_that_stays_is_not() -> None:
    schedule = ScheduleOptions(steps=400)
    found = slope(history(lambda n: 5 - 3 * FALLING * math.log2(n)), schedule)
    assert found == pytest.approx(-3 * FALLING, abs=0.02)
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
