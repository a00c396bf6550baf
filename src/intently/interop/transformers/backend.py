"""`register`: our attention as an attention implementation of transformers."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from intently.attention_matrix import attend
from intently.errors import ArgumentError, KernelError, build, shape_of
from intently.interop.transformers.rules import RuleTensor, make_mask
from intently.masks import Mask, allowed, causal


def register(name: str = "intently") -> None:
    """Make ``model.set_attn_implementation(name)`` and ``attn_implementation=name`` work.

    Serves every transformers model that uses the attention interface: padding, causal and sliding
    windows, packed sequences and chunks as masks that are never materialised; softcap, sinks,
    shared key/value heads, position biases, caches, ``generate`` and gradients. It registers both
    the attention function and its mask function; without a mask function, transformers passes no
    mask, not even padding. Repeated calls are harmless.

    Differences from "eager": a query that may attend to nothing (padding on the left) gives exactly
    zero, whereas "eager" gives the mean of all values; ``output_attentions=True`` gives the weights
    without dropout. Where texts are padded on the left, ``labels=`` lets the loss read the last
    padded query, which predicts the first token, so loss and gradients differ from "eager": set
    the label of the first token to −100 too. Under ``torch.compile`` masks are
    dense.

    Raises `KernelError` for a release of transformers that is too old to report the positions of a
    mask's queries.

    >>> register()
    """
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

    if "q_offset" not in signature(masking_utils.sdpa_mask).parameters:
        raise build(
            KernelError,
            "transformers",
            "a release that tells mask functions the q_offset",
            f"transformers {transformers.__version__}",
            fix="pip install --upgrade transformers",
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, make_mask)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return y (b, t, h, e) of query (b, h, t, d), key (b, g, s, d), value (b, g, s, e).

    Also return the weights (b, h, t, s) if ``output_attentions`` is set, else None. The mask is
    a `RuleTensor`, a boolean tensor (True means attend) or one to be added. Without a mask queries
    see the keys before them where the module is causal and t > 1, counted from the first key, as in
    transformers. Raises `KernelError` for a paged cache and `ArgumentError` for a mask of a
    different shape.
    """
    if others.get("cache") is not None:
        raise build(
            KernelError,
            "cache",
            "keys and values that lie in one piece",
            "a paged cache",
            "continuous batching keeps them in pages",
            'run it with attn_implementation="sdpa", or generate without continuous batching',
        )
    t, s = query.shape[-2], key.shape[-2]
    rule, bias = _read(attention_mask, query, s)
    if attention_mask is None and t > 1:
        plain = getattr(module, "is_causal", True) if is_causal is None else is_causal
        rule = causal(None if t == s else 0) if plain else None
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    matrix = attend(
        query,
        key,
        mask=rule,
        bias=bias,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout,
    )
    y = matrix.matmul(value).transpose(1, 2).contiguous()
    return y, matrix.dense() if _wanted(others) else None


def _read(mask: Tensor | None, query: Tensor, s: int) -> tuple[Mask | None, Tensor | None]:
    """Convert a transformers mask, boolean or additive, to a mask and a bias."""
    if mask is None:
        return None, None
    if isinstance(mask, RuleTensor):
        return mask.rule, None
    if mask.ndim != 4:
        raise build(
            ArgumentError,
            "attention_mask",
            f"shape (b, 1 or h, t={query.shape[-2]}, s={s})",
            shape_of(mask),
            "this model passes its attention a mask that the mask function did not make",
        )
    if mask.dtype is torch.bool:
        return allowed(mask), None
    if not mask.is_floating_point():
        return allowed(mask != 0), None
    seen = mask > torch.finfo(mask.dtype).min / 2
    bias = mask.masked_fill(~seen, 0)
    plain = not mask.requires_grad and not bool(bias.any())
    return allowed(seen), None if plain else bias


def _wanted(others: dict[str, Any]) -> bool:
    """Whether the caller asked for weights; some models drop the argument before this call."""
    if others.get("output_attentions"):
        return True
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in name for name in collected)
