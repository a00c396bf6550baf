"""Events of a run, and their display: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from intently.tasks.training.checkpoint import step_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Stopped = Literal["no", "finished", "no better", "time", "interrupted"]


class Record(NamedTuple):
    """The mean training loss, in nats per target token, over the steps since the last record.

    ``seconds`` is the time spent so far, ``tokens`` the number of target tokens seen so far.
    """

    step: int
    loss: float
    learning_rate: float
    tokens: int
    seconds: float


class Evaluation(NamedTuple):
    """The scores on the dev set after ``step`` steps."""

    step: int
    scores: dict[str, float]
    seconds: float


@dataclass
class History:
    """The records and evaluations of a run; ``stopped`` says why it ended.

    ``checkpoint`` is the file of the last checkpoint, ``best`` that of the one with the best dev
    score (the last one where nothing was evaluated). ``best_by`` names the dev score
    that chose the best. A run ended by ``patience`` has stopped with "no better".
    """

    records: list[Record] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    stopped: Stopped = "no"
    checkpoint: Path | None = None
    best: Path | None = None
    best_by: str | None = None

    @property
    def best_evaluation(self) -> Evaluation | None:
        """The evaluation that chose the best checkpoint, None where nothing was evaluated."""
        if self.best is None:
            return None
        step = step_of(self.best.name)
        return next((at for at in reversed(self.evaluations) if at.step == step), None)

    def kept(self) -> str:
        """Return in words which weights are the model's: their step, and the score that chose it.

        >>> history = History(evaluations=[Evaluation(60, {"chrf": 51.9}, 2.0)], best_by="chrf")
        >>> history.best = Path("run/checkpoints/step-000060.safetensors")
        >>> history.kept()
        'step 60, the best on dev by chrf (51.90)'
        """
        at = self.best_evaluation
        if at is not None and self.best_by is not None:
            return (
                f"step {at.step}, the best on dev by {self.best_by} ({at.scores[self.best_by]:.2f})"
            )
        last = self.best or self.checkpoint
        return "the beginning" if last is None else f"step {step_of(last.name)}, the last"

    def to_dict(self) -> dict[str, Any]:
        """Return records and evaluations as plain values that JSON can hold.

        >>> History([Record(1, 6.5, 1e-3, 900, 0.2)]).to_dict()["records"]
        [[1, 6.5, 0.001, 900, 0.2]]
        """
        return {
            "records": [list(record) for record in self.records],
            "evaluations": [evaluation._asdict() for evaluation in self.evaluations],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each record and evaluation, as `intently.show.curves` draws them.

        >>> at = Evaluation(9, {"exact": 50.0}, 1.0)
        >>> history = History([Record(9, 6.5, 1e-3, 900, 0.2)], [at])
        >>> [row.get("exact_match") for row in history.rows()]
        [None, 0.5]
        """
        rows: list[dict[str, Any]] = [record._asdict() for record in self.records]
        for at in self.evaluations:
            row: dict[str, Any] = {"step": at.step, "seconds": at.seconds}
            for name, score in at.scores.items():
                known = {"exact": ("exact_match", 0.01), "loss": ("validation_loss", 1)}
                key, scale = known.get(name, (name, 1))
                row[key] = score * scale
            rows.append(row)
        return sorted(rows, key=lambda row: row["step"])

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> History:
        """Return the history from the result of :meth:`to_dict`."""
        return cls(
            [Record(*row) for row in values["records"]],
            [Evaluation(**row) for row in values["evaluations"]],
        )


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


@dataclass(frozen=True)
class After:
    """An event after ``step`` steps."""

    step: int


@dataclass(frozen=True)
class Stepped(After):
    """A step was taken: the loss is that of its batch, in nats per target token."""

    steps: int
    loss: float
    learning_rate: float
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class Evaluating(After):
    """The dev set is about to be translated."""


@dataclass(frozen=True)
class Evaluated(After):
    """The dev set was scored; ``best`` if no earlier score was as high, or as high with as low a
    loss.
    """

    scores: dict[str, float]
    best: bool


@dataclass(frozen=True)
class Saved(After):
    """A checkpoint was written."""

    path: Path


@dataclass(frozen=True)
class Resumed(After):
    """The run resumes after ``step`` of its steps."""

    steps: int


@dataclass(frozen=True)
class TimeUp(After):
    """The run ends after ``step`` of its steps because its ``seconds`` have passed."""

    steps: int


@dataclass(frozen=True)
class GivenUp(After):
    """The run ends because the last ``evaluations`` brought no better score."""

    evaluations: int
    score: str


Event = Stepped | Evaluating | Evaluated | Saved | Resumed | TimeUp | GivenUp
Listener = Callable[[Event], object]


class Pace:
    """Speed as a moving average over about the last fifty steps.

    >>> pace = Pace()
    >>> pace.step(tokens=3000, seconds=0.5)
    >>> pace.tokens_per_second, pace.seconds_for(10)
    (6000.0, 5.0)
    """

    def __init__(self) -> None:
        self._steps, self._tokens, self._seconds = 0, 0.0, 0.0

    def step(self, tokens: int, seconds: float) -> None:
        """Update with a step of that many tokens and seconds."""
        self._steps += 1
        weight = max(1 / self._steps, 0.02)
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second."""
        return self._tokens / self._seconds

    def seconds_for(self, steps: int) -> float:
        """Return the estimated time for this many steps."""
        return steps * self._seconds


@contextlib.contextmanager
def display(console: Console | None = None, every: float = 5.0) -> Iterator[Listener]:
    """Show the events of a run on ``console``; plain lines come every ``every`` seconds.

    Use it as ``with display() as progress: train(..., progress=progress)``.
    """
    from rich.console import Console

    console = console or Console()
    if not console.is_terminal:
        yield Lines(console, every)
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(24),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=console) as bar:
        yield Bar(bar)


class Lines:
    """Prints the first step, then one line every ``every`` seconds, and the last step."""

    def __init__(self, console: Console, every: float = 5.0) -> None:
        self._console, self._every, self._last = console, every, -float("inf")

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Stepped):
            now = time.monotonic()
            if now - self._last < self._every and event.step != event.steps:
                return
            self._last = now
        text = line(event)
        if text:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class Bar:
    """Moves a bar with every step; prints evaluations above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("training", now="", total=None)
        self._last = -float("inf")

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Stepped):
            now = time.monotonic()
            if now - self._last >= 0.1 or event.step == event.steps:
                self._last = now
                self._progress.update(
                    self._task,
                    total=event.steps,
                    completed=event.step,
                    now=line(event),
                    description="training",
                )
        elif isinstance(event, Evaluating):
            self._progress.update(self._task, description="evaluating")
        elif isinstance(event, Evaluated | Resumed | TimeUp | GivenUp):
            self._progress.console.print(line(event), highlight=False, markup=False)


def line(event: Event) -> str:
    """Return an event as one line, "" for events that are not shown.

    >>> line(Stepped(120, 2000, 3.2141, 1.2e-3, 7712.3, 192.0))
    'step 120/2000  loss 3.214  lr 1.2e-03  7,712 tokens/s  3:12 left'
    >>> line(Evaluated(1000, {"bleu": 31.25, "exact": 12.5}, best=True))
    'step 1000  dev bleu 31.25  exact 12.5%  (best so far)'
    >>> line(Resumed(120, 2000)), line(TimeUp(700, 2000))
    ('going on after step 120/2000', 'step 700/2000  time is up: the run ends (more: seconds)')
    >>> line(GivenUp(4000, 3, "bleu"))
    'step 4000  no better bleu in 3 evaluations: the run ends (resume with a higher patience)'
    """
    match event:
        case Stepped():
            return (
                f"step {event.step}/{event.steps}  loss {event.loss:.3f}  "
                f"lr {event.learning_rate:.1e}  {event.tokens_per_second:,.0f} tokens/s  "
                f"{clock(event.seconds_left)} left"
            )
        case Evaluated():
            scores = "  ".join(
                f"{name} {score:.1f}%" if name == "exact" else f"{name} {score:.2f}"
                for name, score in event.scores.items()
            )
            return f"step {event.step}  dev {scores}" + "  (best so far)" * event.best
        case Saved():
            return f"step {event.step}  saved {event.path}"
        case Resumed():
            left = "" if event.step < event.steps else ": none is left (more: a higher steps)"
            return f"going on after step {event.step}/{event.steps}{left}"
        case TimeUp():
            return f"step {event.step}/{event.steps}  time is up: the run ends (more: seconds)"
        case GivenUp():
            return (
                f"step {event.step}  no better {event.score} in "
                f"{counted(event.evaluations, 'evaluation')}: "
                "the run ends (resume with a higher patience)"
            )
    return ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "checkpoint"), counted(3, "checkpoint")
    ('1 checkpoint', '3 checkpoints')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or hours too.

    >>> clock(192), clock(4000)
    ('3:12', '1:06:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
