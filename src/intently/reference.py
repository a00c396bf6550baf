"""The formula in NumPy and float64, on one screen: the oracle of all tests.

Integers and lists are welcome. Shapes: q (…, h, t, d), k (…, g, s, d), v (…, g, s, e).
Source: Vaswani et al. 2017, section 3.2.1, equation 1; each score names its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Score: TypeAlias = Callable[[Array, Array], Array]


def dot(q: Array, k: Array) -> Array:
    """Return q·k, (…, t, s). Source: Vaswani et al. 2017, equation 1."""
    return q @ np.swapaxes(k, -1, -2)


def logits(
    q: ArrayLike,
    k: ArrayLike,
    *,
    score: Score = dot,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    softcap: float | None = None,
) -> Array:
    """Logits z (…, h, t, s): softcap(scale · score(q, k)) + bias, −∞ where masked.

    ``scale`` is 1/√d for `dot` and 1 for other scores unless given; ``mask`` is a boolean array,
    True means attend.

    >>> logits([[2, 0]], [[1, 0], [0, 1]], scale=1, mask=[True, False])
    array([[  2., -inf]])
    """
    q, k = _array(q), _per_query_head(k, q)
    usual = 1 / np.sqrt(max(1, q.shape[-1])) if score is dot else 1
    z = score(q, k) * _array(usual if scale is None else scale)
    if softcap is not None:
        z = softcap * np.tanh(z / softcap)
    if bias is not None:
        z = z + _array(bias)
    return z if mask is None else np.where(np.asarray(mask), z, -np.inf)


def weights(q: ArrayLike, k: ArrayLike, *, sinks: ArrayLike | None = None, **options: Any) -> Array:
    """Weights (…, h, t, s): exp z / (Σ exp z + exp sink), z = logits(q, k, …).

    A row without keys is zero.

    >>> weights([[1, 0]], [[1, 0], [0, 1]], scale=1).round(4)
    array([[0.7311, 0.2689]])
    """
    z = logits(q, k, **options)
    sink = _per_row(sinks, z)
    top = np.maximum(z.max(-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0)
    total = np.exp(z - top).sum(-1, keepdims=True) + np.exp(sink - top)
    return np.exp(z - top) / np.where(total == 0, 1, total)


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, **options: Any) -> Array:
    """Y (…, h, t, e) = weights(q, k, …) @ v.

    >>> attention([[0, 0]], [[1, 2], [3, 4]], [[2], [4]])
    array([[3.]])
    """
    return weights(q, k, **options) @ _per_query_head(v, q)


def lse(q: ArrayLike, k: ArrayLike, *, sinks: ArrayLike | None = None, **options: Any) -> Array:
    """log(Σ exp z + exp sink) of each query, (…, h, t); −∞ where nothing may be attended.

    >>> lse([[0]], [[1], [2]]).round(4)
    array([0.6931])
    """
    z = logits(q, k, **options)
    return np.logaddexp.reduce(np.concatenate([z, _per_row(sinks, z)], -1), -1)


def general(weight: ArrayLike) -> Score:
    """Return the score qᵀ W k, W (…, d, d_k). Source: Luong et al. 2015, section 3.1.

    >>> logits([[1, 2]], [[1, 1]], score=general([[1, 0], [0, 10]]))
    array([[21.]])
    """
    return lambda q, k: dot(q @ _array(weight), k)


def cosine(q: Array, k: Array) -> Array:
    """Return q·k / (|q| |k|), 0 for zero vectors. Source: Graves et al. 2014, section 3.3.1.

    >>> logits([[3, 4]], [[0, 2], [0, 0]], score=cosine)
    array([[0.8, 0. ]])
    """
    lengths = np.linalg.norm(q, axis=-1)[..., :, None] * np.linalg.norm(k, axis=-1)[..., None, :]
    return dot(q, k) / np.where(lengths == 0, 1, lengths)


def additive(
    query_weight: ArrayLike, key_weight: ArrayLike, energy: ArrayLike, bias: ArrayLike = (0,)
) -> Score:
    """Return the score vᵀ tanh(W q + U k + bias): W (…, a, d), U (…, a, d_k), v and bias (…, a).

    Source: Bahdanau et al. 2015, appendix A.1.2.

    >>> logits([[0, 0]], [[0], [9]], score=additive([[1, 1]], [[1]], [2])).round(4)
    array([[0., 2.]])
    """
    w, u = (np.swapaxes(_array(x), -1, -2) for x in (query_weight, key_weight))
    v, b = (_array(x)[..., None, None, :] for x in (energy, bias))

    def score(q: Array, k: Array) -> Array:
        return (v * np.tanh((q @ w)[..., :, None, :] + (k @ u)[..., None, :, :] + b)).sum(-1)

    return score


def _array(x: ArrayLike) -> Array:
    return np.asarray(x, dtype=np.float64)


def _per_row(sinks: ArrayLike | None, z: Array) -> Array:
    """Return the sink of each row, (…, h, t, 1), of sinks () or (h,)."""
    each = -np.inf if sinks is None else _array(sinks)[..., None, None]
    return np.broadcast_to(each, (*z.shape[:-1], 1))


def _per_query_head(x: ArrayLike, q: ArrayLike) -> Array:
    """Keys or values (…, g, s, d) repeated to the heads of q (…, h, t, d)."""
    x, q = _array(x), _array(q)
    h, g = q.shape[-3] if q.ndim >= 4 else 1, x.shape[-3] if x.ndim >= 3 else 1
    return np.repeat(x, h // g, -3) if 1 < g < h else x
