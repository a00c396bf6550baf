"""Checks that a resumed run has the options and the data of its checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from intently.errors import ArgumentError, build
from intently.training.batches import Data
from intently.training.checkpoint import versions
from intently.training.options import TrainingOptions

CHANGEABLE = {
    *("steps", "seconds", "patience", "threads", "device", "parallel"),
    *("save_every", "evaluate_every", "keep"),
}
"""Options that may change when a run resumes."""

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
        "warmed?": (COUNT, None),
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
"""The shape of the state that the trainer stores in a checkpoint; see `files.fault`."""


def check_same_run(
    state: Mapping[str, Any],
    options: TrainingOptions,
    data: Data,
    processes: int = 1,
    device: str = "cpu",
    dev: str | None = None,
    where: str = "the checkpoint",
) -> None:
    """Check that options, data and ``dev`` set are those of the checkpoint's ``state``.

    Options in `CHANGEABLE` may differ. Raises ArgumentError for any other difference. Warns if
    versions, threads, the kind of ``device`` or the number of processes differ: the last bits may
    then differ from those of an uninterrupted run.
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
            "scores on two dev sets cannot be compared",
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
            f"The run resumes under other conditions than it began ({', '.join(changes)}): "
            "its weights may differ in their last bits from those of an uninterrupted run.",
            stacklevel=2,
        )
