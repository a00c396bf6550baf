"""What must be equal where a run goes on, and what it is compared by."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from intently.errors import ArgumentError, build
from intently.training.batches import Pairs
from intently.training.checkpoint import versions
from intently.training.options import TrainingOptions
from intently.training.schedule import LONGEST, warmup_of

CHANGEABLE = {
    *("steps", "seconds", "patience", "threads", "device", "parallel"),
    *("save_every", "evaluate_every", "keep", "average", "tensorboard"),
}


COUNT = range(2**63)
STATE = {
    "position": {
        "step": COUNT,
        "epoch": COUNT,
        "batch": COUNT,
        "tokens": COUNT,
        "seconds": float,
        "evaluated": COUNT,
        "loss_sum": float,
        "loss_steps": COUNT,
        "best": (str, None),
        "best_score": (float, None),
    },
    "history": {
        "records": [[COUNT, float, float, COUNT, float]],
        "evaluations": [{"step": COUNT, "scores": {str: float}, "seconds": float}],
    },
    "options": {str: {str: object}},
    "data": str,
    "dev?": (str, None),
    "threads": range(1, 2**10),
    "processes?": range(1, 2**20),
    "device?": str,
    "versions": {str: str},
}
"""What the trainer stores as the state of a checkpoint, as `files.fault` describes it."""


def check_same_run(
    state: Mapping[str, Any],
    options: TrainingOptions,
    data: Pairs,
    processes: int = 1,
    device: str = "cpu",
    dev: str | None = None,
    where: str = "the checkpoint",
) -> None:
    """Check that options, data and ``dev`` set are those the state of a checkpoint was made with.

    When the run ends, threads, devices and what is about saving may change. Raises ArgumentError
    where something else differs, in the words of the data; warns where versions, threads, the kind
    of ``device`` or the number of processes do, for then the last bits may differ from those of a
    run that was never stopped.
    """
    words = data.words
    stored = TrainingOptions.from_dict(state["options"], f"options of {where}").to_dict()
    other = [
        (words.get(name, name), stored[group][name], value)
        for group, values in options.to_dict().items()
        for name, value in values.items()
        if value != stored[group][name] and name not in CHANGEABLE
    ]
    if other:
        names, before, given = zip(*other)
        expected = f"{', '.join(map(repr, before))}, with which the run began"
        again = ", ".join(f"{name}={value!r}" for name, value, _ in other)
        raise build(
            ArgumentError,
            ", ".join(names),
            expected,
            ", ".join(map(repr, given)),
            fix=f"Resume with {again}, or start a new run in another folder",
        )
    if data.fingerprint != state["data"]:
        expected = f"the data the run began with (checksum {state['data']})"
        got = f"{len(data)} other pairs ({data.fingerprint})"
        most = words.get("max_length", "max_length")
        cause = f"the files, the pairs held out (dev), the tokenizers or {most} have changed"
        raise build(ArgumentError, "data", expected, got, cause)
    if None not in (dev, state.get("dev")) and dev != state["dev"]:
        raise build(
            ArgumentError,
            "dev",
            f"the dev set the run began with (checksum {state['dev']})",
            f"another ({dev})",
            "its scores would be compared with those of the other",
        )
    changes = [
        f"{name} {state['versions'].get(name)} → {version}"
        for name, version in versions().items()
        if version != state["versions"].get(name)
    ]
    threads = options.run.threads
    if threads not in (None, state["threads"]):
        changes.append(f"threads {state['threads']} → {threads}")
    if device != state.get("device", "cpu"):
        changes.append(f"device {state.get('device', 'cpu')} → {device}")
    before = state.get("processes", 1)
    if processes != before:
        drop = options.model.dropout > 0
        changes.append(f"processes {before} → {processes}" + drop * ", which draw other dropout")
    if changes:
        warnings.warn(
            f"The run goes on under other conditions than it began ({', '.join(changes)}): "
            "its weights may differ in their last bits from those of a run never stopped.",
            stacklevel=2,
        )


def settled(
    options: TrainingOptions, stored: TrainingOptions | None = None, longest: int = LONGEST
) -> TrainingOptions:
    """Return the options with the warm-up as a number of steps, where it is not given.

    It is that of the run that goes on with the ``stored`` options, else a share of the steps as
    `warmup_of` has it. A run that is resumed with more steps rises as it did before.

    >>> settled(TrainingOptions().with_flags(steps=150)).schedule.warmup
    30
    """
    if options.schedule.warmup is not None:
        return options
    before = None if stored is None else stored.schedule.warmup
    return options.with_flags(
        warmup=warmup_of(options.schedule.steps, longest) if before is None else before
    )


def best_by(name: str, scores: Mapping[str, float]) -> float:
    """Return the score that decides which checkpoint is best: higher is better.

    >>> best_by("bleu", {"bleu": 31.2}), best_by("loss", {"loss": 1.5})
    (31.2, -1.5)
    """
    if not math.isfinite(scores.get(name, math.nan)):
        got = ", ".join(f"{key}={score}" for key, score in scores.items()) or "none"
        raise build(ArgumentError, "validate", f"a finite score {name!r} (the option best_by)", got)
    return -scores[name] if name == "loss" else scores[name]
