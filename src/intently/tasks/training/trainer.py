"""The training loop, safe to kill at any moment.

A step depends only on what a checkpoint holds: the weights, the optimiser's state, the position in
the data and the random state. The learning rate and the batches are pure functions of the step and
the position. So a run that is killed and resumed takes exactly the steps it would have taken.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from intently.errors import CheckpointError, IntentlyError, build
from intently.foundation.files import plain, replace_file, sealed
from intently.nn.models.shared import load_weights, weights
from intently.tasks.training import checkpoint as files
from intently.tasks.training import progress as events
from intently.tasks.training.batches import Batch, Data, Epoch, epoch
from intently.tasks.training.checkpoint import Checkpoint, Checkpoints
from intently.tasks.training.folder_lock import check_held, sole_writer
from intently.tasks.training.loss import BatchLoss, batch_loss
from intently.tasks.training.metrics import best_by, check_patience, without_better
from intently.tasks.training.optimiser import (
    TrainedModel,
    check_bfloat16,
    learning_rate,
    risen,
    settled,
)
from intently.tasks.training.options import TrainingOptions
from intently.tasks.training.processes import Interruption, Processes
from intently.tasks.training.progress import Event, History, Listener, Stopped

RECORDS = 500
"""Points of the loss curve, about."""

WRITES = ("checkpoints/", "options.json", "best.json")
"""The files and folders that `train` writes into a run's folder; best.json says which checkpoint
was kept, by which score, and its dev scores."""

Validate = Callable[[Any], Mapping[str, float]]


class DivergedError(IntentlyError, ArithmeticError):
    """The loss or its gradient is no longer finite."""


def train(
    model: nn.Module,
    data: Data,
    options: TrainingOptions,
    out: Path | str,
    *,
    loss: BatchLoss = batch_loss,
    validate: Validate | None = None,
    progress: Listener | None = None,
    resume: bool | str = False,
) -> History:
    """Train ``model`` on ``data`` and return the history; checkpoints go to ``out``/checkpoints.

    ``data`` are `Pairs`, and ``loss`` is that of an encoder-decoder on a batch of them; another
    kind of model comes with its own data (`batches.Data`) and loss. ``validate`` gets the model in
    evaluation mode and returns dev scores; the one named ``options.run.best_by`` chooses the best
    checkpoint (a "loss" is best where lowest; among equal scores the lowest loss is best);
    ``best.json`` says which. ``progress`` is called with every event. With
    ``resume``, the run in ``out`` continues from its latest checkpoint, or from the named one
    (``"step-000100"``), or begins if there is none.

    Ctrl-C and SIGTERM end the run after the current step with a checkpoint, and the history says
    "interrupted". At the end the model has the weights of the last step; ``history.best`` is the
    file of the best. The caller's random state and thread count are restored.

    Under torchrun the processes train one model: see `intently.tasks.training.processes`. The first
    process calls ``validate`` and ``progress`` and writes to ``out``; all return the history.

    Raises ArgumentError if ``out`` holds a run and ``resume`` is not given, or if the options or
    the data are not those of the run; InUseError if another command writes to ``out``;
    CheckpointError if a checkpoint cannot be used; DivergedError if the loss is not finite, with
    the last good checkpoint in place; LostError if another process is gone; LostFolderError if
    ``out`` was deleted, moved or replaced; WriteError if it cannot be written to.
    """
    check_patience(options.schedule.patience, validate is not None)
    with sole_writer(out, WRITES) as here, Interruption() as interruption:
        listener = progress if here.first and progress else lambda event: None
        run = _Training(
            model, data, loss, options, Path(out), validate, listener, here, interruption
        )
        threads = torch.get_num_threads()
        try:
            with run.unchanged_random_state():
                run.begin(resume)
                return run.loop()
        finally:
            torch.set_num_threads(threads)


@dataclass
class Position:
    """The position of a run: everything that changes from step to step, tensors aside."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next batch of the epoch
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0  # the last step after which the dev set was evaluated
    loss_sum: float = 0.0  # of the steps since the last record
    loss_steps: int = 0
    best: str | None = None  # the name of the best checkpoint
    warmed: int | None = None  # the step at which `seconds` ended the warm-up


@dataclass(eq=False)
class _Training:
    """A run in progress."""

    model: nn.Module
    data: Data
    loss: BatchLoss
    options: TrainingOptions
    out: Path
    validate: Validate | None
    listener: Listener
    processes: Processes
    interruption: Interruption

    def __post_init__(self) -> None:
        self.dev: str | None = getattr(self.validate, "fingerprint", None)
        self.unheard: BaseException | None = None  # standard output is closed, or full
        self.checkpoints = Checkpoints(self.out / "checkpoints")
        self.asked, self.late, self.passed = False, False, 0.0  # agreed on by all processes
        self.device = next(self.model.parameters()).device
        self.position, self.history, self.saved_at = Position(), History(), (-1, -1)
        self.clock = time.perf_counter()

    @property
    def best_by(self) -> str:
        """The score that chooses the best checkpoint."""
        return self.options.run.best_by or getattr(self.validate, "suitable", "bleu")

    def unchanged_random_state(self) -> AbstractContextManager[None]:
        """Restore the random states of the CPU and the device at the end."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])

    def begin(self, resume: bool | str) -> None:
        """Seed everything, or restore a checkpoint."""

        def resumed() -> Checkpoint | None:
            if self.checkpoints.begun(resume):
                name = resume if isinstance(resume, str) else None
                return self.checkpoints.load(name, files.STATE)
            return None

        last = self.processes.from_first(resumed)
        if self.options.machine.precision == "bfloat16":
            check_bfloat16(self.device)
        self.model.train()
        if self.options.run.threads is not None:
            torch.set_num_threads(self.options.run.threads)
        if last is None:
            self.options = settled(self.options, score=self.best_by)
            torch.manual_seed(self.options.run.seed)
            self.worker = TrainedModel(self.model, self.options, self.processes, self.loss)
        else:
            self.restore(last)
            self.tell(events.Resumed(self.position.step, self.options.schedule.steps))
        self.epoch = self.batches()
        if last is not None and self.position.batch >= len(self.epoch):
            expected, got = f"a batch below {len(self.epoch)}", self.position.batch
            raise build(CheckpointError, f"{last.source}: position", expected, got)
        if self.processes.first:
            check_held(self.out)
            self.checkpoints.clean()  # only now, because until here the run might be refused
            replace_file(self.out / "options.json", sealed(self.options.to_dict()))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint, after checking that it belongs to this run."""
        state, where = checkpoint.state, checkpoint.source
        before = TrainingOptions.from_dict(state["options"], f"options of {where}")
        self.options = settled(self.options, before, score=self.best_by)
        with warnings.catch_warnings():
            if not self.processes.first:
                warnings.simplefilter("ignore")
            count, kind = self.processes.count, self.device.type
            files.check_same_run(state, self.options, self.data, count, kind, self.dev, where)
        if self.options.run.threads is None:
            torch.set_num_threads(state["threads"])
        training = dict(checkpoint.training)
        random = {k: training.pop(k) for k in list(training) if k.startswith("random/")}
        files.set_random_state(random, self.device, where)  # refused before anything changes
        load_weights(self.model, checkpoint.model, where)
        self.worker = TrainedModel(self.model, self.options, self.processes, self.loss)
        files.set_random_state(random, self.device, where)
        self.position = Position(**state["position"])
        if training or self.position.step:
            self.worker.optimiser.load(training, where)
        self.history = History.from_dict(state["history"])
        self.saved_at = (self.position.step, self.position.evaluated)

    def loop(self) -> History:
        """Evaluate, save and step, each when due, until the end."""
        position, schedule, run = self.position, self.options.schedule, self.options.run
        patience, taken, per_step = schedule.patience, 0, (0.0, 0.0)
        self.hear()
        while True:
            if self.processes.count == 1:  # several processes agree within the step
                self.hear()
            over = position.step >= schedule.steps
            due = position.step % run.evaluate_every == 0
            best = (over or self.late or due) and self.evaluate()
            end = "interrupted" if self.asked else "time" if self.late else None
            every = patience and run.evaluate_every
            worse = every and without_better(self.best_by, self.history.evaluations, every)
            end = "no better" if 0 < patience <= worse else end
            end = "finished" if over and self.evaluated() else end
            self.tick()
            if end or best or (position.step % run.save_every == 0 and position.step > 0):
                self.save(best)
            self.tick()
            if end:
                if self.unheard is not None:
                    raise self.unheard
                if end == "no better":
                    self.tell(events.GivenUp(position.step, worse, self.best_by))
                elif end == "time":
                    self.tell(events.TimeUp(position.step, schedule.steps))
                return self.end(end)
            rate = self.rate()
            loss, tokens = self.step(rate)
            taken, now = taken + 1, (tokens, self.tick())
            recent = max(1 / taken, 0.02)  # means over about the last fifty steps
            per_step = tuple(x + recent * (y - x) for x, y in zip(per_step, now, strict=True))
            self.record(loss, rate, tokens)
            left = per_step[1] * (schedule.steps - position.step)
            if schedule.seconds is not None:
                left = max(0.0, min(left, schedule.seconds - position.seconds))
            speed = per_step[0] / per_step[1]
            self.tell(events.Stepped(position.step, schedule.steps, loss, rate, speed, left))

    def tell(self, event: Event) -> None:
        """Tell of an event; where that fails, the run ends after this step, as interrupted."""
        try:
            self.listener(event)
        except (OSError, SystemExit) as error:  # rich exits where a pipe is closed
            self.listener, self.unheard = lambda event: None, error
            self.interruption.asked = True

    def tick(self) -> float:
        """Add the time since the last tick to the run's time, and return it."""
        before, self.clock = self.clock, time.perf_counter()
        self.position.seconds += self.clock - before
        return self.clock - before

    def hear(self, loss: float = 0.0) -> float:
        """Return the loss summed over all processes, and agree on whether the run must end: if any
        received a signal, or if the first is out of time.
        """
        limit = self.options.schedule.seconds
        seconds = self.position.seconds if self.processes.first else 0.0
        heard = [loss, self.interruption.asked, limit is not None and seconds >= limit, seconds]
        total, asked, over, self.passed = self.processes.total(heard)
        self.asked, self.late = asked > 0, over > 0
        return total

    def rate(self) -> float:
        """Return the learning rate of the next step; the time that is left may end its warm-up."""
        position, schedule = self.position, self.options.schedule
        step, warmup = position.step + 1, schedule.warmup or 0
        if position.warmed is None and step <= warmup:
            part = risen(self.passed, schedule)
            if part < 1:
                return max(learning_rate(step, schedule), part * schedule.learning_rate)
            position.warmed = position.step
        if position.warmed is not None:
            schedule = dataclasses.replace(schedule, warmup=position.warmed)
        return learning_rate(step, schedule)

    def step(self, rate: float) -> tuple[float, int]:
        """Take one step of the optimiser; return the mean loss of its batches, and their tokens."""
        position = self.position
        batches = [self.next_batch() for _ in range(self.options.optimiser.accumulate)]
        if not self.processes.first:  # whose random state no checkpoint holds
            place = [self.options.run.seed, self.processes.rank, position.step]
            [seed] = np.random.SeedSequence(place).generate_state(1, np.uint64)
            torch.manual_seed(int(seed))
        loss, tokens = self.worker.gradients(batches)
        mean = self.hear(loss) / tokens
        norm = self.worker.clip(self.options.optimiser.clip)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            got = f"loss {mean} with gradient norm {norm} at step {position.step + 1}"
            got += f", learning rate {rate:.2g}"
            fix = "Lower learning_rate or raise warmup and start anew"
            if (last := self.checkpoints.last()) is not None:
                fix += f"; {self.checkpoints.path(last)} holds the last good state"
            raise build(DivergedError, "loss", "a finite number", got, "training diverged", fix)
        self.worker.optimiser.step(rate)
        position.step += 1
        return mean, tokens

    def next_batch(self) -> Batch:
        """Return the next batch and advance the position."""
        position = self.position
        batch = self.epoch[position.batch]
        position.batch += 1
        if position.batch == len(self.epoch):
            position.epoch, position.batch = position.epoch + 1, 0
            self.epoch = self.batches()
        return batch

    def batches(self) -> Epoch:
        """Return the batches of the epoch."""
        tokens, seed = self.options.optimiser.batch_tokens, self.options.run.seed
        return epoch(self.data, tokens, seed, self.position.epoch)

    def record(self, loss: float, rate: float, tokens: int) -> None:
        """Add the step to the loss curve."""
        p = self.position
        p.tokens += tokens
        p.loss_sum += loss
        p.loss_steps += 1
        if p.step % max(1, self.options.schedule.steps // RECORDS) == 0:
            mean, seconds = p.loss_sum / p.loss_steps, round(p.seconds, 3)
            self.history.records.append(events.Record(p.step, mean, rate, p.tokens, seconds))
            p.loss_sum, p.loss_steps = 0.0, 0

    def evaluated(self) -> bool:
        """Whether this step needs no further evaluation."""
        return self.validate is None or self.position.evaluated == self.position.step

    def evaluate(self) -> bool:
        """Score the dev set, unless already scored; return whether it is the best score so far.

        An evaluation that fails or is interrupted loses no step.
        """
        position = self.position
        if self.evaluated() or self.asked:
            return False
        self.worker.gather()
        self.model.eval()
        try:
            with self.unchanged_random_state():
                scores = self.processes.from_first(self.scores)
        except Exception:
            self.save()
            raise
        finally:
            self.model.train()
        self.hear()
        if scores is None:
            return False
        name, before = self.best_by, self.history.evaluations
        score = best_by(name, scores)
        position.evaluated = position.step
        best = all(score > best_by(name, at.scores) for at in before)
        seconds = round(position.seconds + time.perf_counter() - self.clock, 3)
        self.history.evaluations.append(events.Evaluation(position.step, scores, seconds))
        self.tell(events.Evaluated(position.step, scores, best))
        return best

    def scores(self) -> dict[str, float] | None:
        """Return the dev scores, None where the evaluation was interrupted."""
        assert self.validate is not None
        try:
            with torch.no_grad(), self.interruption.at_once():
                self.tell(events.Evaluating(self.position.step))
                scores = dict(self.validate(self.model))
        except KeyboardInterrupt:
            self.interruption.asked = True
            return None
        best_by(self.best_by, scores)  # refuses scores without it
        return scores

    def save(self, best: bool = False) -> None:
        """Write a checkpoint, unless this state has been written."""
        position, run = self.position, self.options.run
        stamp = (position.step, position.evaluated)
        if self.saved_at == stamp:
            return
        self.saved_at = stamp
        self.worker.gather()
        optimiser = self.worker.state()
        if not self.processes.first:
            return
        name = f"step-{position.step:06d}"
        if best:
            position.best = name
        state = {
            "position": dataclasses.asdict(position),
            "history": self.history.to_dict(),
            "options": self.options.to_dict(),
            "data": self.data.fingerprint,
            "dev": self.dev,
            "threads": torch.get_num_threads(),
            "processes": self.processes.count,
            "device": self.device.type,
            "versions": files.versions(),
        }
        training = {**optimiser, **files.random_state(self.device)}
        checkpoint = Checkpoint(weights(self.model), training, state)
        check_held(self.out)
        path = self.checkpoints.save(name, checkpoint, position.best)
        check_held(self.out)  # else others' checkpoints would go next
        self.checkpoints.prune(run.keep, position.step, run.save_every)
        self.tell(events.Saved(position.step, path))

    def end(self, stopped: Stopped) -> History:
        """Complete the history."""
        self.worker.gather()
        self.model.eval()
        history, kept = self.history, self.checkpoints
        latest, best = self.processes.from_first(lambda: (kept.latest(), kept.best()))
        history.stopped, history.best_by = stopped, self.best_by
        history.checkpoint, history.best = kept.path(latest), kept.path(best)
        if self.processes.first:
            check_held(self.out)
            at = history.best_evaluation
            chosen = {
                "checkpoint": best,
                "best_by": at and self.best_by,
                "scores": at and at.scores,
            }
            replace_file(self.out / "best.json", plain(chosen))
        return history
