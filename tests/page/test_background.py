"""Work in the background: the newest first, nothing while somebody waits, and an end at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from intently.errors import ArgumentError
from intently.show.page.serving.background import Background


@pytest.fixture
def background() -> Iterator[Background]:
    found = Background()
    yield found
    found.close()


def job(
    name: str, steps: int, said: list[str], gate: threading.Event | None = None
) -> Iterator[None]:
    for _ in range(steps):
        if gate is not None:
            gate.wait(60)
        said.append(name)
        yield


def test_the_newest_job_of_the_highest_rank_goes_first(background: Background) -> None:
    said: list[str] = []
    with background.answering():
        background.add("low", job("low", 2, said), rank=0)
        background.add("old", job("old", 2, said))
        background.add("new", job("new", 2, said))
        background.add("later low", job("later low", 1, said), rank=0)
        time.sleep(0.05)
        assert said == []
    assert background.wait(lambda: len(said) == 7, 60)
    assert said == ["new", "new", "old", "old", "later low", "low", "low"]


def test_a_job_that_is_asked_for_again_is_moved_and_not_doubled(background: Background) -> None:
    said: list[str] = []
    with background.answering():
        background.add("a", job("a", 2, said))
        background.add("b", job("b", 2, said))
        background.add("a", job("never", 9, said))
    assert background.wait(lambda: len(said) == 4, 60)
    time.sleep(0.05)
    assert said == ["a", "a", "b", "b"]


def test_no_step_is_made_while_an_answer_is(background: Background) -> None:
    said: list[str] = []
    background.add("job", job("step", 1_000_000, said))
    assert background.wait(lambda: len(said) > 3, 60)
    with background.answering():
        time.sleep(0.05)
        before = len(said)
        time.sleep(0.1)
        assert len(said) == before
    assert background.wait(lambda: len(said) > before, 60)


def test_long_work_lets_others_go_first_and_ends_when_nobody_waits() -> None:
    background, said, started = Background(), [], threading.Event()

    def long() -> Iterator[None]:
        started.set()
        while True:
            time.sleep(0.001)
            background.yielding()
            said.append("long")
        yield

    background.add("long", long(), rank=0)
    assert started.wait(60)
    background.add("urgent", job("urgent", 3, said))
    assert background.wait(lambda: said.count("urgent") == 3, 60)
    first = said.index("urgent")
    assert said[first : first + 3] == ["urgent"] * 3
    since = time.monotonic()
    background.close()
    assert time.monotonic() - since < 60
    assert background.failures == {}


def test_a_job_that_is_dropped_makes_no_further_step(background: Background) -> None:
    said: list[str] = []
    background.add("a", job("a", 1_000_000, said))
    assert background.wait(lambda: len(said) > 3, 60)
    background.drop("a")
    background.drop("never there")
    time.sleep(0.02)
    before = len(said)
    time.sleep(0.05)
    assert len(said) == before
    background.failures["b"] = "what is wrong"
    background.drop("b")
    assert background.failures == {}


def test_the_end_waits_a_bounded_time_for_a_step() -> None:
    background, begun, gate = Background(), threading.Event(), threading.Event()

    def stuck() -> Iterator[None]:
        begun.set()
        gate.wait(20)
        yield

    background.add("stuck", stuck())
    assert begun.wait(60)
    background.close(0.1)
    assert background.working
    gate.set()
    background.close()
    assert not background.working


def test_failures_are_kept_by_name(
    background: Background, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(error: Exception) -> Iterator[None]:
        yield
        raise error

    said: list[str] = []
    background.add("told", failing(ArgumentError("what is wrong")))
    background.add("bug", failing(ZeroDivisionError("oh")))
    background.add("good", job("good", 1, said), rank=0)
    assert background.wait(lambda: said == ["good"], 60)
    assert background.failures == {"told": "what is wrong", "bug": "ZeroDivisionError"}
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in shown
    assert "what is wrong" not in shown
