"""What the layers of language models and vision transformers are made by."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from intently.modules.feed_forward import FeedForward

Factory = Callable[[int], nn.Module]
"""Makes a part of a layer from the model width c: ``nn.LayerNorm``, ``nn.RMSNorm``, `mlp`."""


def mlp(inner: int | None = None, activation: Callable[[Tensor], Tensor] = F.gelu) -> Factory:
    """Return a factory of feed-forward layers, ``inner`` (4c unless given) wide inside.

    >>> mlp()(8).up.out_features
    32
    """

    def make(width: int) -> FeedForward:
        """Return a feed-forward layer for this width."""
        return FeedForward(width, 4 * width if inner is None else inner, activation=activation)

    return make


FOURFOLD = mlp()
"""GELU inside, four times as wide as the model: Radford et al. 2019 and Dosovitskiy et al. 2021."""
