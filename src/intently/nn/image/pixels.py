"""Images (b, c, height, width): as sequences of pixels, row after row, and back; their norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.nn.checks import check_dtype


def as_pixels(image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t c"]:
    """Return the pixels (b, height · width, c) of an image, row after row."""
    return image.flatten(2).transpose(-2, -1)


def as_image(
    pixels: Float[Tensor, "b t k"], like: Float[Tensor, "b c height width"]
) -> Float[Tensor, "b k height width"]:
    """Return pixels as an image of the height and width of ``like``."""
    return pixels.transpose(-2, -1).unflatten(-1, like.shape[2:])


def check_image(x: Any, channels: int, weight: Tensor) -> None:
    """Raise unless x is an image (b, c=channels, height, width) of the dtype of the weights."""
    fix = "scale bytes first: x.float() / 255"
    check_floats(x, "x", "a floating-point image (b, c, height, width)", fix=fix)
    if x.ndim != 4 or x.shape[1] != channels:
        last = x.ndim == 4 and x.shape[-1] == channels
        cause, fix = "the channels stand last", "move them with x.movedim(-1, -3)"
        expected = f"shape (b, c={channels}, height, width), or (c, height, width)"
        hints = (cause, fix) if last else (None, None)
        raise build(ArgumentError, "x", expected, shape_of(x), *hints)
    check_dtype(x, "x", weight)


Norm = Callable[[int], nn.Module]
"""Makes a norm for images of so many channels: `group_norm`, `nn.BatchNorm2d`, `ChannelNorm`."""


def group_norm(groups: int | None = None, eps: float = 1e-5) -> Norm:
    """Return a factory of group norms, a value for ``norm=``. Without a number, 32 groups, or as
    many up to 32 as divide the channels evenly. The factory raises `ArgumentError` where ``groups``
    does not divide the channels.

    Source: Wu & He 2018, "Group Normalization".

    >>> group_norm()(48).num_groups
    16
    """

    def make(channels: int) -> nn.GroupNorm:
        """Return a group norm for this number of channels."""
        if groups is not None and (groups < 1 or channels % groups):
            raise build(
                ArgumentError,
                "groups",
                f"a divisor of channels={channels}",
                groups,
                fix="leave it out to choose one",
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
