"""PyTorch's own attention that does not call `scaled_dot_product_attention`.

`torch._native_multi_head_attention` and `torch._transformer_encoder_layer_fwd` are the operators of
the fast paths in evaluation; `F.multi_head_attention_forward` writes the formula out if it is asked
for weights. None of them exposes q, k and v: they are computed from the input and the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.core.biases import as_bias
from intently.core.masks import Mask, allowed, padding
from intently.core.matrix import LazyMatrix
from intently.observe.watching.call import (
    After,
    AttentionSpec,
    Call,
    Projected,
    Put,
    as_multiplied,
    itself,
    operand,
)
from intently.observe.watching.scope import Function, Target, current, running, told


def _wrapper(read: Callable[..., Call]) -> Callable[[Function], Function]:
    return lambda original: told(original, "native", read, _block)


def _block(*args: Any, **kwargs: Any) -> nn.Module | None:
    """The running attention, or that of the running layer."""
    block = getattr(running(), "self_attn", running())
    return block if isinstance(block, nn.Module) else None


def _attention_call(
    result: tuple[Tensor, Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    averaged: bool = True,
    kind: int | None = None,
) -> Call:
    def finish(mixed: Tensor, rows: Tensor) -> Tensor:
        return F.linear(mixed, out_weight, out_bias)

    def put(y: Tensor, matrix: LazyMatrix) -> tuple[Tensor, Tensor | None]:
        return _with_weights(result, averaged, y, matrix)

    inputs = _padded(query), _padded(key), _padded(value)
    rule = _rule(mask, kind, real := _real(query))
    return _fused(result[0], inputs, weight, bias, heads, rule, real, finish, put)


def _layer_call(
    result: Tensor,
    src: Tensor,
    embed_dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Call:
    norms, wide, narrow = (rest[:2], rest[2:4]), rest[4:6], rest[6:8]
    mask, kind = (*rest[8:], None, None)[:2]
    x = before = _padded(src)

    def normed(x: Tensor, which: int) -> Tensor:
        weight, bias = norms[which]
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    def forward(x: Tensor) -> Tensor:
        x = F.linear(x, *wide)
        return F.linear(F.gelu(x) if use_gelu else F.relu(x), *narrow)

    def finish(mixed: Tensor, rows: Tensor) -> Tensor:
        x = before.index_select(-2, rows) + F.linear(mixed, out_weight, out_bias)
        if norm_first:
            return x + forward(normed(x, 1))
        x = normed(x, 0)
        return normed(x + forward(x), 1)

    x = normed(before, 0) if norm_first else before
    rule = _rule(mask, kind, real := _real(src))
    return _fused(result, (x, x, x), weight, bias, heads, rule, real, finish, itself)


def _fused(
    y: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    heads: int,
    rule: Mask | None,
    real: Tensor | None,
    finish: Callable[[Tensor, Tensor], Tensor],
    put: Put,
) -> Call:
    """The call of an operator; ``real`` are the steps (b, t) of a nested batch that hold a token.

    ``finish`` makes its output of heads side by side, ``put`` its result of another output.
    """

    def finished(mixed: Tensor, rows: Tensor) -> Tensor:
        y = finish(_merged(mixed), rows)
        return y if real is None else y * real.index_select(-1, rows)[..., None]

    def replaced(y: Tensor, matrix: LazyMatrix) -> Any:
        if real is not None:
            y = torch.nested.as_nested_tensor([row[some] for row, some in zip(y, real)])
        return put(y, matrix)

    parts = zip(inputs, weight.chunk(3), bias.chunk(3))
    q, k, v = (Projected(x, w, b, heads) for x, w, b in parts)
    after = After(_padded(y), finished)
    return Call(q, k, v, after, AttentionSpec(mask=rule), "native", put=replaced)


def _with_weights(
    result: tuple[Tensor, Tensor | None], averaged: bool, y: Tensor, matrix: LazyMatrix
) -> tuple[Tensor, Tensor | None]:
    """What a function returns that returns weights (b, h, t, s) or their mean, if asked for."""
    if result[1] is None or not result[1].numel():
        return y, result[1]
    weights = matrix.dense()
    return y, (weights.mean(-3) if averaged else weights).reshape(result[1].shape)


def _rule(mask: Tensor | None, kind: int | None, real: Tensor | None) -> Mask | None:
    """A mask of the operators, in which nonzero means hidden; kind 1 is padding (b, s).

    Only tokens of a nested batch attend and are attended.
    """
    if real is not None:
        return padding(real.sum(-1)) & allowed(real[:, None, :, None])
    if mask is None:
        return None
    if kind == 2 and torch.equal(mask, mask[:, :1].expand_as(mask)):
        mask = mask[:, :1]  # PyTorch repeats masks for all heads
    return allowed(mask[:, None, None] == 0 if kind == 1 else mask == 0)


def _real(x: Tensor) -> Tensor | None:
    """The steps (b, t) of a nested batch that hold a token; None for a plain batch."""
    if not x.is_nested:
        return None
    lengths = torch.tensor([len(row) for row in x.unbind()], device=x.device)
    return torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]


def _padded(x: Tensor) -> Tensor:
    return x.to_padded_tensor(0.0) if x.is_nested else x


@cache
def _wrap_formula(original: Function) -> Function:
    order = signature(original)

    def given(*args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = order.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    seen = told(original, "native", lambda y, *args, **kw: _formula_call(given(*args, **kw), y))

    def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
        # without weights, it calls F.scaled_dot_product_attention
        if not current() or not given(*args, **kwargs)["need_weights"]:
            return original(*args, **kwargs)
        return seen(*args, **kwargs)

    return multi_head_attention_forward


def _formula_call(given: dict[str, Any], result: tuple[Tensor, Tensor | None]) -> Call:
    """The call that was written out, from the arguments of `multi_head_attention_forward`."""
    h, bias = given["num_heads"], given["in_proj_bias"]
    if given["use_separate_proj_weight"]:
        weights = [given[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = (None, None, None) if bias is None else as_multiplied(bias).chunk(3)
    inputs = [_batch_first(given[name]) for name in ("query", "key", "value")]
    q, k, v = (
        Projected(as_multiplied(x), as_multiplied(w), b, h)
        for x, w, b in zip(inputs, weights, biases)
    )
    added = _added(given["attn_mask"], given["key_padding_mask"], h, q.x)
    keys, values = _longer(k, given, "k"), _longer(v, given, "v")
    more = keys.shape[-2] - inputs[1].shape[-2]
    if more and given["static_k"] is None and added is not None:
        added = F.pad(added, (0, more), value=0)
    out_weight, out_bias = as_multiplied(given["out_proj_weight"]), given["out_proj_bias"]
    out_bias = None if out_bias is None else as_multiplied(out_bias)

    def finish(mixed: Tensor, rows: Tensor) -> Tensor:
        return F.linear(_merged(mixed), out_weight, out_bias)

    def back(grad: Tensor) -> Tensor:
        return (_batch_first(grad) @ out_weight).unflatten(-1, (h, -1)).transpose(-3, -2)

    def put(y: Tensor, matrix: LazyMatrix) -> tuple[Tensor, Tensor | None]:
        return _with_weights(result, given["average_attn_weights"], _batch_first(y), matrix)

    hidden = added if added is not None and added.dtype is torch.bool else None
    how = AttentionSpec(
        mask=None if hidden is None else allowed(~hidden),
        bias=None if added is None or hidden is not None else as_bias(added),
        dropout=given["dropout_p"] if given["training"] else 0.0,
    )
    after, y = After(_batch_first(result[0]), finish), result[0]
    return Call(q, keys, values, after, how, "native", handed=y, back=back, put=put)


def _longer(x: Projected, given: dict[str, Any], name: str) -> Projected | Tensor:
    """Keys or values, with the ones that the module appends."""
    static, last = given[f"static_{name}"], given[f"bias_{name}"]
    if static is None and last is None and not given["add_zero_attn"]:
        return x
    found = operand(x) if static is None else static.unflatten(0, (-1, x.heads))
    if last is not None:
        row = last.to(found.dtype).reshape(x.heads, 1, -1).expand(*found.shape[:-2], 1, -1)
        found = torch.cat([found, row], -2)
    return F.pad(found, (0, 0, 0, 1)) if given["add_zero_attn"] else found


def _added(mask: Tensor | None, keys: Tensor | None, heads: int, x: Tensor) -> Tensor | None:
    """Both masks of PyTorch (True means hidden, floats are added) as one tensor."""
    if mask is not None and mask.ndim == 3 and x.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    keys = keys[:, None, None] if keys is not None and keys.ndim == 2 else keys
    if mask is None or keys is None:
        return keys if mask is None else mask
    if mask.dtype is keys.dtype is torch.bool:
        return mask | keys
    return _as_floats(mask, x.dtype) + _as_floats(keys, x.dtype)


def _as_floats(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    if hidden.dtype is not torch.bool:
        return hidden
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, -torch.inf)


def _batch_first(x: Tensor) -> Tensor:
    return x.transpose(0, 1) if x.ndim == 3 else x


def _merged(mixed: Tensor) -> Tensor:
    """Heads (…, h, n, e) side by side, (…, n, h · e)."""
    return mixed.transpose(-3, -2).flatten(-2)


TARGETS = [
    Target(torch, "_native_multi_head_attention", _wrapper(_attention_call)),
    Target(torch, "_transformer_encoder_layer_fwd", _wrapper(_layer_call)),
    Target(F, "multi_head_attention_forward", _wrap_formula, everywhere=True),
]
