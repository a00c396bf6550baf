"""Shared by all experiments: training recipes into one folder, intervals, and the result file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from intently.corpora import Corpus
from intently.errors import ArgumentError, build
from intently.foundation.files import replace_file
from intently.recipes import Recipe
from intently.recipes.origin import Origin, keeping
from intently.show.figures.by_length import Interval
from intently.training import TrainingOptions, display
from intently.training.checkpoint import step_of, versions
from intently.training.metrics import RESAMPLED
from intently.training.writer import sole_writer
from intently.translation.runs import WRITES, Run, fit

if TYPE_CHECKING:
    from rich.console import Console

    from intently.translation.translator import Translator

CONFIDENT = 1.959964
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class System:
    """A system in an experiment: its label in figures, and the recipe it is trained by."""

    label: str
    recipe: Recipe

    def with_flags(self, **flags: Any) -> System:
        """Return the system with some options of its recipe replaced; None means not given.

        >>> from intently.recipes import recipe
        >>> system = System("fixed vector", recipe("language-fixed")).with_flags(steps=10)
        >>> system.recipe.options.schedule.steps
        10
        """
        options = self.recipe.options.with_flags(**flags)
        return replace(self, recipe=replace(self.recipe, options=options))


def train_all(
    systems: Sequence[System], corpus: Corpus, out: Path, console: Console
) -> list[Run] | None:
    """Train every system into ``out`` / its recipe's name, and return the runs in their order.

    A finished run is reused, an unfinished one resumes from its checkpoints. Only the sole writer
    of ``out`` may call this. Returns None if a run was interrupted; the same call resumes it. Each
    run's folder records its corpus, if it is that of the recipe.

    Raises `ArgumentError` if two systems share a label or a recipe's name, if a folder holds a run
    with a different number of steps (both before anything is trained), or with other options or
    data.
    """
    _check_apart(systems)
    _check_steps(systems, out)
    runs = []
    for system in systems:
        name = system.recipe.name
        folder, origin = out / name, _origin(system.recipe, corpus)
        console.print(f"{system.label}: training {name}", markup=False, highlight=False)
        with sole_writer(folder, WRITES), display(console, every=30.0) as progress:
            run = fit(
                corpus.train,
                system.recipe.options,
                folder,
                dev=corpus.dev,
                progress=keeping(origin, folder, progress),
                resume=True,
            )
        if run.history.stopped == "interrupted":
            return None
        runs.append(run)
    return runs


def _check_apart(systems: Sequence[System]) -> None:
    """Check that no two systems share a folder or a label in the figure."""
    for what, names in {
        "label": [system.label for system in systems],
        "recipe's name": [system.recipe.name for system in systems],
    }.items():
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            expected = f"a {what} for each that no other has"
            got = f"more than one {twice[0]!r}"
            raise build(ArgumentError, "systems", expected, got)


def _check_steps(systems: Sequence[System], out: Path) -> None:
    """Check that no folder holds a run of other steps, which `fit` would resume.

    The learning rate falls towards the last step, so a short run is not the start of a longer one.
    """
    for system in systems:
        folder, steps = out / system.recipe.name, system.recipe.options.schedule.steps
        stored = folder / "options.json"
        before = TrainingOptions.from_json(stored).schedule.steps if stored.is_file() else steps
        if steps != before:
            expected = f"{before}, with which the run in {folder} was made"
            fix = f"choose another folder, or steps={before}"
            raise build(ArgumentError, "steps", expected, steps, fix=fix)


def _origin(recipe: Recipe, corpus: Corpus) -> Origin | None:
    """Return the origin of the corpus for a run's folder, None if it is not the recipe's."""
    if recipe.corpus != corpus.name:
        return None
    folder = None if corpus.data_dir is None else str(corpus.data_dir)
    return Origin(corpus.name, corpus.source, corpus.target, folder, recipe.name)


def described(system: System, run: Run) -> dict[str, Any]:
    """Return the entry of a run in a result: recipe, size, time, and all its options."""
    history = run.history
    times = [at.seconds for at in (*history.records, *history.evaluations)]
    return {
        "label": system.label,
        "recipe": system.recipe.name,
        "parameters": parameters(run.translator),
        "training_seconds": round(max(times, default=0.0), 1),
        "steps": step_of(history.checkpoint.name) if history.checkpoint else 0,
        "best_checkpoint": history.best.name if history.best else None,
        "dev": [evaluation._asdict() for evaluation in history.evaluations],
        "options": system.recipe.options.to_dict(),
    }


def parameters(translator: Translator) -> int:
    """Return the number of parameters of a translator, tied ones counted once.

    >>> from intently.translation.translator import Translator
    >>> parameters(Translator.load()) > 100_000
    True
    """
    return sum(parameter.numel() for parameter in translator.model.parameters())


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, with versions and threads."""
    content = {**result, "versions": versions(), "threads": torch.get_num_threads()}
    replace_file(path, json.dumps(content, indent=1, ensure_ascii=False).encode())


# --- intervals ------------------------------------------------------------------------------------


def share_interval(right: int, total: int) -> Interval:
    """Return a share with the ends of its 95 % interval.

    Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference": the
    interval stays within 0 and 1, and has a positive width even if none or all are right.

    >>> [round(x, 3) for x in share_interval(0, 100)]
    [0.0, 0.0, 0.037]
    """
    share, z = right / total, CONFIDENT**2 / total
    middle = (share + z / 2) / (1 + z)
    half = math.sqrt(z * (share * (1 - share) + z / 4)) / (1 + z)
    return share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """Return the ratio of two sums over sentences, with the ends of its 95 % bootstrap interval.

    The sentences are resampled with replacement a thousand times, always with the same seed.

    Source: Efron 1979, "Bootstrap Methods: Another Look at the Jackknife" (percentiles).

    >>> ratio_interval([1, 1, 1], [2, 2, 2])
    (0.5, 0.5, 0.5)
    """
    above, below = np.asarray(numerators, float), np.asarray(denominators, float)
    drawn = np.random.default_rng(0).integers(0, len(above), (RESAMPLED, len(above)))
    sums = below[drawn].sum(1)
    ratios = above[drawn].sum(1)[sums > 0] / sums[sums > 0]
    if not len(ratios):
        return 0.0, 0.0, 0.0
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(above.sum() / below.sum()), float(low), float(high)
