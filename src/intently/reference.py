"""Attention in NumPy and float64, step by step: the reference for all tests.

The steps, in the order of a calculation by hand: `project` makes queries, keys and values,
`split_heads` gives each head its part; `dot` matches every query with every key, `logits` scales
and masks, `softmax` turns logits into weights, `weighted_sum` averages the values; `join_heads`
concatenates the heads. `weights`, `attention` and `multi_head` are several steps in one.

Integers and lists are accepted. Shapes: q (…, h, t, d), k (…, g, s, d), v (…, g, s, e); heads may
share keys (h a multiple of g) where there are four or more axes. Every function raises
`ArgumentError` for shapes that do not fit and `KindError` for values that are not numbers.
Source: Vaswani et al. 2017, section 3.2; each score names its own source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from intently.errors import ArgumentError, KindError, build, shape_of

Array: TypeAlias = NDArray[np.float64]
Score: TypeAlias = Callable[[Array, Array], Array]


def project(x: ArrayLike, weight: ArrayLike, bias: ArrayLike = (0,)) -> Array:
    """Return x W + bias, (…, t, n), of x (…, t, c), W (c, n) and bias (n,).

    W (h, c, n) and bias (h, n) hold a map for each head, and the result is (…, h, t, n). Papers
    write a map as here, (in, out); ``nn.Linear`` stores the transpose.

    >>> project([[1, 2]], [[1, 0, 3], [0, 1, 1]])
    array([[1., 2., 5.]])
    """
    x, w, b = _array(x, "x", 2), _array(weight, "weight", 2), _array(bias, "bias", 1)
    if x.shape[-1] != w.shape[-2] or w.ndim > 3:
        c = x.shape[-1]
        got, fix = shape_of(w), "weights of nn.Linear are (n, c): pass weight.T"
        raise build(ArgumentError, "weight", f"shape (c={c}, n), or (h, c={c}, n)", got, fix=fix)
    if b.shape[-1] not in (1, w.shape[-1]) or b.shape[:-1] not in ((), w.shape[:-2]):
        n = (*w.shape[:-2], w.shape[-1])
        raise build(ArgumentError, "bias", f"shape {n}, as wide as the weight", shape_of(b))
    return (x[..., None, :, :] if w.ndim == 3 else x) @ w + b[..., None, :]


def split_heads(x: ArrayLike, heads: int) -> Array:
    """Return (…, h, t, d) of x (…, t, h·d): head i gets the numbers i·d … (i + 1)·d of each row.

    >>> split_heads([[1, 2, 3, 4]], heads=2)
    array([[[1., 2.]],
    <BLANKLINE>
           [[3., 4.]]])
    """
    x = _array(x, "x", 2)
    if heads < 1 or x.shape[-1] % heads:
        raise build(ArgumentError, "heads", f"a divisor of the width {x.shape[-1]}", heads)
    return np.swapaxes(x.reshape(*x.shape[:-1], heads, -1), -2, -3)


def join_heads(y: ArrayLike) -> Array:
    """Return (…, t, h·e) of y (…, h, t, e): the heads of each row, concatenated.

    >>> join_heads([[[1, 2]], [[3, 4]]])
    array([[1., 2., 3., 4.]])
    """
    y = _array(y, "y", 3)
    return np.swapaxes(y, -2, -3).reshape(*y.shape[:-3], y.shape[-2], -1)


def dot(q: Array, k: Array) -> Array:
    """Return q·k, (…, t, s). Source: Vaswani et al. 2017, equation 1."""
    return q @ np.swapaxes(k, -1, -2)


def logits(
    q: ArrayLike,
    k: ArrayLike,
    *,
    score: Score = dot,
    mask: Any = None,
    bias: Any = None,
    scale: ArrayLike | None = None,
    softcap: float | None = None,
) -> Array:
    """Logits z (…, h, t, s): softcap(scale · score(q, k)) + bias, −∞ where masked.

    ``scale`` is 1/√d for `dot` and 1 for other scores unless given; ``mask`` is a boolean array,
    True means attend, or a mask such as ``it.causal()``; ``bias`` an array or ``it.alibi(h)``.

    >>> logits([[2, 0]], [[1, 0], [0, 1]], scale=1, mask=[True, False])
    array([[  2., -inf]])
    """
    q = _array(q, "q", 2)
    k = _per_query_head(_array(k, "k", 2), q, "k")
    usual = 1 / np.sqrt(max(1, q.shape[-1])) if score is dot else 1
    with np.errstate(invalid="ignore"):  # masked entries may hold ∞ and NaN
        z = _scored(score, q, k)
        z = z * _over(usual if scale is None else scale, z, "scale")
        if softcap is not None:
            z = softcap * np.tanh(z / softcap)
        if bias is not None:
            z = z + _over(bias, z, "bias")
    return z if mask is None else np.where(_mask(mask, z), z, -np.inf)


def softmax(z: ArrayLike, *, sinks: ArrayLike | None = None) -> Array:
    """Weights (…, h, t, s) of logits z: exp z / (Σ exp z + exp sink), each row by itself.

    A row of −∞ is zero. ``sinks`` () or (h,) take weight and contribute no value.

    >>> softmax([[0, 0], [0, -np.inf], [-np.inf, -np.inf]])
    array([[0.5, 0.5],
           [1. , 0. ],
           [0. , 0. ]])
    """
    z = _array(z, "z", 2)
    sink = _per_row(sinks, z)
    top = np.maximum(z.max(-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0)
    total = np.exp(z - top).sum(-1, keepdims=True) + np.exp(sink - top)
    return np.exp(z - top) / np.where(total == 0, 1, total)


def weighted_sum(weights: ArrayLike, v: ArrayLike) -> Array:
    """Return weights @ v, (…, h, t, e); a value without weight in every row is ignored.

    >>> weighted_sum([[0.5, 0.5, 0]], [[2, 0], [4, 0], [np.nan, np.inf]])
    array([[3., 0.]])
    """
    w = _array(weights, "weights", 2)
    v = _per_query_head(_array(v, "v", 2), w, "v")
    if v.shape[-2] != w.shape[-1]:
        raise build(ArgumentError, "v", f"s={w.shape[-1]} rows, one for each key", shape_of(v))
    looked_at = (w != 0).any(-2)[..., None]
    return w @ np.where(looked_at, v, 0)


def weights(q: ArrayLike, k: ArrayLike, *, sinks: ArrayLike | None = None, **options: Any) -> Array:
    """Weights (…, h, t, s): softmax of logits(q, k, …).

    >>> weights([[1, 0]], [[1, 0], [0, 1]], scale=1).round(4)
    array([[0.7311, 0.2689]])
    """
    return softmax(logits(q, k, **options), sinks=sinks)


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, **options: Any) -> Array:
    """Y (…, h, t, e): the sum of the values, weighted with weights(q, k, …).

    >>> attention([[0, 0]], [[1, 2], [3, 4]], [[2], [4]])
    array([[3.]])
    """
    return weighted_sum(weights(q, k, **options), v)


def multi_head(
    x: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    *,
    context: ArrayLike | None = None,
    **options: Any,
) -> Array:
    """Return (…, t, n) of x (…, t, c): queries, keys and values of each head, joined, times out.

    Weights q (h, c, d), k (g, c, d), v (g, c, e) and out (h·e, n); keys and values come from
    ``context`` (…, s, k) if given; ``options`` are those of `weights`.
    Source: Vaswani et al. 2017, section 3.2.2.

    >>> multi_head([[1], [3]], [[[0]], [[1]]], [[[1]], [[0]]], [[[1]], [[2]]], [[1, 0], [0, 1]])
    array([[2., 4.],
           [2., 4.]])
    """
    x = _array(x, "x", 2)
    if x.ndim == 2:
        inner = None if context is None else _array(context, "context", 2)[None]
        return multi_head(x[None], q, k, v, out, context=inner, **options)[0]
    seen = x if context is None else context
    y = attention(project(x, q), project(seen, k), project(seen, v), **options)
    return project(join_heads(y), out)


def lse(q: ArrayLike, k: ArrayLike, *, sinks: ArrayLike | None = None, **options: Any) -> Array:
    """log(Σ exp z + exp sink) of each query, (…, h, t); −∞ where no key may be attended to.

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
    return lambda q, k: dot(q @ _array(weight, "weight", 2), k)


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
    w, u = (
        np.swapaxes(_array(x, name, 2), -1, -2)
        for name, x in (("query_weight", query_weight), ("key_weight", key_weight))
    )
    v, b = (
        _array(x, name, 1)[..., None, None, :] for name, x in (("energy", energy), ("bias", bias))
    )

    def score(q: Array, k: Array) -> Array:
        return (v * np.tanh((q @ w)[..., :, None, :] + (k @ u)[..., None, :, :] + b)).sum(-1)

    return score


def _array(x: ArrayLike, name: str, axes: int = 0) -> Array:
    try:
        found = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise build(KindError, name, "an array of numbers", type(x).__name__, str(error)) from None
    if found.ndim < axes:
        raise build(ArgumentError, name, f"at least {axes} axes", shape_of(found))
    return found


def _scored(score: Score, q: Array, k: Array) -> Array:
    """Return score(q, k); raise a readable error if shapes do not fit."""
    from intently.core.scores import Score as Value

    if not callable(score) or isinstance(score, Value):
        expected = "a function (q, k) → (…, t, s): dot, cosine, general(W), additive(…)"
        fix = "scores of intently.core.scores are for tensors"
        raise build(KindError, "score", expected, type(score).__name__, fix=fix)
    try:
        return score(q, k)
    except ValueError:
        expected = f"a width that the score takes beside q (…, t, d={q.shape[-1]})"
        if score in (dot, cosine):
            expected = f"shape (…, s, d={q.shape[-1]}), as wide as q"
        raise build(ArgumentError, "k", expected, shape_of(k)) from None


def _over(value: Any, z: Array, name: str) -> Array:
    """Return a bias or a scale as an array that broadcasts to z (…, t, s)."""
    from intently.core.biases import Bias

    if isinstance(value, Bias):
        return _written(value, z)
    if np.asarray(value).dtype == np.bool_:
        raise build(KindError, name, "numbers", "booleans", fix="a boolean array is a mask: mask=")
    return _fitting(_array(value, name), z, name)


def _mask(mask: Any, z: Array) -> Any:
    """Return a boolean array that broadcasts to z (…, t, s), True means attend."""
    from intently.core.masks import Mask

    if isinstance(mask, Mask):
        return _written(mask, z)
    found = np.asarray(mask)
    if found.dtype != np.bool_:
        expected = "booleans, True means attend, or a mask such as it.causal()"
        cause = "numbers may mean the opposite in other code"
        fix = "what is added to the scores is a bias: bias=; ones and zeros: np.array(mask) == 1"
        raise build(KindError, "mask", expected, f"dtype {found.dtype}", cause, fix)
    return _fitting(found, z, "mask")


def _written(rule: Any, z: Array) -> Any:
    """Return one of our masks or biases as an array over z (…, t, s)."""
    import torch

    from intently.core.masks import Geometry, Mask

    t, s = z.shape[-2:]
    g = Geometry(z.shape[:-2], t, s, torch.device("cpu"))
    rule.check(g)
    if isinstance(rule, Mask):
        return rule.dense(g).numpy()
    return rule.tile(g, torch.arange(t), torch.arange(s), torch.float64).detach().numpy()


def _fitting(x: Any, z: Array, name: str) -> Any:
    """Return x where it broadcasts to z (…, t, s)."""
    shape, want = x.shape, z.shape
    if len(shape) <= len(want) and all(a in (1, n) for a, n in zip(shape[::-1], want[::-1])):
        return x
    by_batch = len(shape) == 3 and len(want) == 4 and shape[0] == want[0]
    raise build(
        ArgumentError,
        name,
        f"a shape that broadcasts to (…, t, s) = {want}",
        shape_of(x),
        "its first axis is b, where broadcasting looks for h" if by_batch else None,
        "use m[:, None], shape (b, 1, t, s)" if by_batch else None,
    )


def _per_row(sinks: ArrayLike | None, z: Array) -> Array:
    """Return the sink of each row, (…, h, t, 1), of sinks () or (h,)."""
    each = np.asarray(-np.inf) if sinks is None else _array(sinks, "sinks")
    h = z.shape[-3:-2] or (1,)
    if each.shape not in ((), (1,), h):
        raise build(ArgumentError, "sinks", f"shape () or (h,) = {h}", shape_of(each))
    return np.broadcast_to(each[..., None, None], (*z.shape[:-1], 1))


def _per_query_head(x: Array, q: Array, name: str) -> Array:
    """Keys or values (…, g, s, d) repeated to the heads of q (…, h, t, d)."""
    h, g = q.shape[-3] if q.ndim >= 4 else 1, x.shape[-3] if x.ndim >= 3 else 1
    if 1 < g < h and h % g == 0:
        x = np.repeat(x, h // g, -3)
    try:
        np.broadcast_shapes(q.shape[:-2], x.shape[:-2])
    except ValueError:
        expected = f"leading axes that broadcast with those of q {q.shape[:-2]}"
        cause = "heads are axis −3; with four or more axes h may be a multiple of g"
        raise build(ArgumentError, name, expected, shape_of(x), cause) from None
    return x
