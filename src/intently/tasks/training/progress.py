"""Events of a run, its history, and their display: a bar on a terminal, elsewhere lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    score by ``best_by`` (the last one where nothing was evaluated). A run ended by ``patience`` has
    stopped with "no better".
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
        step = None if self.best is None else step_of(self.best.name)
        return next((at for at in reversed(self.evaluations) if at.step == step), None)

    def kept(self) -> str:
        """Return in words which weights are the model's: their step, and the score that chose it.

        >>> history = History(evaluations=[Evaluation(60, {"chrf": 51.9}, 2.0)], best_by="chrf")
        >>> history.best = Path("run/checkpoints/step-000060.safetensors")
        >>> history.kept()
        'step 60, the best on dev by chrf (51.90)'
        """
        at, name = self.best_evaluation, self.best_by
        if at is not None and name is not None:
            return f"step {at.step}, the best on dev by {name} ({at.scores[name]:.2f})"
        last = self.best or self.checkpoint
        return "the beginning" if last is None else f"step {step_of(last.name)}, the last"

    def to_dict(self) -> dict[str, Any]:
        """Return records and evaluations as plain values that JSON can hold."""
        evaluations = [evaluation._asdict() for evaluation in self.evaluations]
        return {"records": list(map(list, self.records)), "evaluations": evaluations}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> History:
        """Return the history from the result of :meth:`to_dict`."""
        records = [Record(*row) for row in values["records"]]
        return cls(records, [Evaluation(**row) for row in values["evaluations"]])

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each record and evaluation, as `intently.show.curves` draws them.

        >>> at = Evaluation(9, {"exact": 50.0}, 1.0)
        >>> history = History([Record(9, 6.5, 1e-3, 900, 0.2)], [at])
        >>> [row.get("exact_match") for row in history.rows()]
        [None, 0.5]
        """
        names = {"exact": ("exact_match", 0.01), "loss": ("validation_loss", 1)}
        rows: list[dict[str, Any]] = [record._asdict() for record in self.records]
        for at in self.evaluations:
            scores = [(*names.get(name, (name, 1)), score) for name, score in at.scores.items()]
            values = {name: score * scale for name, scale, score in scores}
            rows.append({"step": at.step, "seconds": at.seconds, **values})
        return sorted(rows, key=lambda row: row["step"])


@dataclass(frozen=True)
class RunEvent:
    """An event after ``step`` steps."""

    step: int


@dataclass(frozen=True)
class Stepped(RunEvent):
    """A step was taken: the loss is that of its batch, in nats per target token."""

    steps: int
    loss: float
    learning_rate: float
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class Evaluating(RunEvent):
    """The dev set is about to be translated."""


@dataclass(frozen=True)
class Evaluated(RunEvent):
    """The dev set was scored; ``best``: better than all before, or as good with a lower loss."""

    scores: dict[str, float]
    best: bool


@dataclass(frozen=True)
class Saved(RunEvent):
    """A checkpoint was written."""

    path: Path


@dataclass(frozen=True)
class Resumed(RunEvent):
    """The run resumes after ``step`` of its steps."""

    steps: int


@dataclass(frozen=True)
class TimeUp(RunEvent):
    """The run ends after ``step`` of its steps because its ``seconds`` have passed."""

    steps: int


@dataclass(frozen=True)
class GivenUp(RunEvent):
    """The run ends because the last ``evaluations`` brought no better score."""

    evaluations: int
    score: str


Event = Stepped | Evaluating | Evaluated | Saved | Resumed | TimeUp | GivenUp
Listener = Callable[[Event], object]


@contextmanager
def display(console: Console | None = None, every: float = 5.0) -> Iterator[Listener]:
    """Show the events of a run on ``console``; plain lines come every ``every`` seconds.

    Use it as ``with display() as progress: train(..., progress=progress)``.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = console or Console()
    if not console.is_terminal:
        yield Lines(console, every)
        return
    texts = TextColumn("[bold]{task.description}"), TextColumn("{task.fields[now]}")
    with Progress(texts[0], BarColumn(24), texts[1], console=console) as bar:
        yield Lines(console, 0.1, bar)


class Lines:
    """Shows the first step, one every ``every`` seconds and the last, as lines or on a ``bar``."""

    def __init__(self, console: Console, every: float, bar: Progress | None = None) -> None:
        self._console, self._every, self._bar = console, every, bar
        self._last = -float("inf")
        if bar is not None:
            bar.add_task("training", now="", total=None)

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Stepped):
            now = time.monotonic()
            if now - self._last < self._every and event.step != event.steps:
                return
            self._last = now
        text, bar = line(event), self._bar
        if bar is not None and isinstance(event, Stepped):
            state = {"total": event.steps, "completed": event.step, "now": text}
            bar.update(bar.task_ids[0], description="training", **state)
        elif bar is not None and isinstance(event, Evaluating):
            bar.update(bar.task_ids[0], description="evaluating")
        elif text and (bar is None or not isinstance(event, Saved)):
            self._console.print(text, highlight=False, markup=False, soft_wrap=bar is None)


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
        case Stepped(step, steps, loss, rate, speed, left):
            counts = f"step {step}/{steps}  loss {loss:.3f}  lr {rate:.1e}"
            return f"{counts}  {speed:,.0f} tokens/s  {clock(left)} left"
        case Evaluated(step, scores, best):
            shown = (
                f"{name} {score:.1f}%" if name == "exact" else f"{name} {score:.2f}"
                for name, score in scores.items()
            )
            return f"step {step}  dev {'  '.join(shown)}" + "  (best so far)" * best
        case Saved(step, path):
            return f"step {step}  saved {path}"
        case Resumed(step, steps):
            left = "" if step < steps else ": none is left (more: a higher steps)"
            return f"going on after step {step}/{steps}{left}"
        case TimeUp(step, steps):
            return f"step {step}/{steps}  time is up: the run ends (more: seconds)"
        case GivenUp(step, evaluations, score):
            tried = counted(evaluations, "evaluation")
            end = "the run ends (resume with a higher patience)"
            return f"step {step}  no better {score} in {tried}: {end}"
    return ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 pair", "3 pairs"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, "3:12", or hours too, "1:06:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
