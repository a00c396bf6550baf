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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from intently.errors import CheckpointError, IntentlyError, build
from intently.foundation.files import plain, replace_file, sealed
from intently.nn.models.weights import load_weights, weights
from intently.tasks.training.batches import Batch, Data, Epoch, epoch
from intently.tasks.training.checkpoint import (
    STATE,
    Checkpoint,
    Checkpoints,
    check_random_state,
    check_same_run,
    isolated_state,
    name_of,
    random_state,
    seed_step,
    set_random_state,
    versions,
)
from intently.tasks.training.loss import BatchLoss, batch_loss
from intently.tasks.training.metrics import best_by, check_patience, without_better
from intently.tasks.training.optimiser import Worker, check_bfloat16, learning_rate, risen, settled
from intently.tasks.training.options import TrainingOptions
from intently.tasks.training.processes import Interruption, Processes, joined, sole_writer
from intently.tasks.training.progress import (
    Evaluated,
    Evaluating,
    Evaluation,
    Event,
    GivenUp,
    History,
    Listener,
    Pace,
    Position,
    Record,
    Resumed,
    Saved,
    Stepped,
    Stopped,
    TimeUp,
)

RECORDS = 500
"""Points of the loss curve, about."""

BEST = "best.json"
"""The checkpoint that was kept, by which score, and its dev scores."""

WRITES = ("checkpoints/", "options.json", BEST)
"""The files and folders that `train` writes into a run's folder."""

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
    the last good checkpoint in place; LostError if another process is gone; WriteError if
    ``out`` cannot be written to.
    """
    check_patience(options.schedule.patience, validate is not None)
    with joined(Path(out)) as here, sole_writer(out, WRITES), Interruption() as interruption:
        listener = progress if here.first and progress else lambda event: None
        run = _Run(model, data, loss, options, Path(out), validate, listener, here, interruption)
        with isolated_state(run.device):
            run.begin(resume)
            return run.loop()


@dataclass(eq=False)
class _Run:
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
        self._suitable = getattr(self.validate, "suitable", "bleu")
        self.unheard: BaseException | None = None
        """Why nobody can be told any more: standard output is closed, or full."""
        self.checkpoints = Checkpoints(self.out / "checkpoints")
        self.asked = self.late = False  # agreed on by all processes, as are the seconds
        self.passed = 0.0
        self.device = next(self.model.parameters()).device
        self.position, self.history, self.saved_at = Position(), History(), (-1, -1)
        self.clock = time.perf_counter()
        self.record_every = max(1, self.options.schedule.steps // RECORDS)

    def begin(self, resume: bool | str) -> None:
        """Seed everything, or restore a checkpoint."""
        found = self.processes.from_first(lambda: self._found(resume))
        if self.options.machine.precision == "bfloat16":
            check_bfloat16(self.device)
        self.model.train()
        if self.options.run.threads is not None:
            torch.set_num_threads(self.options.run.threads)
        if found is None:
            self.options = settled(self.options, score=self._suitable)
            torch.manual_seed(self.options.run.seed)
            self.worker = Worker(self.model, self.options, self.processes, self.loss)
        else:
            self._restore(found)
            self.tell(Resumed(self.position.step, self.options.schedule.steps))
        self.epoch = self._epoch()
        if found is not None and self.position.batch >= len(self.epoch):
            expected, got = f"a batch below {len(self.epoch)}", self.position.batch
            raise build(CheckpointError, f"{found.source}: position", expected, got)
        if self.processes.first:
            self.checkpoints.clean()  # only now, because until here the run might be refused
            replace_file(self.out / "options.json", sealed(self.options.to_dict()))

    def _found(self, resume: bool | str) -> Checkpoint | None:
        """Return the checkpoint to resume from, None for a new run."""
        if not self.checkpoints.begun(resume):
            return None
        return self.checkpoints.load(resume if isinstance(resume, str) else None, STATE)

    def loop(self) -> History:
        """Evaluate, save and step, each when due, until the end."""
        position, schedule, run = self.position, self.options.schedule, self.options.run
        patience, pace = schedule.patience, Pace()
        self._hear()
        while True:
            if self.processes.count == 1:  # several processes agree within the step
                self._hear()
            over = position.step >= schedule.steps
            due = position.step % run.evaluate_every == 0
            best = (over or self.late or due) and self._evaluate()
            end = "interrupted" if self.asked else "time" if self.late else None
            every = patience and run.evaluate_every
            worse = every and without_better(self._best_by, self.history.evaluations, every)
            end = "no better" if 0 < patience <= worse else end
            end = "finished" if over and self._evaluated() else end
            self._tick()
            if end or best or (position.step % run.save_every == 0 and position.step > 0):
                self._save(best)
            self._tick()
            if end:
                if self.unheard is not None:
                    raise self.unheard
                if end == "no better":
                    self.tell(GivenUp(position.step, worse, self._best_by))
                elif end == "time":
                    self.tell(TimeUp(position.step, schedule.steps))
                return self._end(end)
            rate = self._rate()
            loss, tokens = self._step(rate)
            pace.step(tokens, self._tick())
            self._record(loss, rate, tokens)
            left = pace.seconds_for(schedule.steps - position.step)
            if schedule.seconds is not None:
                left = max(0.0, min(left, schedule.seconds - position.seconds))
            self.tell(
                Stepped(position.step, schedule.steps, loss, rate, pace.tokens_per_second, left)
            )

    def tell(self, event: Event) -> None:
        """Tell of an event; where that fails, the run ends after this step, as interrupted."""
        try:
            self.listener(event)
        except (OSError, SystemExit) as error:  # rich exits where a pipe is closed
            self.listener, self.unheard = lambda event: None, error
            self.interruption.asked = True

    def _tick(self) -> float:
        """Add the time since the last tick to the run's time, and return it."""
        before, self.clock = self.clock, time.perf_counter()
        self.position.seconds += self.clock - before
        return self.clock - before

    def _hear(self, loss: float = 0.0) -> float:
        """Return the loss summed over all processes, and agree on whether the run must end.

        It ends if any process received a signal, or if the first process is out of time.
        """
        limit = self.options.schedule.seconds
        seconds = self.position.seconds if self.processes.first else 0.0
        late = limit is not None and seconds >= limit
        heard = [loss, self.interruption.asked, late, seconds]
        total, asked, over, self.passed = self.processes.total(heard)
        self.asked, self.late = asked > 0, over > 0
        return total

    def _rate(self) -> float:
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

    def _step(self, rate: float) -> tuple[float, int]:
        """Take one step of the optimiser; return the mean loss of its batches, and their tokens."""
        position, run = self.position, self.options.run
        batches = [self._next() for _ in range(self.options.optimiser.accumulate)]
        if not self.processes.first:
            seed_step(run.seed, self.processes.rank, position.step)
        loss, tokens = self.worker.gradients(batches)
        mean = self._hear(loss) / tokens
        norm = self.worker.clip(self.options.optimiser.clip)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            raise self._diverged(mean, norm, rate)
        self.worker.optimiser.step(rate)
        position.step += 1
        return mean, tokens

    def _next(self) -> Batch:
        """Return the next batch and advance the position."""
        position = self.position
        batch = self.epoch[position.batch]
        position.batch += 1
        if position.batch == len(self.epoch):
            position.epoch, position.batch = position.epoch + 1, 0
            self.epoch = self._epoch()
        return batch

    def _epoch(self) -> Epoch:
        o = self.options
        return epoch(self.data, o.optimiser.batch_tokens, o.run.seed, self.position.epoch)

    def _record(self, loss: float, rate: float, tokens: int) -> None:
        """Add the step to the loss curve."""
        p = self.position
        p.tokens += tokens
        p.loss_sum += loss
        p.loss_steps += 1
        if p.step % self.record_every == 0:
            mean = p.loss_sum / p.loss_steps
            self.history.records.append(Record(p.step, mean, rate, p.tokens, round(p.seconds, 3)))
            p.loss_sum, p.loss_steps = 0.0, 0

    @property
    def _best_by(self) -> str:
        """The score that chooses the best checkpoint."""
        return self.options.run.best_by or self._suitable

    def _evaluated(self) -> bool:
        """Whether this step needs no further evaluation."""
        return self.validate is None or self.position.evaluated == self.position.step

    def _evaluate(self) -> bool:
        """Score the dev set, unless already scored, and return whether the score is the best so
        far.

        The random state stays as it was. An evaluation that fails or is interrupted loses no step.
        """
        position = self.position
        if self._evaluated() or self.asked:
            return False
        self.worker.gather()
        state = random_state(self.device)
        self.model.eval()
        try:
            scores = self.processes.from_first(self._scores)
        except Exception:
            set_random_state(state, self.device)
            self._save()
            raise
        finally:
            set_random_state(state, self.device)
            self.model.train()
        self._hear()
        if scores is None:
            return False
        name, before = self._best_by, self.history.evaluations
        score = best_by(name, scores)
        position.evaluated = position.step
        best = all(score > best_by(name, at.scores) for at in before)
        seconds = round(position.seconds + time.perf_counter() - self.clock, 3)
        self.history.evaluations.append(Evaluation(position.step, scores, seconds))
        self.tell(Evaluated(position.step, scores, best))
        return best

    def _scores(self) -> dict[str, float] | None:
        """Return the dev scores, None where the evaluation was interrupted."""
        assert self.validate is not None
        try:
            with torch.no_grad(), self.interruption.at_once():
                self.tell(Evaluating(self.position.step))
                scores = dict(self.validate(self.model))
        except KeyboardInterrupt:
            self.interruption.asked = True
            return None
        best_by(self._best_by, scores)
        return scores

    def _save(self, best: bool = False) -> None:
        """Write a checkpoint, unless this state has been written."""
        position = self.position
        stamp = (position.step, position.evaluated)
        if self.saved_at == stamp:
            return
        self.saved_at = stamp
        self.worker.gather()
        optimiser = self.worker.state()
        if not self.processes.first:
            return
        name = name_of(position.step)
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
            "versions": versions(),
        }
        training = {**optimiser, **random_state(self.device)}
        checkpoint = Checkpoint(weights(self.model), training, state)
        path = self.checkpoints.save(name, checkpoint, position.best)
        run = self.options.run
        self.checkpoints.prune(run.keep, position.step, run.save_every)
        self.tell(Saved(position.step, path))

    def _end(self, stopped: Stopped) -> History:
        """Complete the history."""
        self.worker.gather()
        self.model.eval()
        found = self.checkpoints
        latest, best = self.processes.from_first(lambda: (found.latest(), found.best()))
        self.history.stopped = stopped
        self.history.checkpoint, self.history.best = found.path(latest), found.path(best)
        self.history.best_by = self._best_by
        if self.processes.first:
            at = self.history.best_evaluation
            told = {"checkpoint": best, "best_by": at and self._best_by, "scores": at and at.scores}
            replace_file(self.out / BEST, plain(told))
        return self.history

    def _diverged(self, loss: float, norm: float, rate: float) -> DivergedError:
        """Return the error for a loss or gradient that is not finite."""
        step = self.position.step + 1
        got = f"loss {loss} with gradient norm {norm} at step {step}, learning rate {rate:.2g}"
        fix = "Lower learning_rate or raise warmup and start anew"
        last = self.checkpoints.last()
        if last is not None:
            fix += f"; {self.checkpoints.path(last)} holds the last good state"
        return build(DivergedError, "loss", "a finite number", got, "training diverged", fix)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint, after checking that it belongs to this run."""
        state, where = checkpoint.state, checkpoint.source
        before = TrainingOptions.from_dict(state["options"], f"options of {where}")
        self.options = settled(self.options, before, score=self._suitable)
        with warnings.catch_warnings():
            if not self.processes.first:
                warnings.simplefilter("ignore")
            count, kind = self.processes.count, self.device.type
            check_same_run(state, self.options, self.data, count, kind, self.dev, where)
        if self.options.run.threads is None:
            torch.set_num_threads(state["threads"])
        training = dict(checkpoint.training)
        random = {k: training.pop(k) for k in list(training) if k.startswith("random/")}
        check_random_state(random, self.device, where)
        load_weights(self.model, checkpoint.model, where)
        self.worker = Worker(self.model, self.options, self.processes, self.loss)
        set_random_state(random, self.device)
        self.position = Position(**state["position"])
        if training or self.position.step:
            self.worker.optimiser.load(training, where)
        self.history = History.from_dict(state["history"])
        self.saved_at = (self.position.step, self.position.evaluated)
