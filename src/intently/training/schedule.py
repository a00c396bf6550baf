"""The learning rate as a pure function of the step, so that nothing about it needs to be saved."""

from __future__ import annotations

from intently.training.options import ScheduleOptions


def learning_rate(step: int, options: ScheduleOptions) -> float:
    """Return the learning rate of step 1, 2, …, ``options.steps``.

    It rises linearly to ``options.learning_rate`` over ``warmup`` steps; then it falls with the
    inverse square root of the step (Vaswani et al. 2017, equation 3, rescaled to its peak), or
    stays constant. Over the last ``cooldown`` share of the steps it falls linearly to zero.

    >>> options = ScheduleOptions(steps=400, learning_rate=1.0, warmup=100, cooldown=0.25)
    >>> [learning_rate(step, options) for step in (50, 100, 225, 400)]
    [0.5, 1.0, 0.6666666666666666, 0.005]
    """
    warmup = max(1, options.warmup)
    rate = options.learning_rate * min(1.0, step / warmup)
    if options.schedule == "inverse_sqrt" and step > warmup:
        rate *= (warmup / step) ** 0.5
    cooling = options.cooldown * options.steps
    return rate * min(1.0, (options.steps + 1 - step) / cooling) if cooling >= 1 else rate
