"""The formula in NumPy and float64, on one screen: the oracle of all tests.

Integers and lists are welcome. Shapes: q (…, h, t, d), k (…, g, s, d), v (…, g, s, e).
Source: Vaswani et al. 2017, section 3.2.1, equation 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def weights(
    q: ArrayLike,
    k: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
) -> Array:
    """Weights (…, h, t, s): exp z / (Σ exp z + exp sink) with z = softcap(scale · q kᵀ) + bias.

    ``mask`` is a boolean array, True means attend; a row without keys is zero.

    >>> weights([[1, 0]], [[1, 0], [0, 1]], scale=1).round(4)
    array([[0.7311, 0.2689]])
    """
    q, k = _array(q), _array(k)
    k = _per_query_head(k, q)
    z = q @ np.swapaxes(k, -1, -2) * (1 / np.sqrt(max(1, q.shape[-1])) if scale is None else scale)
    if softcap is not None:
        z = softcap * np.tanh(z / softcap)
    if bias is not None:
        z = z + _array(bias)
    if mask is not None:
        z = np.where(np.asarray(mask), z, -np.inf)
    sink = np.full(z.shape[:-1], -np.inf)
    if sinks is not None:
        sink = np.broadcast_to(_array(sinks)[..., None], sink.shape)
    top = np.maximum(z.max(-1, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0)[..., None]
    e = np.exp(z - top)
    total = e.sum(-1, keepdims=True) + np.exp(sink[..., None] - top)
    return e / np.where(total == 0, 1, total)


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, **options: Any) -> Array:
    """Y (…, h, t, e) = weights(q, k, …) @ v.

    >>> attention([[0, 0]], [[1, 2], [3, 4]], [[2], [4]])
    array([[3.]])
    """
    return weights(q, k, **options) @ _per_query_head(_array(v), _array(q))


def _array(x: ArrayLike) -> Array:
    return np.asarray(x, dtype=np.float64)


def _per_query_head(k: Array, q: Array) -> Array:
    h, g = q.shape[-3] if q.ndim >= 4 else 1, k.shape[-3] if k.ndim >= 3 else 1
    return np.repeat(k, h // g, -3) if 1 < g < h else k
