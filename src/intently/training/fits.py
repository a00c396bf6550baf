"""Refuse a run that cannot fit into memory, before it begins.

Every estimate is a lower bound: a run that fits is never refused, and one that is far too large is
refused at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from intently.foundation.memory import check_fits
from intently.training.options import TrainingOptions

OF_A_PARAMETER = 16
"""Bytes: the weight, its gradient, and the optimiser's two moments."""

OF_A_NUMBER = 4
"""Bytes of a float32."""


def parameters(make: Callable[[int, int], nn.Module], encoder: int, decoder: int) -> float:
    """Return the number of parameters of ``make(encoder, decoder)``, where both count layers.

    At most two layers of a kind are made, on the meta device; further layers equal the second.

    >>> parameters(lambda encoder, decoder: nn.Linear(2, decoder), 1, 3)
    9.0
    """

    def count(*layers: int) -> float:
        with torch.device("meta"):
            return float(sum(parameter.numel() for parameter in make(*layers).parameters()))

    try:
        least = count(1, 1)
        of_each = count(2, 1) - least, count(1, 2) - least
    except (RuntimeError, OverflowError):  # a tensor too large to exist
        return 2.0**63
    return least + (encoder - 1) * of_each[0] + (decoder - 1) * of_each[1]


def check_model(
    make: Callable[[int, int], nn.Module], options: TrainingOptions, device: torch.device
) -> None:
    """Raise `ArgumentError` unless memory holds the model and the state of its optimiser."""
    m = options.model
    count = parameters(make, m.encoder_layers, m.decoder_layers)
    check_fits(
        "inner" if (m.inner or 0) > 4 * m.width else "width",
        OF_A_PARAMETER * count,
        f"width={m.width} with inner={m.inner} and {m.encoder_layers} + {m.decoder_layers} layers",
        "choose smaller sizes, or fewer layers",
        device,
    )


def check_batch(
    model: nn.Module, largest: int, options: TrainingOptions, word: str, processes: int = 1
) -> None:
    """Raise `ArgumentError` unless memory holds the activations that a step needs for its gradient.

    They are at least the input of every matrix of the decoder, for each of the ``largest`` number
    of target tokens in a batch. ``word`` names the option for the length of a text, which the error
    names if one text alone exceeds ``batch_tokens``.
    """
    columns = sum(
        parameter.shape[1]
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and "decoder" in name and "weight" in name.rpartition(".")[2]
    )
    name = word if largest > options.optimiser.batch_tokens else "batch_tokens"
    check_fits(
        name,
        OF_A_NUMBER * columns * largest / processes,
        f"a batch of {largest:,} tokens",
        f"choose a smaller {name}",
        next(model.parameters()).device,
    )
