"""transformers: every attention function that a model gets from the attention interface.

A model asks `AttentionInterface.get_interface` at each call which function to run. Here it gets a
wrapper that runs the same function and reports its arguments, its result and the calling module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from intently.core.biases import Bias, as_bias, relative_buckets
from intently.core.masks import Geometry, Mask, allowed, causal, window
from intently.core.matrix import LazyMatrix
from intently.observe.sources.functional import block_mask
from intently.observe.watching.call import AttentionSpec, Call, as_multiplied
from intently.observe.watching.mask_inference import simplified
from intently.observe.watching.scope import Function, Target, current, inside, told


def _wrap_mask(original: Function) -> Function:
    """Hide the compiled code that makes FlexAttention's masks: it does not attend."""

    def create_block_mask(*args: Any, **kwargs: Any) -> Any:
        if not current():
            return original(*args, **kwargs)
        with inside():
            return original(*args, **kwargs)

    return create_block_mask


def _wrap(original: Function) -> Function:
    def get_interface(self: Any, attn_implementation: str, default: Function) -> Function:
        function = original(self, attn_implementation, default)
        # our functions end in products that are seen themselves, with masks as values
        ours = str(getattr(function, "__module__", "")).startswith("intently.")
        if not current() or ours:
            return function
        return _seen(function, str(attn_implementation))

    return get_interface


def _seen(function: Function, name: str) -> Function:
    """The function, whose calls are handed to whoever watches."""

    def read(
        result: Any,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Call | str:
        """The call, or why it cannot be kept."""
        q, k, v = query, key, value
        y, weights = result
        mask = _as_added(attention_mask, weights) if name == "eager" else attention_mask
        if name.startswith("paged|") or kwargs.get("cache") is not None:
            return "continuous batching keeps keys in pages, of which a call sees only the new ones"
        if "flash" in name and kwargs.get("cu_seq_lens_q") is not None:
            return f"{name} runs sequences packed into one, told apart by cu_seq_lens"
        if q.ndim != 4:
            return f"queries of {q.ndim} axes, not (b, h, t, d)"
        if name != "flex_attention":  # which autocast leaves alone
            q, k, v = map(as_multiplied, (q, k, v))
            if name.startswith("sdpa") and isinstance(mask, Tensor):
                mask = as_multiplied(mask)
        how = _how(name, module, q, k, mask, kwargs)

        def put(y: Tensor, matrix: LazyMatrix) -> tuple[Tensor, Any]:
            return _turned(y), matrix.dense() if isinstance(weights, Tensor) else weights

        return Call(q, k, v, _turned(y), how, "transformers", handed=y, back=_turned, put=put)

    return told(function, "transformers", read, lambda module, *args, **kwargs: module)


def _turned(x: Tensor) -> Tensor:
    """Heads before steps, (b, h, t, e)."""
    return x.transpose(1, 2)


def _how(
    name: str, module: nn.Module, q: Tensor, k: Tensor, mask: Any, kwargs: dict[str, Any]
) -> AttentionSpec:
    """The arguments of `attend` that stand for those of the function called ``name``."""
    rule, bias = _mask(name, module, q, k, mask, kwargs)
    position = kwargs.get("position_bias")
    if position is not None:
        g = Geometry((*q.shape[:2],), q.shape[-2], k.shape[-2], q.device)
        how = simplified(AttentionSpec(mask=rule, bias=bias), g)
        rule, bias, added = how.mask, how.bias, _position_bias(module, position, g)
        bias = added if bias is None else bias if added is None else added + bias
    sinks = kwargs.get("s_aux", kwargs.get("sinks"))
    if sinks is not None and sinks.ndim == 4:  # (b, h, t, 1): exp z / (Σ exp z + exp sink) is
        lowered = as_bias(-sinks.detach())  # exp(z − sink) / (Σ exp(z − sink) + exp 0)
        bias, sinks = lowered if bias is None else bias + lowered, sinks.new_zeros(q.shape[1])
    return AttentionSpec(
        mask=rule,
        bias=bias,
        scale=kwargs.get("scaling"),
        softcap=kwargs.get("softcap"),
        sinks=None if sinks is None else sinks.reshape(-1),
        dropout=kwargs.get("dropout") or 0.0,
    )


def _mask(
    name: str, module: nn.Module, q: Tensor, k: Tensor, mask: Any, kwargs: dict[str, Any]
) -> tuple[Mask | None, Bias | None]:
    """The mask of a call: a boolean tensor, floats that are added, FlexAttention's, or none.

    Without a mask, all functions but the plain formula and FlexAttention are causal if the module
    is: queries count from the first key, those of flash attention from the last.
    """
    flash, t, s = "flash" in name, q.shape[-2], k.shape[-2]
    if isinstance(mask, Tensor):
        mask = mask[..., :s] if mask.ndim == 4 else mask
        if mask.is_floating_point():
            return None, as_bias(mask)
        mask = mask if mask.dtype is torch.bool else mask != 0
        rule = allowed(mask[:, None, None] if mask.ndim == 2 else mask)
    else:
        rule = None if mask is None else block_mask(mask, q, k)
    if flash or (mask is None and name not in ("eager", "flex_attention")):
        plain = kwargs.get("is_causal")
        plain = getattr(module, "is_causal", True) if plain is None else plain
        rule = _both(rule, causal(None if flash or t == s else 0)) if plain and t > 1 else rule
    width = kwargs.get("sliding_window")
    rule = _both(rule, window(width - 1, s)) if flash and width is not None else rule
    return rule, None


def _as_added(mask: Any, weights: Any) -> Any:
    """A mask of booleans as numbers if the plain formula added them, as in Grounding DINO.

    Its weights (b, h, t, s) tell: nothing is hidden then.
    """
    if not isinstance(mask, Tensor) or mask.is_floating_point() or mask.ndim != 4:
        return mask
    if not isinstance(weights, Tensor) or weights.shape[-2:] != mask.shape[-2:]:
        return mask
    hidden = (mask == 0) & (mask != 0).any(-1, keepdim=True)
    return mask.to(weights.dtype) if bool((weights * hidden > 0).any()) else mask


def _both(rule: Mask | None, other: Mask) -> Mask:
    return other if rule is None else rule & other


_position_biases = WeakTensorKeyDictionary()


def _position_bias(module: nn.Module, position: Tensor, g: Geometry) -> Bias | None:
    """T5's position bias (1, h, t, s), as buckets of distances if it equals them.

    The first layer computes it and all share it; None if it is zero.
    """
    if position in _position_biases:
        return _position_biases[position]
    found = _buckets(module, position, g)
    if found is None:
        found = as_bias(position.detach()) if bool(position.any()) else None
    _position_biases[position] = found
    return found


def _buckets(module: nn.Module, position: Tensor, g: Geometry) -> Bias | None:
    table = getattr(getattr(module, "relative_attention_bias", None), "weight", None)
    if table is None or position.shape != (1, *g.lead[1:], g.t, g.s):
        return None
    found = relative_buckets(
        table.detach(),
        bidirectional=not getattr(module, "is_decoder", False),
        max_distance=getattr(module, "relative_attention_max_distance", 128),
    )
    cols = torch.arange(g.s, device=g.device)
    for rows in torch.arange(g.t, device=g.device).split(max(1, 2**22 // max(1, g.s))):
        tile = found.tile(g._replace(lead=g.lead[1:]), rows, cols, position.dtype)
        if not torch.equal(tile, position[0].index_select(-2, rows).detach()):
            return None
    return found


TARGETS = [
    Target("transformers.modeling_utils:AttentionInterface", "get_interface", _wrap),
    Target("transformers.masking_utils", "create_block_mask", _wrap_mask),
]
