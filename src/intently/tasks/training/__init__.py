"""Training: options, batches, loss, schedule, optimiser, checkpoints and the loop.

>>> import tempfile
>>> from intently.tasks.training import Pairs, TrainingOptions, train
>>> from intently.nn.models.transformer import Transformer
>>> options = TrainingOptions().with_flags(width=16, heads=2, inner=32, steps=3)
>>> model = Transformer(options.shape(source_vocabulary=9, target_vocabulary=9))
>>> pairs = Pairs([[4, 5], [6]], [[7, 8], [5]])
>>> with tempfile.TemporaryDirectory() as folder:
...     history = train(model, pairs, options, folder)
>>> history.stopped, len(history.records), history.best.stem
('finished', 3, 'step-000003')
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intently.foundation.on_demand import listed, names

if TYPE_CHECKING:
    from intently.tasks.training.batches import Batch, Pairs, epoch
    from intently.tasks.training.checkpoint import Checkpoint, Checkpoints
    from intently.tasks.training.loss import smoothed_cross_entropy
    from intently.tasks.training.metrics import DevSet, bleu, chrf, dev_loss, exact_match
    from intently.tasks.training.options import TrainingOptions
    from intently.tasks.training.progress import Evaluated, Event, History, Stepped, display
    from intently.tasks.training.trainer import DivergedError, train

__all__ = [  # noqa: RUF022 - in the order of learning
    "TrainingOptions",
    "Pairs",
    "Batch",
    "epoch",
    "smoothed_cross_entropy",
    "train",
    "display",
    "Event",
    "Stepped",
    "Evaluated",
    "History",
    "Checkpoint",
    "Checkpoints",
    "DivergedError",
    "DevSet",
    "dev_loss",
    "bleu",
    "chrf",
    "exact_match",
]

__dir__ = listed(__name__)

_HOMES = {
    "batches": ("Batch", "Pairs", "epoch"),
    "checkpoint": ("Checkpoint", "Checkpoints"),
    "loss": ("smoothed_cross_entropy",),
    "metrics": ("DevSet", "bleu", "chrf", "dev_loss", "exact_match"),
    "options": ("TrainingOptions",),
    "progress": ("Evaluated", "Event", "History", "Stepped", "display"),
    "trainer": ("DivergedError", "train"),
}

__getattr__ = names(__name__, _HOMES)  # a model that only runs loads its options, not the trainer
