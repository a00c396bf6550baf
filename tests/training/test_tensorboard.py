"""Curves for TensorBoard: read back from the file, with a run that was killed in between."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_run as tiny

from intently.corpora import ParallelText
from intently.errors import MissingLibraryError
from intently.training import Checkpoints, Evaluated, Evaluating, Event, Stepped, TensorBoard
from intently.translation.runs import fit

pytest.importorskip("tensorboard")

OPTIONS = tiny.OPTIONS.with_flags(steps=12, evaluate_every=4, save_every=3)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def near(values: list[tuple[int, float]]) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in values]


def test_the_curves_are_those_of_the_run(tmp_path: Path) -> None:
    events: list[Event] = []
    with TensorBoard(tmp_path / "tensorboard") as board:

        def tell(event: Event) -> None:
            events.append(event)
            board(event)

        tiny.run(tmp_path / "run", OPTIONS, tell)
    steps = [event for event in events if isinstance(event, Stepped)]
    scores = [event for event in events if isinstance(event, Evaluated)]
    found = curves(tmp_path / "tensorboard")
    assert found["train/loss"] == near([(e.step, e.loss) for e in steps])
    assert found["train/learning_rate"] == near([(e.step, e.learning_rate) for e in steps])
    assert found["train/tokens_per_second"] == near([(e.step, e.tokens_per_second) for e in steps])
    assert found["dev/bleu"] == near([(e.step, e.scores["bleu"]) for e in scores])
    assert [step for step, _ in found["dev/exact"]] == [4, 8, 12]
    assert len(steps) == 12


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize(
    ("kind", "at", "error", "latest"),
    [
        (Stepped, 5, Killed, "step-000004"),
        (Stepped, 8, Killed, "step-000006"),
        (Evaluating, 8, KeyboardInterrupt, "step-000008"),
    ],
    ids=["killed between evaluations", "killed before an evaluation", "interrupted in one"],
)
def test_a_run_that_goes_on_has_every_step_once(
    tmp_path: Path, kind: type[Event], at: int, error: type[BaseException], latest: str
) -> None:
    def stop(event: Event) -> None:
        board(event)
        if isinstance(event, kind) and event.step == at:
            raise error

    with contextlib.suppress(Killed), TensorBoard(tmp_path / "tensorboard") as board:
        tiny.run(tmp_path / "run", OPTIONS, stop)
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest() == latest
    # the names of event files hold the second; files of one process and second have no order
    time.sleep(1.01 - time.time() % 1)
    with TensorBoard(tmp_path / "tensorboard") as board:
        tiny.run(tmp_path / "run", OPTIONS, board, resume=True)
    found = curves(tmp_path / "tensorboard")
    assert [step for step, _ in found["train/loss"]] == list(range(1, 13))
    assert [step for step, _ in found["dev/bleu"]] == [4, 8, 12]


def test_a_run_that_is_over_writes_nothing_more(tmp_path: Path) -> None:
    with TensorBoard(tmp_path / "tensorboard") as board:
        tiny.run(tmp_path / "run", OPTIONS, board)
    before = sorted((tmp_path / "tensorboard").iterdir())
    with TensorBoard(tmp_path / "tensorboard") as board:
        tiny.run(tmp_path / "run", OPTIONS, board, resume=True)
    assert sorted((tmp_path / "tensorboard").iterdir()) == before


def test_without_the_library_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'intently\[tensorboard\]'"):
        TensorBoard(tmp_path)
    options = OPTIONS.with_flags(tensorboard=True)
    with pytest.raises(MissingLibraryError):
        fit(ParallelText(["a b"], ["b a"]), options, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_alone_does_not_load_it() -> None:
    code = "import sys, intently.training; assert 'tensorboard' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
