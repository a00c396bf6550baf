"""`torch.nn.functional.scaled_dot_product_attention`, and every name that is bound to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from functools import cache, partial, update_wrapper
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit._builtins import _find_builtin, _register_builtin

from intently.core.biases import as_bias
from intently.core.masks import allowed, causal
from intently.observe.watching.call import AttentionSpec, Call, as_multiplied, itself
from intently.observe.watching.scope import Function, Target, told

MOST = 100
"""Entries of a dict or list at most that are searched."""
CONTAINERS = frozenset((dict, list))
MODULES_OWN = frozenset(("_parameters", "_buffers", "_modules"))


def held(
    modules: Iterable[tuple[Any, Mapping[str, Any]]],
    kinds: Iterable[tuple[Any, Mapping[str, Any]]],
    files: Iterable[tuple[Any, Mapping[str, Any]]],
) -> list[Target]:
    """References to the function under names in modules, in their classes, partials in files."""
    original = _unwrapped(F.scaled_dot_product_attention)
    containers: dict[int, Any] = {}
    found: list[Target] = []
    for holding, wrap in ((modules, _wrap), (kinds, _wrap_static), (files, None)):
        for owner, names in holding:
            for name, x in list(names.items()):
                if type(x) in CONTAINERS:
                    if 0 < len(x) <= MOST and name not in MODULES_OWN:
                        containers[id(x)] = x
                elif x is original or type(x) in HOLDERS:
                    found += _held(owner, name, x, original, wrap)
    for container in containers.values():
        items = enumerate(container) if isinstance(container, list) else container.items()
        for name, x in list(items):
            if x is original or type(x) in HOLDERS:
                found += _held(container, name, x, original, _wrap)
    return found


def _held(owner: Any, name: Any, x: Any, original: Function, wrap: Any) -> list[Target]:
    """The target in a module, a class, a dict or a list that holds the function or a partial.

    Without ``wrap`` only partials: from-imports are replaced together with the function.
    """
    if _unwrapped(x) is not original:
        return []
    if type(x) is partial:
        return [Target(owner, name, _wrap_partial)]
    return [] if wrap is None else [Target(owner, name, wrap)]


def _unwrapped(x: Any) -> Any:
    x = x.func if type(x) is partial else x
    x = x.__func__ if type(x) is staticmethod else x
    return x.original if type(x) is Seen else x


def _wrap_partial(original: Any) -> Any:
    return partial(_wrap(_unwrapped(original)), *original.args, **original.keywords)


def _wrap_static(original: Any) -> Any:
    """Wrap a function that a class holds, which must not become a method of its instances."""
    return staticmethod(_wrap(_unwrapped(original)))


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

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """See `torch.nn.functional.scaled_dot_product_attention`."""
        given = query, key, value, attn_mask, dropout_p, is_causal
        return self._told(*given, scale=scale, enable_gqa=enable_gqa)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.original,)


HOLDERS = frozenset((Seen, staticmethod, partial))


def _call(
    y: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
) -> Call:
    q, k, v = map(as_multiplied, (q, k, v))
    mask = None if mask is None else as_multiplied(mask)
    how = how_of(q, k, mask, dropout, is_causal, scale)
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


TARGETS = [Target(F, "scaled_dot_product_attention", _wrap, everywhere=True)]
