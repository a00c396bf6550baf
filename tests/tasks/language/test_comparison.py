"""The value of context: intervals, contradictions between windows, the result and its figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from intently.tasks.language import comparison
from intently.tasks.language.runs import LanguageRun, fit
from intently.tasks.language.text_model import language_options

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


def test_one_passage_has_no_interval_but_its_mean() -> None:
    assert comparison.interval(torch.full((1, 3), 2.0), 1) == (2, 2, 2)


def test_windows_that_agree_are_not_doubted() -> None:
    small, large = losses(3, 2), losses(3.01, 2.02, 1.8, 1.7)
    assert comparison.disagreements([large, small]) == []


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
    small, large = losses(3, 2, windows=6, noise=2), losses(3.1, 2.1, 2, 2, windows=6, noise=2)
    assert comparison.disagreements([small, large]) == []


def source() -> str:
    from itertools import islice

    from intently.tasks.corpora import stories

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
