"""The weights of fused calls, computed in float64 from their arguments."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import flex_attention


def fused_weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    causal: bool | None = False,
    scale: float | None = None,
) -> Tensor:
    """The weights (…, t, s) in float64; rows that see nothing are zero."""
    q, k = q.detach().double(), k.detach().double()
    if q.dim() > 2 and q.shape[-3] != k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    z = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None and mask.dtype == torch.bool:
        z = z.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        z = z + mask.detach().double()
    if causal:
        past = torch.ones(z.shape[-2:], dtype=torch.bool).tril()
        z = z.masked_fill(~past, -torch.inf)
    return z.softmax(-1).nan_to_num(0.0)


def arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of an operator by name, defaults included."""
    given = {a.name: a.default_value for a in func._schema.arguments}
    return given | dict(zip(given, args)) | kwargs


def operands(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What `fused_weights` takes, of a call of a fused operator."""
    given = arguments(func, args, kwargs)
    return {
        "q": given["query"],
        "k": given["key"],
        "mask": given.get("attn_mask", given.get("attn_bias")),
        "causal": given.get("is_causal"),
        "scale": given.get("scale"),
    }


def native_weights(given: dict[str, Any]) -> Tensor:
    """The weights of PyTorch's fused layers, whose queries and keys follow from their input.

    Nested inputs have no rows for padding: those are NaN.
    """
    x: Any = given.get("query", given.get("src"))
    y: Any = given.get("key", x)
    if given.get("norm_first"):
        norm = given["norm_weight_1"], given["norm_bias_1"], given["eps"]
        y = x = F.layer_norm(x, x.shape[-1:], *norm)
    heads: Any = given.get("num_heads", given.get("num_head"))
    weight, bias = given["qkv_weight"].chunk(3), given["qkv_bias"].chunk(3)
    q, k = (F.linear(z, weight[i], bias[i]) for i, z in enumerate((x, y)))
    if q.is_nested:
        return _nested(q, k, heads)
    q, k = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in (q, k))
    mask = given["mask"]
    if mask is not None and given["mask_type"] == 1:
        mask = mask[:, None, None]
    if mask is not None and mask.dtype == torch.bool:
        mask = ~mask  # True means masked in these layers
    return fused_weights(q, k, mask)


def _nested(q: Tensor, k: Tensor, heads: int) -> Tensor:
    def split(z: Tensor) -> Tensor:
        return z.unflatten(-1, (heads, -1)).transpose(-3, -2)

    weights = [fused_weights(split(x), split(y)) for x, y in zip(q.unbind(), k.unbind())]
    t = max(len(z) for z in q.unbind())
    found = torch.full((len(weights), heads, t, t), torch.nan, dtype=torch.float64)
    for row, part in zip(found, weights):
        row[..., : part.shape[-2], :] = 0.0
        row[..., : part.shape[-2], : part.shape[-1]] = part
    return found


@contextmanager
def flex_replaced(by: Any) -> Iterator[None]:
    """Replace PyTorch's FlexAttention wherever a module names it: no mode can look inside."""
    original = flex_attention.flex_attention
    named = [m for m in list(sys.modules.values()) if vars(m).get("flex_attention") is original]
    replacement = functools.partial(by, original)
    try:
        for module in named:
            vars(module)["flex_attention"] = replacement
        yield
    finally:
        for module in named:
            vars(module)["flex_attention"] = original
