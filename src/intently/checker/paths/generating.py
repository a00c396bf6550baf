"""Beam search of a model, with its cache and without: the cache has to follow the beams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.properties.trial import Property, Trial
from intently.checker.report.finding import Finding

NAME = "beam search with a cache"
BEAMS, STEPS = 3, 4


def beams(trial: Trial, steps_hold: bool) -> Iterator[tuple[Property, list[Finding]]]:
    """A beam search finds sequences of the same scores with a cache as without.

    Where the steps of the cache are right, what is wrong is how its rows follow the beams.
    """
    subject = trial.subject
    try:
        with torch.no_grad():
            with_cache, without = (_scores(subject, cached) for cached in (True, False))
    except Exception:  # models that do not generate, or not from these inputs
        return
    if with_cache is None or without is None or with_cache.shape != without.shape:
        return
    off = float(((with_cache - without).abs() / without.abs().clamp(min=1e-6)).max())
    if off <= 10 * trial.same:
        yield Property(NAME, True), []
        return
    said = f"the scores of {BEAMS} beams after {STEPS} steps differ by {off:.2g} from those without"
    found = Finding("cache-rows-exchanged" if steps_hold else "cached-step-differs", said)
    yield Property(NAME, False, said), [found]


def _scores(subject: Subject, cached: bool) -> Tensor | None:
    """The scores of all beams (n,); None for a model that does not generate."""
    module: Any = subject.module
    can: Callable[[], bool] | None = getattr(module, "can_generate", None)
    if can is None or not can() or subject.call is not module:
        return None

    def call(**given: Any) -> Any:
        options = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "do_sample": False}
        options |= {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "use_cache": cached}
        options |= {"return_dict_in_generate": True, "output_scores": True}
        return module.generate(**given, **options).sequences_scores

    return replace(subject, call=call).output()
