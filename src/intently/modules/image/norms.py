"""Norms of images (b, c, height, width), and the factories that blocks make them with."""

from __future__ import annotations

import math
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from intently.errors import ArgumentError, build

Norm = Callable[[int], nn.Module]
"""Makes a norm for images of so many channels: `group_norm`, `nn.BatchNorm2d`, `ChannelNorm`."""


def group_norm(groups: int | None = None, eps: float = 1e-5) -> Norm:
    """Return a factory of group norms, a value for ``norm=``.

    Without a number, 32 groups, or as many up to 32 as divide the channels evenly. The factory
    raises `ArgumentError` where ``groups`` does not divide the channels.

    Source: Wu & He 2018, "Group Normalization".

    >>> group_norm()(48).num_groups
    16
    """

    def make(channels: int) -> nn.GroupNorm:
        """Return a group norm for so many channels."""
        if groups is not None and (groups < 1 or channels % groups):
            raise build(
                ArgumentError,
                "groups",
                f"a divisor of channels={channels}",
                groups,
                fix="leave it out, and one is found",
            )
        return nn.GroupNorm(math.gcd(32, channels) if groups is None else groups, channels, eps)

    return make


UP_TO_32_GROUPS, LATENT_NORM = group_norm(), group_norm(eps=1e-6)


class ChannelNorm(nn.LayerNorm):
    """Layer norm of each pixel over its channels: (b, c, height, width) → the same.

    Source: Ba et al. 2016, "Layer Normalization".

    >>> import torch
    >>> ChannelNorm(2)(torch.tensor([3.0, 1.0]).view(1, 2, 1, 1)).flatten().tolist()[0] > 0.99
    True
    """

    def forward(
        self, input: Float[Tensor, "b c height width"]
    ) -> Float[Tensor, "b c height width"]:
        """Return each pixel with mean 0 and variance 1 over its channels, scaled and shifted."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)
