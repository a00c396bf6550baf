"""Early stopping: a run ends where its dev score no longer rises.

How long it has not risen is read from the evaluations in the history, which every checkpoint holds;
so a run that is killed and resumed ends where it would have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from intently.errors import ArgumentError, build
from intently.training.history import Evaluation
from intently.training.resuming import best_by


def without_better(name: str, evaluations: Sequence[Evaluation], every: int = 1) -> int:
    """Return how many evaluations there were since the best one; equal ones are not better.

    Only steps that ``every`` divides count: others were evaluated because a run ended there, and
    one that did not end would not have been.

    >>> scores = [2.0, 1.5, 1.5, 1.7]
    >>> without_better("loss", [Evaluation(i, {"loss": x}, 0.0) for i, x in enumerate(scores)])
    2
    """
    scores = [best_by(name, at.scores) for at in evaluations if at.step % every == 0]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def check_patience(patience: int, validated: bool) -> None:
    """Raise ArgumentError where a run has a patience and no dev set to be patient about.

    >>> check_patience(3, validated=True)
    """
    if patience and not validated:
        fix = "give a dev set (in Python dev=… or validate=…), or patience=0"
        raise build(ArgumentError, "patience", "0 without a dev set", patience, fix=fix)
