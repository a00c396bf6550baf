"""Progress: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from intently.tasks.training.progress import Evaluated, Evaluating, Saved, Stepped, display


def tell(console: Console, every: float) -> str:
    with display(console, every) as progress:
        for step in range(1, 101):
            progress(Stepped(step, 100, 2.5, 1e-3, 8123.4, 100.0 - step))
        progress(Evaluating(100))
        progress(Evaluated(100, {"bleu": 12.5}, best=False))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_now_and_then() -> None:
    text = tell(Console(file=io.StringIO(), width=40), every=3600)
    assert text.splitlines() == [
        "step 1/100  loss 2.500  lr 1.0e-03  8,123 tokens/s  1:39 left",
        "step 100/100  loss 2.500  lr 1.0e-03  8,123 tokens/s  0:00 left",
        "step 100  dev bleu 12.50",
    ]


def test_a_bar_on_a_terminal() -> None:
    text = tell(Console(file=io.StringIO(), force_terminal=True, width=120), every=5)
    assert "━" in text and "step 100/100" in text and "dev bleu 12.50" in text


def test_the_bar_is_taken_down_by_an_exception() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(KeyboardInterrupt), display(console) as progress:
        progress(Saved(1, "nowhere"))  # pyright: ignore[reportArgumentType]
        raise KeyboardInterrupt
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().endswith("\x1b[?25h")  # the cursor is shown again
