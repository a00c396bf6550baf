"""The check of small calls by the plain formula in NumPy, where most of the time were overheads.

NumPy needs a tenth of PyTorch's time for an operation on a few numbers. A call that this check
cannot confirm is checked by `checking`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intently.core.masks import Geometry, is_plain_causal
from intently.core.scores import DOT
from intently.observe.watching.call import AttentionSpec, Call
from intently.observe.watching.checking import RELATIVE, Verdict, sample

SMALL, OF_ONE_ROW = 2**17, 2**13
"""Multiplications of a product at most: with more, NumPy would start threads of its own."""

WHOLE = 2**23
"""Multiplications of all products at most: with more, PyTorch is faster."""

_PRECISE = (torch.float32, torch.float64)


def confirmed(call: Call, q: Tensor, k: Tensor, how: AttentionSpec, turn: int) -> Verdict | None:
    """True if weights that ``how`` makes of q and k as they are kept give what came out.

    This asks the same of the same rows as `checking.check` in float32 and float64; None if the
    answer is not yes, or if the call is large, in half precision or of a different kind.
    """
    if not _is_plain(call, q, k, how):
        return None
    rows = sample(q.shape[-2], turn)
    at = rows.numpy()
    with np.errstate(all="ignore"):
        weights = _weights(q, k, how, rows)
        right = isinstance(call.real, Tensor) and _are(weights, call.real, at)
        right = right or (call.y is not None and _give(weights, call, at))
    return Verdict(True, rows=len(at)) if right else None


def _is_plain(call: Call, q: Tensor, k: Tensor, how: AttentionSpec) -> bool:
    v, y, real = call.v, call.y, call.real
    given: list[Any] = [x for x in (q, k, v, y, real) if x is not None]
    if any(type(x) not in (Tensor, nn.Parameter) or x.is_neg() for x in given):
        return False
    assert isinstance(v, Tensor) and (y is None or isinstance(y, Tensor))
    if q.dtype not in _PRECISE or any(x.dtype is not q.dtype or not x.is_cpu for x in given):
        return False
    if 0 in (*q.shape, *k.shape, *v.shape):
        return False
    special = how.sinks, how.dropout or call.how.dropout or None, call.columns
    if any(x is not None for x in special) or isinstance(how.scale, Tensor):
        return False
    if how.score is not None and how.score is not DOT:
        return False
    if y is not None and (v.shape[:-1] != k.shape[:-1] or y.shape != (*q.shape[:-1], v.shape[-1])):
        return False
    grouped = q.ndim == k.ndim == 4 and q.shape[0] == k.shape[0] and k.shape[1]
    if q.shape[:-2] != k.shape[:-2] and not (grouped and q.shape[1] % k.shape[1] == 0):
        return False
    one = min(2, q.shape[-2]) * k.shape[-2] * max(q.shape[-1], v.shape[-1])
    most = OF_ONE_ROW if q.shape[-2] == 1 else SMALL
    return one <= most and one * math.prod(q.shape[:-2]) <= WHOLE


def _weights(q: Tensor, k: Tensor, how: AttentionSpec, rows: Tensor) -> np.ndarray:
    """Weights (…, g, n, rows, s) of n query heads to each key head."""
    keys, at, t, s = _numbers(k), rows.numpy(), q.shape[-2], k.shape[-2]
    scale = 1 / math.sqrt(q.shape[-1]) if how.scale is None else how.scale
    z = _grouped(_numbers(q)[..., at, :] * scale, keys) @ keys[..., None, :, :].swapaxes(-1, -2)
    z = z if how.softcap is None else how.softcap * np.tanh(z / how.softcap)
    causal = how.mask is not None and is_plain_causal(how.mask)
    if how.bias is not None or not (how.mask is None or causal):
        g, cols = Geometry(tuple(q.shape[:-2]), t, s, q.device), torch.arange(s)
        shape = *g.lead, len(at), s
        if how.bias is not None:
            added = _numbers(how.bias.tile(g, rows, cols, q.dtype))
            z = z + np.broadcast_to(added, shape).reshape(z.shape)
        if how.mask is not None:
            allowed = how.mask.allow(g, rows, cols).numpy()
            z = np.where(np.broadcast_to(allowed, shape).reshape(z.shape), z, -np.inf)
    elif causal:
        z = np.where(np.arange(s) > at[:, None] + (s - t), -np.inf, z)
    w = np.exp(z - z.max(-1, keepdims=True))  # NaN where a row sees nothing
    w /= w.sum(-1, keepdims=True)
    return w


def _are(weights: np.ndarray, real: Tensor, at: np.ndarray) -> bool:
    """Whether weights are those that ran."""
    ran = _numbers(real)[..., at, :]
    if ran.size != weights.size or ran.shape[-1] != weights.shape[-1]:
        return False
    margin = RELATIVE * weights.max(-1, keepdims=True)
    return bool((np.abs(weights - ran.reshape(weights.shape)) <= margin).all())


def _give(weights: np.ndarray, call: Call, at: np.ndarray) -> bool:
    """Whether weights give the output, and those at half the scale another one."""
    assert isinstance(call.v, Tensor) and isinstance(call.y, Tensor)
    v = _numbers(call.v)
    real = _grouped(_numbers(call.y)[..., at, :], v)
    largest = RELATIVE * np.abs(real).max((-2, -1))
    values = v[..., None, :, :]
    if not (np.abs(weights @ values - real).max((-2, -1)) <= largest).all():
        return False
    head = (0,) * (weights.ndim - 2)
    root = np.sqrt(weights[head])
    other = (root / root.sum(-1, keepdims=True)) @ values[head]
    return bool(np.abs(other - real[head]).max() > largest[head])


def _numbers(x: Tensor) -> Any:
    return x.detach().numpy()


def _grouped(x: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """X (…, h, n, m) as (…, g, h/g, n, m), each key head with its query heads."""
    return x.reshape(*keys.shape[:-2], -1, *x.shape[-2:])
