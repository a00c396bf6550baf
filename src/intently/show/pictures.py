"""Pictures of any type as checked arrays of numbers from 0 to 1."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from intently.errors import ArgumentError, DataError, KindError, build, shape_of

LARGEST = 1024
"""Most pixels on a side; larger pictures are thinned, as no figure is larger."""


def read(picture: Any) -> np.ndarray:
    """Return a picture (height, width, 3) from 0 to 1, of an array, a PIL image or a path.

    Arrays are (height, width), (height, width, 3), or (height, width, 4), which is laid on white,
    with integers from 0 to 255 or numbers from 0 to 1. More than 1,024 pixels a side are thinned.

    Raises ArgumentError for other shapes and numbers, DataError for a file without a picture.

    >>> read(np.full((2, 2), 255, dtype=np.uint8)).shape
    (2, 2, 3)
    """
    if isinstance(picture, str | os.PathLike):
        picture = _opened(picture)
    if hasattr(picture, "convert"):
        picture = picture.convert("RGBA" if "A" in picture.getbands() else "RGB")
    if hasattr(picture, "detach"):
        picture = picture.detach().cpu()
        picture = picture.float() if picture.is_floating_point() else picture
    try:
        values = np.asarray(picture)
    except ValueError:
        raise build(
            KindError, "picture", "an array, a PIL image or a path", "a ragged list"
        ) from None
    if values.dtype.kind not in "biuf":
        raise build(KindError, "picture", "an array, a PIL image or a path", type(picture).__name__)
    if values.ndim == 2:
        values = np.repeat(values[..., None], 3, -1)
    if values.ndim != 3 or values.shape[-1] not in (3, 4) or 0 in values.shape:
        first = values.ndim == 3 and values.shape[0] in (1, 3, 4)
        raise build(
            ArgumentError,
            "picture",
            "shape (height, width, 3)",
            shape_of(values),
            "colours come first" if first else None,
            "pass picture.permute(1, 2, 0)" if first else None,
        )
    step = -(-max(values.shape[:2]) // LARGEST)
    values = _shares(values[::step, ::step])
    if values.shape[-1] == 4:
        values = values[..., :3] * values[..., 3:] + 1 - values[..., 3:]
    return values


def _shares(values: np.ndarray) -> np.ndarray:
    integers = values.dtype.kind in "iu"
    highest = 255 if integers else 1
    shares = values.astype(np.float64) / highest
    if not (np.isfinite(shares).all() and shares.min() >= 0 and shares.max() <= 1 + 1e-6):
        raise build(
            ArgumentError,
            "picture",
            f"numbers from 0 to {highest}",
            f"numbers from {values.min():.3g} to {values.max():.3g}",
            "it is normalised as a model takes it",
            "pass the picture itself, or (x - x.min()) / (x.max() - x.min())",
        )
    return shares.clip(0, 1)


def _opened(path: str | os.PathLike[str]) -> Any:
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            return image.copy()
    except FileNotFoundError:
        raise
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise build(
            DataError, "picture", "a file that holds a picture", repr(str(path)), str(error)
        ) from None


def encoded(image: Any, **options: Any) -> bytes:
    """Return a PIL image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()
