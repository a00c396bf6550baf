"""Training: options, batches, loss, schedule, optimiser, checkpoints and the loop.

>>> import tempfile
>>> from intently.models.transformer import Transformer
>>> options = TrainingOptions().with_flags(width=16, heads=2, inner=32, steps=3)
>>> model = Transformer(options.model.transformer(source_vocabulary=9, target_vocabulary=9))
>>> pairs = Pairs([[4, 5], [6]], [[7, 8], [5]])
>>> with tempfile.TemporaryDirectory() as folder:
...     history = train(model, pairs, options, folder)
>>> history.stopped, len(history.records), history.best.name
('finished', 3, 'step-000003')
"""

from __future__ import annotations

from intently.training.batches import Batch, Pairs, epoch
from intently.training.checkpoint import Checkpoint, Checkpoints, load_weights, weights
from intently.training.events import Evaluated, Evaluating, Event, Saved, Stepped
from intently.training.history import Evaluation, History, Record
from intently.training.loss import smoothed_cross_entropy
from intently.training.metrics import Score, bleu, chrf, exact_match
from intently.training.options import (
    ArchitectureOptions,
    ModelOptions,
    OptimiserOptions,
    RunOptions,
    ScheduleOptions,
    TextOptions,
    TrainingOptions,
)
from intently.training.progress import display
from intently.training.trainer import DivergedError, train
from intently.training.validation import DevSet, dev_loss

__all__ = [  # noqa: RUF022 - in the order of learning
    "TrainingOptions",
    "ModelOptions",
    "TextOptions",
    "ScheduleOptions",
    "OptimiserOptions",
    "RunOptions",
    "ArchitectureOptions",
    "Pairs",
    "Batch",
    "epoch",
    "smoothed_cross_entropy",
    "train",
    "display",
    "Event",
    "Stepped",
    "Evaluating",
    "Evaluated",
    "Saved",
    "History",
    "Record",
    "Evaluation",
    "Checkpoint",
    "Checkpoints",
    "weights",
    "load_weights",
    "DivergedError",
    "DevSet",
    "dev_loss",
    "Score",
    "bleu",
    "chrf",
    "exact_match",
]
