"""What a run has to tell: the loss over the steps, the scores on the dev set, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Stopped = Literal["no", "finished", "no better", "time", "interrupted"]


class Record(NamedTuple):
    """The mean training loss, in nats per target token, over the steps since the last record.

    ``seconds`` is the time spent on the run so far, and ``tokens`` the target tokens seen so far.
    """

    step: int
    loss: float
    learning_rate: float
    tokens: int
    seconds: float


class Evaluation(NamedTuple):
    """The scores on the dev set after ``step`` steps."""

    step: int
    scores: dict[str, float]
    seconds: float


class Averaged(NamedTuple):
    """The mean of the weights of ``checkpoints``, and whether it became the translator.

    ``scores`` are its dev scores and ``best`` those of the best checkpoint, both None without a dev
    set.
    """

    checkpoints: list[str]
    taken: bool
    scores: dict[str, float] | None = None
    best: dict[str, float] | None = None


@dataclass
class History:
    """The records and evaluations of a run; ``stopped`` says why it ended.

    ``checkpoint`` is the folder of the last state, ``best`` that with the best dev score (the last
    one where nothing was evaluated), ``averaged`` what came of the option ``average``. A run that
    ended by the option ``patience`` has stopped because of "no better" score.
    """

    records: list[Record] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    stopped: Stopped = "no"
    checkpoint: Path | None = None
    best: Path | None = None
    averaged: Averaged | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return records and evaluations as plain values that JSON can hold.

        >>> History([Record(1, 6.5, 1e-3, 900, 0.2)]).to_dict()["records"]
        [[1, 6.5, 0.001, 900, 0.2]]
        """
        return {
            "records": [list(record) for record in self.records],
            "evaluations": [evaluation._asdict() for evaluation in self.evaluations],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a line for each record and evaluation, as `intently.show.training` draws them.

        >>> at = Evaluation(9, {"exact": 50.0}, 1.0)
        >>> history = History([Record(9, 6.5, 1e-3, 900, 0.2)], [at])
        >>> [row.get("exact_match") for row in history.rows()]
        [None, 0.5]
        """
        rows: list[dict[str, Any]] = [record._asdict() for record in self.records]
        for at in self.evaluations:
            row: dict[str, Any] = {"step": at.step, "seconds": at.seconds}
            for name, score in at.scores.items():
                known = {"exact": ("exact_match", 0.01), "loss": ("validation_loss", 1)}
                key, scale = known.get(name, (name, 1))
                row[key] = score * scale
            rows.append(row)
        return sorted(rows, key=lambda row: row["step"])

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> History:
        """Return what :meth:`to_dict` was called on."""
        return cls(
            [Record(*row) for row in values["records"]],
            [Evaluation(**row) for row in values["evaluations"]],
        )


@dataclass
class Position:
    """Where a run stands: all that changes from step to step, beside tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next batch of the epoch
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0  # the last step after which the dev set was evaluated
    loss_sum: float = 0.0  # of the steps since the last record
    loss_steps: int = 0
    best: str | None = None  # the name of the best checkpoint
    best_score: float | None = None
