"""Small runs by many processes, as torchrun starts it: ``python many.py RESULT JOBS`` in JSON.

A job is {"out": folder, "options": {by name}}, and perhaps "die": the process, the step and the
signal with which a process strikes itself before that step: {"rank": 1, "step": 5, "signal": 9}.
The first process writes what came of each job to RESULT.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from itertools import count
from pathlib import Path
from typing import Any

import tiny_run as tiny

from intently.errors import IntentlyError
from intently.tasks.training.optimiser import TrainedModel
from intently.tasks.training.processes import current


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Begin a run or go on with it; return the loss of each step taken, and why it ended."""
    options, die = tiny.OPTIONS.with_flags(**job["options"]), job.get("die")
    gradients, losses, steps = TrainedModel.gradients, [], count()

    def striking(worker, batches):
        if die and (current().rank, next(steps)) == (die["rank"], die["step"]):
            os.kill(os.getpid(), die["signal"])
        return gradients(worker, batches)

    TrainedModel.gradients = striking  # pyright: ignore[reportAttributeAccessIssue]
    try:
        net = tiny.model(options=options)
        _, history = tiny.run(job["out"], options, tiny.losses(losses), resume=True, net=net)
    finally:
        TrainedModel.gradients = gradients
    scores = [evaluation.scores for evaluation in history.evaluations]
    return {"losses": losses, "stopped": history.stopped, "scores": scores}


def main() -> None:
    """Do all jobs; an error of Intently's ends them in one line, as on the command line."""
    warnings.simplefilter("ignore", UserWarning)
    try:
        found = [do(job) for job in json.loads(sys.argv[2])]
    except IntentlyError as error:
        print(f"intently: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
    if current().first:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
