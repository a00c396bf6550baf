"""`torch.nn.functional.scaled_dot_product_attention`, and every name that is bound to it."""

from __future__ import annotations

from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.biases import as_bias
from intently.masks import allowed, causal
from intently.matrix.lazy import in_autocast
from intently.observe.call import Call, How
from intently.observe.patches import Function, Target
from intently.observe.sources.telling import tell
from intently.observe.watch import current, inside

FUNCTIONS = (FunctionType, BuiltinFunctionType, staticmethod, partial)
CONTAINERS = (dict, list)


def targets(model: nn.Module | None) -> list[Target]:
    """The function, its from-imports, and what the modules of the model hold of it."""
    name = "scaled_dot_product_attention"
    original = _unwrapped(F.scaled_dot_product_attention)
    found = [Target(F, name, _wrap, everywhere=True)]
    modules = [] if model is None else list(model.modules())
    kinds = {kind for module in modules for kind in type(module).__mro__}
    for owners, wrap in ((modules, _wrap), (kinds, _wrap_static)):
        for owner in owners:
            found += _held(owner, original, wrap)
    containers = {id(x): x for owner in (*modules, *kinds) for x in vars(owner).values()
                  if type(x) in CONTAINERS and x}  # fmt: skip
    for container in containers.values():
        found += _held(container, original, _wrap)
    return found


def _held(owner: Any, original: Function, wrap: Any) -> list[Target]:
    """What a module, a class, a dict or a list holds of the function, in a partial or not."""
    if isinstance(owner, list):
        items: list[tuple[Any, Any]] = list(enumerate(owner))
    else:
        items = list((owner if isinstance(owner, dict) else vars(owner)).items())
    return [
        Target(owner, name, _wrap_partial if type(x) is partial else wrap)
        for name, x in items
        if isinstance(x, FUNCTIONS) and _unwrapped(x) is original
    ]


def _unwrapped(x: Any) -> Any:
    x = x.func if type(x) is partial else x
    x = x.__func__ if isinstance(x, staticmethod) else x
    return getattr(x, "__wrapped__", x) if isinstance(x, FunctionType) else x


def _wrap_partial(original: Any) -> Any:
    return partial(_wrap(_unwrapped(original)), *original.args, **original.keywords)


def _wrap_static(original: Any) -> Any:
    """A function that a class holds must not become a method of its instances."""
    return staticmethod(_wrap(_unwrapped(original)))


def _wrap(original: Function) -> Function:
    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        recorders = () if torch.compiler.is_compiling() else current()
        given = query, key, value, attn_mask, dropout_p, is_causal
        if not recorders:
            return original(*given, scale=scale, enable_gqa=enable_gqa)
        with inside():
            y = original(*given, scale=scale, enable_gqa=enable_gqa)

        def call() -> Call:
            q, k, v = (_in_autocast(x) for x in (query, key, value))
            how = _how(q, k, attn_mask, dropout_p, is_causal, scale)
            return Call(q, k, v, y, how, "functional")

        tell(recorders, "functional", None, call)
        return y

    scaled_dot_product_attention.__wrapped__ = original  # type: ignore[attr-defined]
    return scaled_dot_product_attention


def _in_autocast(x: Tensor) -> Tensor:
    """What autocast hands on to the function, where it is on."""
    if x.dtype is not torch.float32 or not in_autocast(x.device):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _how(
    q: Tensor, k: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: float | None
) -> How:
    rule = bias = None
    if is_causal:  # counted from the first key
        rule = causal() if q.shape[-2] == k.shape[-2] else causal(offset=0)
    if mask is not None and mask.dtype is torch.bool:
        rule = allowed(mask) if rule is None else rule & allowed(mask)
    elif mask is not None:
        bias = as_bias(mask)
    return How(mask=rule, bias=bias, scale=scale, dropout=dropout)
