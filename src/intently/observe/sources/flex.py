"""FlexAttention: the function, called by name, and its operator, called in other ways.

Compiled alone, ``torch.compile(flex_attention)``, it is seen where it is called, under the names of
the model's files and in its modules; in larger compiled code it runs unseen, like all of that. The
mask and the bias are functions of indices, and are written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import signature
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from intently.core.biases import Bias, as_bias
from intently.core.masks import Mask, allowed
from intently.observe.watching.call import AttentionSpec, Call, itself
from intently.observe.watching.scope import Function, Target, told


def held(holding: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[Target]:
    """What torch.compile has made of the function, where owners hold it under a name."""
    return [
        Target(owner, name, _wrap)
        for owner, names in holding
        for name, x in list(names.items())
        if x.__class__ is FunctionType and x.__dict__ and _compiles_flex(x)
    ]


def _compiles_flex(x: FunctionType) -> bool:
    """Whether a function is FlexAttention alone, compiled, and maybe watched by others already."""
    inner = getattr(getattr(x, "original", x), "_torchdynamo_orig_callable", None)
    return getattr(inner, "__name__", "") == "flex_attention"


@cache
def _wrap(original: Function) -> Function:
    order = signature(original)

    def read(result: Any, *args: Any, **kwargs: Any) -> Call | str:
        given = order.bind(*args, **kwargs).arguments
        q, k, v = (given[name] for name in ("query", "key", "value"))
        block = given.get("block_mask")
        rule = None if block is None else block_mask(block, q, k)
        y, *rest = result if isinstance(result, tuple) else (result,)
        call = _call(q, k, v, given.get("score_mod"), rule, given.get("scale"), y)
        if isinstance(call, Call) and not rest:
            call.put = itself
        return call

    seen = told(original, "flex", read)
    seen.original = original  # type: ignore[attr-defined]
    return seen


def operator_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any,
    block: Any,
    scale: Any,
    *rest: Any,
    y: Tensor,
) -> Call | str:
    """The call of the operator whose output is ``y``; its block mask is a tuple."""
    counts, rule = next(x for x in block if isinstance(x, Tensor)), block[-1]
    dense = _dense(rule, tuple(counts.shape[:2]), query, key)
    return _call(query, key, value, score_mod, allowed(dense), scale, y)


_masks: WeakKeyDictionary[Any, Mask] = WeakKeyDictionary()


def block_mask(mask: Any, q: Tensor, k: Tensor) -> Mask:
    """A mask of FlexAttention, written out once for all layers."""
    if mask not in _masks:
        lead = tuple(mask.kv_num_blocks.shape[:2])
        _masks[mask] = allowed(_dense(mask.mask_mod, lead, q, k))
    return _masks[mask]


def _dense(rule: Any, lead: tuple[int, ...], q: Tensor, k: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import create_mask

    return create_mask(rule, lead[0], lead[1], q.shape[-2], k.shape[-2], q.device)


def _call(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask: Mask | None, scale: Any, y: Tensor
) -> Call | str:
    added = None if score_mod is None else _added(score_mod, (*q.shape[:-1], k.shape[-2]), q.device)
    if isinstance(added, str):
        return added
    return Call(q, k, v, y, AttentionSpec(mask=mask, bias=added, scale=scale), "flex")


def _added(
    score_mod: Callable[..., Tensor], shape: tuple[int, ...], device: torch.device
) -> Bias | str | None:
    """The bias (b, h, t, s) that a score_mod adds, or a text if it also does something else."""
    modified = score_mod
    for axis in (3, 2, 1, 0):
        modified = torch.vmap(modified, (0, *(0 if n == axis else None for n in range(4))))
    places = [torch.arange(n, device=device) for n in shape]
    bias, *others = (
        modified(torch.full(shape, z, device=device), *places) - z for z in (0.0, 1.0, -7.0)
    )
    if not all(bool(((x == bias) | ((x - bias).abs() <= 1e-5)).all()) for x in others):
        return "FlexAttention: its score_mod does more than add to the scores"
    return as_bias(bias) if bool(bias.any()) else None


TARGETS = [Target("torch.nn.attention.flex_attention", "flex_attention", _wrap, everywhere=True)]
