"""What a run has to tell: the loss over the steps, the scores on the dev set, how it ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple


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


@dataclass
class History:
    """The records and evaluations of a run; ``stopped`` says why it ended.

    ``checkpoint`` is the folder of the last state, ``best`` that with the best dev score (the last
    one where nothing was evaluated).
    """

    records: list[Record] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    stopped: Literal["no", "finished", "time", "interrupted"] = "no"
    checkpoint: Path | None = None
    best: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return records and evaluations as plain values that JSON can hold.

        >>> History([Record(1, 6.5, 1e-3, 900, 0.2)]).to_dict()["records"]
        [[1, 6.5, 0.001, 900, 0.2]]
        """
        return {
            "records": [list(record) for record in self.records],
            "evaluations": [evaluation._asdict() for evaluation in self.evaluations],
        }

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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that JSON can hold."""
        return asdict(self)
