"""The training loop, and what makes it safe to kill.

All that a step depends on is the checkpoint: weights, the optimiser's state, the position in the
data, the state of the random numbers. The learning rate and the batches are pure functions of the
step and the position. So a run that is killed and resumed takes the very steps it would have taken.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import torch

from intently.errors import ArgumentError, IntentlyError, build
from intently.models.kinds import EncoderDecoder
from intently.training.batches import Epoch, Pairs, epoch
from intently.training.checkpoint import (
    Checkpoint,
    Checkpoints,
    load_weights,
    replace_file,
    versions,
    weights,
)
from intently.training.events import Evaluated, Evaluating, Listener, Pace, Saved, Stepped
from intently.training.history import Evaluation, History, Position, Record
from intently.training.interruption import Interruption
from intently.training.loss import batch_loss
from intently.training.optimiser import Optimiser
from intently.training.options import TrainingOptions
from intently.training.randomness import random_state, set_random_state, surroundings_kept
from intently.training.resuming import best_by, check_same_run
from intently.training.schedule import learning_rate

RECORDS = 500  # points of the loss curve, about

Validate = Callable[[EncoderDecoder], Mapping[str, float]]


class DivergedError(IntentlyError, ArithmeticError):
    """The loss or its gradient is no longer a finite number."""


def train(
    model: EncoderDecoder,
    data: Pairs,
    options: TrainingOptions,
    out: Path | str,
    *,
    validate: Validate | None = None,
    progress: Listener | None = None,
    resume: bool | str = False,
) -> History:
    """Train ``model`` on ``data`` and return the history; checkpoints go to ``out``/checkpoints.

    ``validate`` gets the model in evaluation mode and returns dev scores; the one named
    ``options.run.best_by`` chooses the best checkpoint (a "loss" is best where lowest).
    ``progress`` is called with every event. With ``resume`` the run in ``out`` goes on from its
    latest checkpoint, or from the one named (``"step-000100"``), or begins where there is none.

    Ctrl-C and SIGTERM end the run after the current step with a checkpoint, and the history says
    "interrupted". At the end the model has the weights of the last step; ``history.best`` is the
    folder of the best. The caller's random state and thread count are restored.

    Raises ArgumentError where ``out`` holds a run and ``resume`` is not given, or where the
    options or the data are not those of the run; CheckpointError where a checkpoint cannot be
    used; DivergedError where the loss is not finite, with the last good checkpoint in place.
    """
    run = _Run(model, data, options, Path(out), validate, progress or (lambda event: None))
    with surroundings_kept(run.device), Interruption() as interruption:
        run.begin(resume)
        return run.loop(interruption)


class _Run:
    """A run in progress."""

    def __init__(
        self,
        model: EncoderDecoder,
        data: Pairs,
        options: TrainingOptions,
        out: Path,
        validate: Validate | None,
        tell: Listener,
    ) -> None:
        self.model, self.data, self.options, self.out = model, data, options, out
        self.validate, self.tell = validate, tell
        self.checkpoints = Checkpoints(out / "checkpoints")
        self.optimiser = Optimiser(model, options.optimiser)
        self.device = next(model.parameters()).device
        self.position, self.history, self.saved_at = Position(), History(), (-1, -1)
        self.clock = time.perf_counter()
        self.record_every = max(1, options.schedule.steps // RECORDS)

    def begin(self, resume: bool | str) -> None:
        """Seed everything, or take over the state of a checkpoint."""
        names = self.checkpoints.names()
        if names and not resume:
            expected = "a folder without a run"
            fix = "go on with it by resume=True, or choose another folder"
            raise build(ArgumentError, "out", expected, f"{self.out} with {names[-1]}", fix=fix)
        self.checkpoints.clean()
        self.model.train()
        if self.options.run.threads is not None:
            torch.set_num_threads(self.options.run.threads)
        if names or isinstance(resume, str):
            self._restore(self.checkpoints.load(resume if isinstance(resume, str) else None))
        else:
            torch.manual_seed(self.options.run.seed)
        self.epoch = self._epoch()
        self.out.mkdir(parents=True, exist_ok=True)
        stored = json.dumps(self.options.to_dict(), indent=1)
        replace_file(self.out / "options.json", stored.encode())

    def loop(self, interruption: Interruption) -> History:
        """Evaluate, save and step, each when it is due, until the end."""
        position, schedule, run = self.position, self.options.schedule, self.options.run
        pace = Pace()
        while True:
            over = position.step >= schedule.steps
            late = schedule.seconds is not None and position.seconds >= schedule.seconds
            due = position.step % run.evaluate_every == 0
            best = (over or late or due) and self._evaluate(interruption)
            end = "interrupted" if interruption.asked else "time" if late else None
            end = "finished" if over and self._evaluated() else end
            self._tick()
            if end or best or (position.step % run.save_every == 0 and position.step > 0):
                self._save(best)
            self._tick()
            if end:
                return self._end(end)
            rate = learning_rate(position.step + 1, schedule)
            loss, tokens = self._step(rate)
            pace.step(tokens, self._tick())
            self._record(loss, rate, tokens)
            left = pace.seconds_for(schedule.steps - position.step)
            if schedule.seconds is not None:
                left = max(0.0, min(left, schedule.seconds - position.seconds))
            self.tell(
                Stepped(position.step, schedule.steps, loss, rate, pace.tokens_per_second, left)
            )

    def _tick(self) -> float:
        """Add the time since the last tick to the run's, and return it."""
        before, self.clock = self.clock, time.perf_counter()
        self.position.seconds += self.clock - before
        return self.clock - before

    def _step(self, rate: float) -> tuple[float, int]:
        """Take one step of the optimiser; return the mean loss of its batch, and its tokens."""
        position = self.position
        batch = self.epoch[position.batch]
        loss, tokens = batch_loss(
            self.model, batch.to(self.device), self.options.optimiser.label_smoothing
        )
        (loss / tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self.optimiser.parameters.values(), self.options.optimiser.clip
        )
        mean = loss.item() / tokens
        if not (math.isfinite(mean) and math.isfinite(norm.item())):
            raise self._diverged(mean, norm.item(), rate)
        self.optimiser.step(rate)
        position.step += 1
        position.batch += 1
        if position.batch == len(self.epoch):
            position.epoch, position.batch = position.epoch + 1, 0
            self.epoch = self._epoch()
        return mean, tokens

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

    def _evaluated(self) -> bool:
        """Whether nothing is left to evaluate at this step."""
        return self.validate is None or self.position.evaluated == self.position.step

    def _evaluate(self, interruption: Interruption) -> bool:
        """Score the dev set, unless that is done, and return whether it was better than ever.

        It leaves no trace in the random state. What fails or is interrupted loses no step.
        """
        position = self.position
        if self.validate is None or self._evaluated() or interruption.asked:
            return False
        state = random_state(self.device)
        self.model.eval()
        try:
            with torch.no_grad(), interruption.at_once():
                self.tell(Evaluating(position.step))
                scores = dict(self.validate(self.model))
            score = best_by(self.options.run.best_by, scores)
        except KeyboardInterrupt:
            interruption.asked = True
            return False
        except Exception:
            set_random_state(state, self.device)
            self._save()
            raise
        finally:
            set_random_state(state, self.device)
            self.model.train()
        position.evaluated = position.step
        best = position.best_score is None or score > position.best_score
        if best:
            position.best_score = score
        seconds = round(position.seconds + time.perf_counter() - self.clock, 3)
        self.history.evaluations.append(Evaluation(position.step, scores, seconds))
        self.tell(Evaluated(position.step, scores, best))
        return best

    def _save(self, best: bool = False) -> None:
        """Write a checkpoint, unless this very state has been written."""
        position = self.position
        stamp = (position.step, position.evaluated)
        if self.saved_at == stamp:
            return
        name = self.checkpoints.free_name(position.step)
        if best:
            position.best = name
        state = {
            "position": dataclasses.asdict(position),
            "history": self.history.to_dict(),
            "options": self.options.to_dict(),
            "data": self.data.fingerprint,
            "threads": torch.get_num_threads(),
            "versions": versions(),
        }
        training = {**self.optimiser.tensors(), **random_state(self.device)}
        checkpoint = Checkpoint(weights(self.model), training, state)
        folder = self.checkpoints.save(name, checkpoint, position.best)
        self.saved_at = stamp
        self.checkpoints.prune(self.options.run.keep, position.step)
        self.tell(Saved(position.step, folder))

    def _end(self, stopped: Literal["finished", "time", "interrupted"]) -> History:
        """Say where the run ended."""
        self.model.eval()
        folder = self.checkpoints.folder
        self.history.stopped = stopped
        self.history.checkpoint = folder / self.checkpoints.latest()
        self.history.best = folder / self.checkpoints.best()
        return self.history

    def _diverged(self, loss: float, norm: float, rate: float) -> DivergedError:
        """Return the error that says so, and how to go on."""
        step, names = self.position.step + 1, self.checkpoints.names()
        got = f"loss {loss} with gradient norm {norm} at step {step}, learning rate {rate:.2g}"
        fix = "Lower learning_rate or raise warmup and start anew"
        if names:
            fix += f"; {self.checkpoints.folder / names[-1]} holds the last good state"
        return build(DivergedError, "loss", "a finite number", got, "training diverged", fix)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint, after checking that it is one of this run."""
        state = checkpoint.state
        check_same_run(state, self.options, self.data)
        if self.options.run.threads is None:
            torch.set_num_threads(state["threads"])
        load_weights(self.model, checkpoint.model)
        training = dict(checkpoint.training)
        random = {k: training.pop(k) for k in list(training) if k.startswith("random/")}
        set_random_state(random, self.device)
        self.optimiser.load(training)
        self.position = Position(**state["position"])
        self.history = History.from_dict(state["history"])
        self.saved_at = (self.position.step, self.position.evaluated)
