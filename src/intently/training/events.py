"""The events of a run, and its listeners: functions that take an event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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
