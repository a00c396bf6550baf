"""Keras layers with drawn weights, and how their numbers are compared."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from keras import ops

B, T, S, C, K, H, D = 2, 5, 6, 16, 7, 4, 3


LENGTHS = torch.tensor([3, 6])


SEEN = np.arange(S) < LENGTHS.numpy()[:, None]


TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


TORCH = keras.backend.backend() == "torch"


DTYPES = list(TOLERANCE) if TORCH else ["float32"]


def drawn(layer: Any) -> Any:
    """The layer with every weight drawn, biases too."""
    draw = np.random.default_rng(0)
    layer.set_weights([draw.normal(size=w.shape, scale=0.3) for w in layer.weights])
    return layer


def built(layer: Any, *shapes: tuple[int | None, ...]) -> Any:
    """The layer, built for inputs of these shapes, with every weight drawn."""
    layer.build(*shapes)
    return drawn(layer)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype("float32")


def array(x: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def close(found: Any, expected: Any, dtype: str = "float32") -> None:
    limit = TOLERANCE[dtype]
    np.testing.assert_allclose(found, expected, atol=limit, rtol=limit)
