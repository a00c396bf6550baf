"""Early stopping: when it ends a run, what it says, and that resuming changes nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import tiny_run as tiny

from intently.nn.models.transformer import Transformer
from intently.tasks.training import Checkpoints, Evaluated, Event, History, Stepped, train
from intently.tasks.training.metrics import without_better
from intently.tasks.training.progress import Evaluating, Evaluation, GivenUp, Listener, Resumed

OPTIONS = tiny.OPTIONS.with_flags(steps=40, evaluate_every=4, save_every=3, patience=3)
SCORES = {4: 1.0, 8: 5.0, 12: 4.0, 16: 5.0, 20: 3.0, 24: 9.0}
"""The score 5 at step 8 is not bettered at 12, 16 and 20; that at 24 would be; others are 1."""


class Scored:
    """A dev set whose scores are known: those of `SCORES`, by the step that is told."""

    def __init__(self, tell: Listener) -> None:
        self.step, self.tell = 0, tell

    def listen(self, event: Event) -> None:
        self.step = event.step
        self.tell(event)

    def __call__(self, model: object) -> dict[str, float]:
        return {"bleu": SCORES.get(self.step, 1.0)}


def run(
    out: Path, options=OPTIONS, tell: Listener = lambda event: None, resume: bool | str = False
) -> tuple[Transformer, History]:
    net, scored = tiny.model(), Scored(tell)
    history = train(
        net, tiny.pairs(), options, out, validate=scored, progress=scored.listen, resume=resume
    )
    return net, history


def test_evaluations_since_the_best() -> None:
    def since(name: str, *scores: dict[str, float]) -> int:
        return without_better(name, [Evaluation(i, each, 0) for i, each in enumerate(scores)])

    def alone(*scores: float, name: str = "bleu") -> int:
        return since(name, *({name: x} for x in scores))

    def count(*scores: tuple[float, float]) -> int:
        return since("bleu", *({"bleu": bleu, "loss": loss} for bleu, loss in scores))

    assert alone() == alone(1.0) == alone(1.0, 2.0) == 0
    assert alone(1.0, 1.0) == 1  # as good is not better
    assert alone(3.0, 1.0, 2.0, 3.0) == 3
    assert alone(3.0, 1.0, 2.0, name="loss") == 1
    assert count((0, 3.0), (0, 2.0), (0, 1.0)) == 0  # an equal score with a lower loss is better
    assert count((0, 3.0), (0, 3.0)) == count((1, 3.0), (0, 2.0)) == 1
    assert count((0, float("nan")), (0, 9.0)) == 0 and count((0, 9.0), (0, float("inf"))) == 1
    scores = {10: 1.0, 15: 2.0, 20: 1.0, 25: 1.0, 30: 1.0}  # at 15 and 25 a run was stopped
    found = [Evaluation(step, {"bleu": score}, 0) for step, score in scores.items()]
    assert without_better("bleu", found, every=10) == 2


def test_among_equals_the_lowest_loss_is_kept_and_said(tmp_path: Path) -> None:
    losses = {4: 3.0, 8: 1.0, 12: 2.0}
    told: list[Event] = []

    def score(model: object) -> dict[str, float]:
        assert isinstance(told[-1], Evaluating)
        return {"bleu": 0.0, "loss": losses[told[-1].step]}

    options = OPTIONS.with_flags(steps=12, patience=0)
    history = train(
        tiny.model(), tiny.pairs(), options, tmp_path, validate=score, progress=told.append
    )
    assert [event.best for event in told if isinstance(event, Evaluated)] == [True, True, False]
    assert history.best is not None and history.best.stem == "step-000008"
    assert history.kept() == "step 8, the best on dev by bleu (0.00)"
    assert json.loads((tmp_path / "best.json").read_text()) == {
        "checkpoint": "step-000008",
        "best_by": "bleu",
        "scores": {"bleu": 0.0, "loss": 1.0},
    }


def test_it_ends_after_that_many_evaluations_without_a_better_one(tmp_path: Path) -> None:
    events: list[Event] = []
    first, history = run(tmp_path, tell=events.append)
    assert history.stopped == "no better"
    assert [e.step for e in history.evaluations] == [4, 8, 12, 16, 20]
    assert history.best is not None and history.best.stem == "step-000008"
    assert history.checkpoint is not None and history.checkpoint.stem == "step-000020"
    assert events[-1] == GivenUp(20, 3, "bleu")
    events.clear()
    again, history = run(tmp_path, tell=events.append, resume=True)
    assert events == [Resumed(20, OPTIONS.schedule.steps), GivenUp(20, 3, "bleu")]
    assert history.stopped == "no better" and tiny.same_weights(first, again)


@pytest.mark.parametrize(
    ("flags", "evaluations", "best"),
    [({"patience": 0}, 10, "step-000024"), ({"steps": 20}, 5, "step-000008")],
    ids=["no patience", "at the last step"],
)
def test_a_run_that_goes_on_to_the_end(tmp_path: Path, flags, evaluations: int, best: str) -> None:
    _, history = run(tmp_path, OPTIONS.with_flags(**flags))
    assert (history.stopped, len(history.evaluations)) == ("finished", evaluations)
    assert history.best is not None and history.best.stem == best


def test_more_patience_goes_on_as_if_it_had_been_there(tmp_path: Path) -> None:
    patient = OPTIONS.with_flags(patience=4, steps=30, cooldown=0.0)
    run(tmp_path / "cut", patient.with_flags(patience=3))
    resumed, history = run(tmp_path / "cut", patient, resume=True)
    whole, expected = run(tmp_path / "whole", patient)
    assert history.stopped == expected.stopped == "finished"
    assert tiny.same_weights(whole, resumed)
    assert [e.scores for e in history.evaluations] == [e.scores for e in expected.evaluations]


def test_an_interrupted_run_gives_up_at_the_same_step(tmp_path: Path) -> None:
    whole, expected = run(tmp_path / "whole")
    _, cut = run(tmp_path / "cut", tell=tiny.interrupt(Stepped, 13))
    assert cut.stopped == "interrupted"
    resumed, history = run(tmp_path / "cut", resume=True)
    assert history.stopped == "no better"
    assert [e.step for e in history.evaluations] == [e.step for e in expected.evaluations]
    assert tiny.same_weights(whole, resumed)


def test_from_the_checkpoint_before_an_evaluation_it_counts_the_same(tmp_path: Path) -> None:
    """As after a kill between the evaluation and its checkpoint."""
    whole, _ = run(tmp_path, OPTIONS.with_flags(keep=9))
    told: list[Event] = []
    resumed, history = run(tmp_path, OPTIONS.with_flags(keep=9), told.append, "step-000018")
    assert [event.step for event in told if isinstance(event, Evaluated)] == [20]
    assert history.stopped == "no better" and tiny.same_weights(whole, resumed)


# --- signals and streams that end a run -----------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a terminal of POSIX")
@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_an_ignored_signal_stays_ignored(tmp_path: Path, name: str) -> None:
    kind = getattr(signal, name)
    before = signal.signal(kind, signal.SIG_IGN)
    try:
        _, history = tiny.run(tmp_path, progress=tiny.interrupt(Stepped, 7, kind))
        assert signal.getsignal(kind) is signal.SIG_IGN
    finally:
        signal.signal(kind, before)
    assert history.stopped == "finished"


@pytest.mark.parametrize("error", [BrokenPipeError(), SystemExit(1)])
def test_a_stream_that_is_gone_ends_a_run_with_a_checkpoint(
    tmp_path: Path, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        tiny.run(tmp_path, progress=tiny.when(Stepped, 7, fail))
    assert Checkpoints(tmp_path / "checkpoints").latest() == "step-000007"
    resumed, history = tiny.run(tmp_path, resume=True)
    assert history.stopped == "finished"
    assert tiny.same_weights(resumed, tiny.run(tmp_path / "unbroken")[0])
