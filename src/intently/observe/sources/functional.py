"""PyTorch's functions: `scaled_dot_product_attention` and FlexAttention, by every name they have.

FlexAttention compiled alone, ``torch.compile(flex_attention)``, is seen where it is called, under
the names of the model's files and in its modules; in larger compiled code it runs unseen, like all
of that. Its mask and its bias are functions of indices, and are written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import cache, partial, update_wrapper
from inspect import signature
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit._builtins import _find_builtin, _register_builtin

from intently.core.biases import Bias, as_bias
from intently.core.masks import Mask, allowed, causal
from intently.observe.watching.call import AttentionSpec, Call, as_multiplied, itself
from intently.observe.watching.scope import Function, Target, told

MOST = 100
"""Entries of a dict or list at most that are searched."""
MODULES_OWN = frozenset(("_parameters", "_buffers", "_modules"))


def held(owners: Iterable[Any], compiled: bool) -> list[Target]:
    """References to the functions in modules, classes and the names of files.

    Those are references to the function itself, partials of it, and dicts and lists of these; a
    file's own are replaced together with the function. FlexAttention may be ``compiled``.
    """
    original = _unwrapped(F.scaled_dot_product_attention)
    found: list[Target] = []
    containers: dict[int, Any] = {}
    for owner in owners:
        names = owner if isinstance(owner, dict) else vars(owner)
        holders = (partial,) if names is owner else HOLDERS
        owner = owner if isinstance(owner, type) else names
        for name, x in list(names.items()):
            if type(x) in (dict, list):
                if 0 < len(x) <= MOST and name not in MODULES_OWN:
                    containers[id(x)] = x
            elif type(x) in holders and _unwrapped(x) is original:
                found.append(Target(owner, name, _wrap_held))
            elif compiled and owner is names and type(x) is FunctionType and _compiles_flex(x):
                found.append(Target(owner, name, _wrap_flex))
    inside = ((c, c if isinstance(c, dict) else dict(enumerate(c))) for c in containers.values())
    some = [(c, name, x) for c, items in inside for name, x in list(items.items())]
    mine = [x for x in some if type(x[2]) in HOLDERS and _unwrapped(x[2]) is original]
    return found + [Target(container, name, _wrap_held) for container, name, _ in mine]


def _unwrapped(x: Any) -> Any:
    x = x.func if type(x) is partial else x
    x = x.__func__ if type(x) is staticmethod else x
    return x.original if type(x) is Seen else x


def _wrap_held(x: Any) -> Any:
    """Wrap the function itself, a static method, or a partial."""
    seen = _wrap(_unwrapped(x))
    return partial(seen, *x.args, **x.keywords) if type(x) is partial else seen


@cache
def _wrap(original: Function) -> Function:
    seen = Seen(original)
    known_to_scripts(seen, original)
    return seen


class Seen:
    """The function, whose calls are handed to whoever watches.

    Copied or pickled with a model that holds it, it is the function itself again.
    """

    def __init__(self, original: Function) -> None:
        update_wrapper(self, original)
        self.original, self._told = original, told(original, "functional", _call)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """See `torch.nn.functional.scaled_dot_product_attention`."""
        return self._told(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.original,)


HOLDERS = (Seen, staticmethod, partial, type(F.scaled_dot_product_attention))


def _call(
    y: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    q, k, v = map(as_multiplied, (query, key, value))
    mask = None if attn_mask is None else as_multiplied(attn_mask)
    how = how_of(q, k, mask, dropout_p, is_causal, scale)
    return Call(q, k, v, y, how, "functional", put=itself)


def how_of(
    q: Tensor, k: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: float | None
) -> AttentionSpec:
    """The arguments of `attend` that stand for those of the function."""
    rule = bias = None
    if is_causal:  # counted from the first key
        rule = causal() if q.shape[-2] == k.shape[-2] else causal(offset=0)
    if mask is not None and mask.dtype is torch.bool:
        rule = allowed(mask) if rule is None else rule & allowed(mask)
    elif mask is not None:
        bias = as_bias(mask)
    return AttentionSpec(mask=rule, bias=bias, scale=scale, dropout=dropout)


def known_to_scripts(replacement: Function, original: Function) -> None:
    """Let `torch.jit.script` take a replacement, which has to live forever, for the original."""
    known = _find_builtin(original)
    if known is not None:
        _register_builtin(replacement, known)


# --- FlexAttention --------------------------------------------------------------------------------


def _compiles_flex(x: Any) -> bool:
    """Whether a function is FlexAttention alone, compiled, and maybe watched by others already."""
    inner = getattr(getattr(x, "original", x), "_torchdynamo_orig_callable", None)
    return getattr(inner, "__name__", "") == "flex_attention"


@cache
def _wrap_flex(original: Function) -> Function:
    order = signature(original)

    def read(result: Any, *args: Any, **kwargs: Any) -> Call | str:
        given = order.bind(*args, **kwargs).arguments
        q, k, v = (given[name] for name in ("query", "key", "value"))
        block = given.get("block_mask")
        rule = None if block is None else block_mask(block, q, k)
        y, *rest = result if isinstance(result, tuple) else (result,)
        call = _flex_call(q, k, v, given.get("score_mod"), rule, given.get("scale"), y)
        if isinstance(call, Call) and not rest:
            call.put = itself
        return call

    seen = told(original, "flex", read)
    seen.original = original  # type: ignore[attr-defined]
    return seen


def operator_call(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block: Any, scale: Any, *rest: Any, y: Tensor
) -> Call | str:
    """The call of FlexAttention's operator whose output is ``y``; its block mask is a tuple."""
    counts = next(x for x in block if isinstance(x, Tensor))
    return _flex_call(q, k, v, score_mod, _written_out(block[-1], counts, q, k), scale, y)


_masks: WeakKeyDictionary[Any, Mask] = WeakKeyDictionary()


def block_mask(mask: Any, q: Tensor, k: Tensor) -> Mask:
    """A mask of FlexAttention, written out once for all layers."""
    if mask not in _masks:
        _masks[mask] = _written_out(mask.mask_mod, mask.kv_num_blocks, q, k)
    return _masks[mask]


def _written_out(rule: Any, counts: Tensor, q: Tensor, k: Tensor) -> Mask:
    from torch.nn.attention.flex_attention import create_mask

    b, h = counts.shape[:2]
    return allowed(create_mask(rule, b, h, q.shape[-2], k.shape[-2], q.device))


def _flex_call(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask: Mask | None, scale: Any, y: Tensor
) -> Call | str:
    shape = (*q.shape[:-1], k.shape[-2])
    bias = None if score_mod is None else _added(score_mod, shape, q.device)
    if isinstance(bias, str):
        return bias
    return Call(q, k, v, y, AttentionSpec(mask=mask, bias=bias, scale=scale), "flex")


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


TARGETS = [
    Target(F, "scaled_dot_product_attention", _wrap, everywhere=True),
    Target("torch.nn.attention.flex_attention", "flex_attention", _wrap_flex, everywhere=True),
]
