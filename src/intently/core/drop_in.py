"""PyTorch's ``scaled_dot_product_attention``, name by name, on `attention`.

Code that calls ``torch.nn.functional.scaled_dot_product_attention`` may call this instead: the same
arguments mean the same thing, and what PyTorch refuses raises an error here, too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from intently.core.attention import attention
from intently.core.kernels.operands import in_autocast, of_causal_bias
from intently.core.masks import Mask, allowed, causal
from intently.core.masks.geometry import lengths_may_change
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import check_floats, hidden, plain
from intently.foundation.checks import check_kind

LISTS = "lists, arrays and integers go to it.attention"


def scaled_dot_product_attention(
    query: Float[Tensor, "*lead t d"],
    key: Float[Tensor, "*lead_k s d"],
    value: Float[Tensor, "*lead_v s e"],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*lead_y t e"]:
    """Return the attention of query (…, t, d) to key (…, s, d), applied to value (…, s, e).

    ``attn_mask`` broadcasts to (…, t, s): boolean, True means attend, or floating-point, added to
    the scores. ``is_causal`` is top-left, query i sees the keys 0 … i, unlike `causal`; with a
    mask both hold. ``dropout_p`` in [0, 1] always acts. ``scale`` is 1/√d unless given. Leading
    axes broadcast, and with ``enable_gqa`` the heads (axis −3) of query may be a multiple of those
    of key and of value.

    Raises `ArgumentError` for shapes that do not fit and `KindError` for dtypes that do not. Three
    things are better than in PyTorch: NaN and ∞ in keys and values that no query may see change
    nothing, different lengths of key and value always raise an error, and a mask beside
    ``is_causal`` is accepted for every shape.

    Source: PyTorch 2.13, ``torch.nn.functional.scaled_dot_product_attention``.

    >>> import torch
    >>> x = torch.eye(2)
    >>> scaled_dot_product_attention(x, x, 2 * x, torch.tensor([[True, False], [True, True]]))
    tensor([[2.0000, 0.0000],
            [0.6605, 1.3395]])
    """
    tensors = (query, key, value)
    flat = False
    for name, x in zip(("query", "key", "value"), tensors):
        check_floats(x, name, "a floating-point tensor (…, steps, width)", LISTS)
        if not plain(x):
            raise hidden(x, name)
    if all(x.ndim > 1 for x in tensors):  # else `attend` reports the error
        if enable_gqa:
            _check_groups(query, key, value)
            flat = max(x.ndim for x in tensors) == 3
            query = query[None] if query.ndim == 3 else query
            key, value = _grouped_alike(query.shape[-3], key, value)
        elif not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
            _check_lead(query, key, value)
    mask: Mask | None = None
    bias: Tensor | None = None
    if attn_mask is not None:
        if type(attn_mask).__name__ == "CausalBias":
            mask = of_causal_bias(attn_mask, query.shape[-2], key.shape[-2])
        elif _check_mask(attn_mask, query):
            mask = allowed(attn_mask)
        else:
            bias = attn_mask
    if is_causal:
        square = not lengths_may_change() and query.shape[-2] == key.shape[-2]
        left = causal() if square else causal(offset=0)
        mask = left if mask is None else left & mask
    every = dropout_p == 1
    scale, rate = None if scale is None else float(scale), 0.0 if every else dropout_p
    y = attention(query, key, value, mask=mask, bias=bias, scale=scale, dropout=rate)
    y = F.dropout(y, 1.0) if every else y
    return y[0] if flat else y


def _check_groups(query: Tensor, key: Tensor, value: Tensor) -> None:
    h = query.shape[-3] if query.ndim > 2 else 0
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 3:
            expected = "heads at axis −3, shape (…, heads, steps, width)"
            fix = "leave out enable_gqa for tensors without heads"
            raise build(ArgumentError, name, expected, shape_of(x), fix=fix)
        if not x.shape[-3] or h % x.shape[-3]:
            expected = f"a number of heads that divides those of query, h={h}"
            raise build(ArgumentError, name, expected, shape_of(x))


def _grouped_alike(h: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with the same number of heads, as `attend` groups them, or one of values."""
    if value.shape[-3] in (1, key.shape[-3]):
        return key, value
    return key.repeat_interleave(h // key.shape[-3], -3), value.repeat_interleave(
        h // value.shape[-3], -3
    )


def _check_lead(query: Tensor, key: Tensor, value: Tensor) -> None:
    lead = query.shape[:-2]
    for name, x in (("key", key), ("value", value)):
        try:
            lead = torch.broadcast_shapes(lead, x.shape[:-2])
        except RuntimeError:
            expected = f"leading axes that broadcast with {tuple(lead)}"
            fix = "if query heads share key heads, pass enable_gqa=True"
            raise build(ArgumentError, name, expected, shape_of(x), fix=fix) from None


def _check_mask(mask: Any, query: Tensor) -> bool:
    """Return whether a mask is boolean; raise if it is neither that nor numbers to add."""
    check_kind(mask, Tensor, "attn_mask", "a tensor (…, t, s)")
    fits = [torch.bool, torch.float32, query.dtype]
    if in_autocast(query.device):
        fits += [torch.float16, torch.bfloat16]
    if mask.dtype not in fits:
        expected = f"dtype bool, float32 or that of query, {query.dtype}"
        raise build(KindError, "attn_mask", expected, f"dtype {mask.dtype}")
    return mask.dtype is torch.bool
