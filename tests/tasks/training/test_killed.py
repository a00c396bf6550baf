"""A run that is killed at any moment and resumed ends with the weights of one never killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_run as tiny
import torch

import intently
from intently.nn.models.shared import load_weights
from intently.nn.models.transformer import Transformer
from intently.tasks.training import Checkpoints, Evaluated, Event, History, Stepped, TrainingOptions
from intently.tasks.training.progress import Evaluating, Resumed


def start(out: Path) -> subprocess.Popen[str]:
    source = str(Path(intently.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, tiny.__file__, str(out)],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def without_seconds(history: History) -> tuple:
    records = [record._replace(seconds=0) for record in history.records]
    return records, [e._replace(seconds=0) for e in history.evaluations], history.stopped


def test_killed_from_outside_at_random_moments(tmp_path, unbroken) -> None:
    """SIGKILL after a random number of events and a random fraction of a step."""
    seed = int(os.environ.get("INTENTLY_KILLS", random.randrange(2**32)))
    print(f"killed at other moments in every run; again at these with INTENTLY_KILLS={seed}")
    moments = random.Random(seed)
    kills, events = [], 0
    for budget in (1, 11, 23, None):  # the last one may run to its end
        with start(tmp_path) as process:
            assert process.stdin is not None and process.stdout is not None
            for count, line in enumerate(process.stdout, 1):
                events += 1
                process.stdin.write("\n")  # it goes on, to the next event at most
                process.stdin.flush()
                if budget is not None and count >= budget + moments.randrange(4):
                    time.sleep(moments.random() * 0.01)
                    process.kill()
                    kills.append(line.strip())
                    break
        assert process.returncode == (0 if budget is None else -signal.SIGKILL), kills
    ends_as(unbroken, tmp_path, kills=kills)


def listing(out: Path) -> list[str]:
    """The names of everything in the folder of a run, but nothing inside a checkpoint."""
    return sorted(path.name for folder in (out, out / "checkpoints") for path in folder.iterdir())


def ends_as(
    expected: tuple[Transformer, History],
    out: Path,
    options: TrainingOptions = tiny.OPTIONS,
    kills: object = None,
) -> None:
    """Check that a resumed run ends with the weights, history and files of the expected one."""
    whole, history = expected
    resumed, again = tiny.run(out, options, resume=True)
    assert tiny.same_weights(whole, resumed), kills
    assert without_seconds(again) == without_seconds(history), kills
    assert listing(out) == listing(history.checkpoint.parents[1]), kills


class Killed(BaseException):
    """Stands for SIGKILL: nothing is done after it."""


CALLS = [(os, "fsync"), (os, "replace")]
SHORT = tiny.OPTIONS.with_flags(steps=9, evaluate_every=4, warmup=3)


def die_at(monkeypatch, moment: int) -> None:
    """Raise before call number ``moment`` of those that change what a checkpoint is on the disk."""
    left = [moment]

    def wrapped(function):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return function(*args, **kwargs)

        return call

    for module, name in CALLS:
        monkeypatch.setattr(module, name, wrapped(getattr(module, name)))


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> tuple[Transformer, History]:
    return tiny.run(tmp_path_factory.mktemp("short"), SHORT)


@pytest.mark.parametrize("moment", [*range(1, 11), *range(13, 34, 4)])
def test_killed_between_any_two_changes_of_the_disk(tmp_path, monkeypatch, short, moment) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        die_at(patch, moment)
        tiny.run(tmp_path, SHORT)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for name in checkpoints.names():
        checkpoints.load(name)  # complete or absent
    ends_as(short, tmp_path, SHORT)


def test_interrupted_and_terminated(tmp_path, unbroken) -> None:
    """Ctrl-C, SIGTERM and a closed terminal leave a checkpoint; nothing is lost."""
    closed = getattr(signal, "SIGHUP", signal.SIGINT)  # of POSIX
    for number, at in ((signal.SIGINT, 7), (signal.SIGTERM, 20), (closed, 31)):
        before = signal.getsignal(number)
        stop = tiny.interrupt(Stepped, at, number)
        _, history = tiny.run(tmp_path, progress=stop, resume=True)
        assert history.stopped == "interrupted"
        assert history.checkpoint is not None and history.checkpoint.stem == f"step-{at:06d}"
        assert signal.getsignal(number) is before
    resumed, _ = tiny.run(tmp_path, resume=True)
    assert tiny.same_weights(unbroken[0], resumed)


def test_interrupted_while_evaluating(tmp_path, unbroken) -> None:
    _, history = tiny.run(tmp_path, progress=tiny.interrupt(Evaluating, 16))
    assert (history.stopped, len(history.evaluations)) == ("interrupted", 1)
    ends_as(unbroken, tmp_path)


@pytest.mark.parametrize("moment", range(1, 8))
def test_killed_while_a_checkpoint_is_replaced(tmp_path, monkeypatch, short, moment) -> None:
    """It was written when the evaluation of its step was interrupted; it is the only one."""
    options = SHORT.with_flags(save_every=9)
    tiny.run(tmp_path, options, progress=tiny.interrupt(Evaluating, 4))
    assert Checkpoints(tmp_path / "checkpoints").names() == ["step-000004"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        begin = tiny.when(Evaluated, 4, lambda: die_at(patch, moment))
        tiny.run(tmp_path, options, progress=begin, resume=True)
    events: list[Event] = []
    resumed, _ = tiny.run(tmp_path, options, events.append, resume=True)
    assert isinstance(events[0], Resumed) and events[0].step == 4
    whole, _ = tiny.run(tmp_path / "whole", options)
    assert tiny.same_weights(whole, resumed)
    names = Checkpoints(tmp_path / "whole" / "checkpoints").names()
    assert Checkpoints(tmp_path / "checkpoints").names() == names


def test_other_options_resume_too(tmp_path) -> None:
    options = tiny.OPTIONS.with_flags(optimiser="muon", threads=2, accumulate=3, steps=6)
    whole = tiny.run(tmp_path / "whole", options)
    tiny.run(tmp_path / "broken", options, progress=tiny.interrupt(Stepped, 4, signal.SIGTERM))
    ends_as(whole, tmp_path / "broken", options)


def test_the_best_checkpoint_is_kept_and_can_be_loaded(unbroken) -> None:
    _, history = unbroken
    best = max(history.evaluations, key=lambda e: (e.scores[history.best_by], -e.step))
    assert history.best is not None and history.best.stem == f"step-{best.step:06d}"
    net = tiny.model(seed=99)
    load_weights(net, Checkpoints(history.best.parent).load(history.best.stem).model)
    with torch.no_grad():
        assert tiny.dev_set()(net.eval()) == best.scores
