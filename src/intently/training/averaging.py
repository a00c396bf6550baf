"""The mean weights of several checkpoints, often better than any one of them, at no cost.

Vaswani et al. 2017, section 6.1, translated with the mean of the last 5 checkpoints; Izmailov et
al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization", explain why it works.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from intently.errors import ArgumentError, build
from intently.models.weights import check_alike
from intently.training.checkpoint import Checkpoints, step_of


def newest(names: Sequence[str], count: int, every: int = 1) -> list[str]:
    """Return the newest ``count`` checkpoints, oldest first, one for each step.

    Except for the last, only steps that ``every`` divides count: all other checkpoints exist
    because the run was interrupted there, or improved its best score.

    >>> newest(["step-000100", "step-000200", "step-000200-2", "step-000300"], 2)
    ['step-000200-2', 'step-000300']
    >>> newest(["step-000100", "step-000170", "step-000200", "step-000230"], 3, every=100)
    ['step-000100', 'step-000200', 'step-000230']
    """
    by_step = {step_of(name): name for name in names}
    last = max(by_step, default=0)
    return [name for step, name in by_step.items() if step == last or step % every == 0][-count:]


def averaged(checkpoints: Checkpoints, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the mean of the weights of the checkpoints ``names``, for `load_weights`.

    Sums are in float64, the result has the dtype of the weights; integer tensors are those of the
    last checkpoint. Raises ArgumentError if ``names`` is empty, CheckpointError if a checkpoint
    cannot be used or its weights have other names or shapes.

    >>> import tempfile
    >>> import torch
    >>> from intently.training.checkpoint import Checkpoint, name_of
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder)
    ...     for step, value in ((1, 2.0), (2, 5.0)):
    ...         made = Checkpoint({"w": torch.tensor([value])}, {}, {})
    ...         _ = checkpoints.save(name_of(step), made)
    ...     averaged(checkpoints, checkpoints.names())
    {'w': tensor([3.5000])}
    """
    if not names:
        raise build(ArgumentError, "names", "at least one checkpoint to average", "none")
    weights = checkpoints.load(names[0]).model
    sums = {name: tensor.double() for name, tensor in weights.items()}
    for name in names[1:]:
        first, weights = weights, checkpoints.load(name).model
        check_alike(first, weights, f"they and those of {names[0]} are of different models", name)
        for key, tensor in weights.items():
            sums[key] += tensor
    return {
        key: (sums[key] / len(names)).to(last.dtype) if last.is_floating_point() else last
        for key, last in weights.items()
    }
