"""Images as sequences of pixels, row after row, and back."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.modules.checks import check_dtype


def as_pixels(image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t c"]:
    """Return the pixels (b, height · width, c) of an image, row after row."""
    return image.flatten(2).mT


def as_image(
    pixels: Float[Tensor, "b t k"], like: Float[Tensor, "b c height width"]
) -> Float[Tensor, "b k height width"]:
    """Return pixels as an image of the height and width of ``like``."""
    return pixels.mT.unflatten(-1, like.shape[2:])


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
