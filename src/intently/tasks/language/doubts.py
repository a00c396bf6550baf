"""When not to believe a language model's loss: the run ended while it still fell."""

from __future__ import annotations

import numpy as np

from intently.tasks.training.history import History
from intently.tasks.training.options import ScheduleOptions

FALLING = 0.05
"""Nats per token by which the loss of a trained model may still fall as the steps double."""

FEWEST = 8
"""Records of a history from which its slope can be measured."""


def slope(history: History, schedule: ScheduleOptions) -> float | None:
    """Return the change of the training loss per doubling of the steps, in nats per token.

    A line is fitted to the loss against log₂ of the step, over the second half of the steps before
    the cooldown, in which any loss falls. None for fewer than `FEWEST` records there.

    >>> from intently.tasks.training.history import Record
    >>> records = [Record(n, 4 - 0.1 * np.log2(n), 1e-3, 0, 0.0) for n in range(1, 101)]
    >>> round(slope(History(records), ScheduleOptions(steps=100)), 3)
    -0.1
    """
    last = history.records[-1].step if history.records else 0
    end = min(last, (1 - schedule.cooldown) * schedule.steps)
    some = [(at.step, at.loss) for at in history.records if end / 2 <= at.step <= end]
    if len(some) < FEWEST:
        return None
    steps, losses = np.array(some).T
    return float(np.polyfit(np.log2(steps), losses, 1)[0])


def undertrained(history: History, schedule: ScheduleOptions) -> str | None:
    """Return why a run is undertrained and what to do; None for one that is trained.

    It is undertrained if its loss falls by more than `FALLING` nats as the steps double, by
    `slope`, and its last evaluation was the best; or if it took too few steps to tell.

    >>> from intently.tasks.training.history import Record
    >>> records = [Record(n, 4 - 0.1 * np.log2(n), 1e-3, 0, 0.0) for n in range(1, 101)]
    >>> print(undertrained(History(records), ScheduleOptions(steps=100)))  # doctest: +ELLIPSIS
    undertrained: its loss still falls by 0.10 nats per token as the steps double (more ...
    """
    last = history.records[-1].step if history.records else 0
    advice = f"train longer than {last:,} step{'' if last == 1 else 's'}"
    falls = slope(history, schedule)
    if falls is None:
        return f"undertrained: too few steps to see whether its loss still falls; {advice}"
    held = [at.scores["loss"] for at in history.evaluations if "loss" in at.scores]
    if falls >= -FALLING or (held and held[-1] > min(held)):
        return None
    return (
        f"undertrained: its loss still falls by {-falls:.2f} nats per token as the steps double "
        f"(more than {FALLING}); {advice}"
    )
