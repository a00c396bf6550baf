"""The learning rate as a pure function of the step, so checkpoints need not store it."""

from __future__ import annotations

import math

from intently.training.options import ScheduleOptions, TrainingOptions

SHARE = 0.2
"""Part of a run in which the rate rises: of its steps by default, of its seconds at most."""

LONGEST = 500
"""Default warm-up of a long run, in steps."""


def warmup_of(steps: int, longest: int = LONGEST) -> int:
    """Return the default warm-up, in steps: a fifth of a short run.

    >>> warmup_of(150), warmup_of(10_000)
    (30, 500)
    """
    return min(longest, int(SHARE * steps))


def learning_rate(step: int, options: ScheduleOptions) -> float:
    """Return the learning rate of step 1, 2, …, ``options.steps``.

    It rises linearly to ``options.learning_rate`` over ``warmup`` steps, by default `warmup_of` the
    run. Then it

    - falls with the inverse square root of the step (``"inverse_sqrt"``: Vaswani et al. 2017,
      equation 3, rescaled to its peak),
    - falls as half a cosine to zero at the last step (``"cosine"``: Loshchilov and Hutter 2017,
      "SGDR", equation 5, one cycle without restarts), or
    - stays (``"constant"``).

    Over the last ``cooldown`` share of the steps, the rate is multiplied by a factor that falls
    linearly to zero; a cosine needs none. A run resumed with other ``steps`` follows the cosine, or
    the cooldown, of its new length.

    >>> options = ScheduleOptions(steps=400, learning_rate=1.0, warmup=100, cooldown=0.25)
    >>> [learning_rate(step, options) for step in (50, 100, 225, 400)]
    [0.5, 1.0, 0.6666666666666666, 0.005]
    >>> options = ScheduleOptions(steps=400, learning_rate=1.0, warmup=100, schedule="cosine")
    >>> [round(learning_rate(step, options), 3) for step in (50, 100, 200, 250, 400)]
    [0.5, 1.0, 0.75, 0.5, 0.0]
    """
    warmup = warmup_of(options.steps) if options.warmup is None else options.warmup
    warmup = max(1, warmup)
    rate = options.learning_rate * min(1.0, step / warmup)
    if step > warmup and options.schedule == "inverse_sqrt":
        rate *= (warmup / step) ** 0.5
    elif step > warmup and options.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * (step - warmup) / (options.steps - warmup)))
    cooling = options.cooldown * options.steps
    return rate * min(1.0, (options.steps + 1 - step) / cooling) if cooling >= 1 else rate


def risen(seconds: float, options: ScheduleOptions) -> float:
    """Return how much of the time for warming up has passed, 1 for all; 0 for a run without limit.

    A run with ``seconds`` does not know how many steps fit, so its warm-up ends after its steps, or
    after a fifth of the time, whichever comes first.

    >>> risen(5.0, ScheduleOptions(seconds=50)), risen(5.0, ScheduleOptions())
    (0.5, 0.0)
    """
    return 0.0 if options.seconds is None else min(1.0, seconds / (SHARE * options.seconds))


def settled(
    options: TrainingOptions,
    stored: TrainingOptions | None = None,
    *,
    longest: int = LONGEST,
    score: str | None = None,
) -> TrainingOptions:
    """Return the options with the default warm-up, and the default ``score`` as best_by, filled in.

    A resumed run takes those of its ``stored`` options, so that more steps do not change the
    warm-up; a new run takes `warmup_of`.

    >>> settled(TrainingOptions().with_flags(steps=150)).schedule.warmup
    30
    """
    usual = {"warmup": warmup_of(options.schedule.steps, longest), "best_by": score}
    if stored is not None:
        before = {"warmup": stored.schedule.warmup, "best_by": stored.run.best_by}
        usual |= {name: value for name, value in before.items() if value is not None}
    given = {"warmup": options.schedule.warmup, "best_by": options.run.best_by}
    return options.with_flags(**{n: usual[n] for n, value in given.items() if value is None})
