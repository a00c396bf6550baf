"""The history of a run: its loss curve, its dev scores, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from intently.tasks.training.checkpoint import step_of

Stopped = Literal["no", "finished", "no better", "time", "interrupted"]


class Record(NamedTuple):
    """The mean training loss, in nats per target token, over the steps since the last record.

    ``seconds`` is the time spent so far, ``tokens`` the number of target tokens seen so far.
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


@dataclass
class History:
    """The records and evaluations of a run; ``stopped`` says why it ended.

    ``checkpoint`` is the file of the last checkpoint, ``best`` that of the one with the best dev
    score (the last one where nothing was evaluated). ``best_by`` names the dev score
    that chose the best. A run ended by ``patience`` has stopped with "no better".
    """

    records: list[Record] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    stopped: Stopped = "no"
    checkpoint: Path | None = None
    best: Path | None = None
    best_by: str | None = None

    @property
    def best_evaluation(self) -> Evaluation | None:
        """The evaluation that chose the best checkpoint, None where nothing was evaluated."""
        if self.best is None:
            return None
        step = step_of(self.best.name)
        return next((at for at in reversed(self.evaluations) if at.step == step), None)

    def kept(self) -> str:
        """Return in words which weights are the model's: their step, and the score that chose it.

        >>> history = History(evaluations=[Evaluation(60, {"chrf": 51.9}, 2.0)], best_by="chrf")
        >>> history.best = Path("run/checkpoints/step-000060.safetensors")
        >>> history.kept()
        'step 60, the best on dev by chrf (51.90)'
        """
        at = self.best_evaluation
        if at is not None and self.best_by is not None:
            return (
                f"step {at.step}, the best on dev by {self.best_by} ({at.scores[self.best_by]:.2f})"
            )
        last = self.best or self.checkpoint
        return "the beginning" if last is None else f"step {step_of(last.name)}, the last"

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
        """Return a row for each record and evaluation, as `intently.show.curves` draws them.

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
        """Return the history from the result of :meth:`to_dict`."""
        return cls(
            [Record(*row) for row in values["records"]],
            [Evaluation(**row) for row in values["evaluations"]],
        )


@dataclass
class Position:
    """The position of a run: everything that changes from step to step, tensors aside."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next batch of the epoch
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0  # the last step after which the dev set was evaluated
    loss_sum: float = 0.0  # of the steps since the last record
    loss_steps: int = 0
    best: str | None = None  # the name of the best checkpoint
    warmed: int | None = None  # the step at which `seconds` ended the warm-up
