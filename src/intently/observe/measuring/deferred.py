"""The last linear layer of a model, of whose output only the rows that are read are computed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

ATEN = torch.ops.aten
SAME = (ATEN.detach.default, ATEN.alias.default)
"""Operations that change no row."""


class Deferred(Tensor):
    """x (…, c) · weightᵀ + bias, of which indexing leading axes computes nothing.

    Any other operation computes what is left of it first.

    >>> x, weight = torch.ones(4, 2), torch.eye(2)
    >>> logits = Deferred(x, weight, None)
    >>> type(logits[-1]).__name__, logits[-1].sum()
    ('Deferred', tensor(2.))
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls, x: Tensor, weight: Tensor, bias: Tensor | None) -> Deferred:
        shape = (*x.shape[:-1], len(weight))
        dtype = torch.promote_types(x.dtype, weight.dtype)
        return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=x.device)

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._given = x, weight, bias

    def whole(self) -> Tensor:
        """The tensor, computed."""
        return F.linear(*self._given)

    def _with(self, x: Tensor) -> Deferred:
        return Deferred(x, *self._given[1:])

    def numpy(self, *, force: bool = False) -> Any:
        """The tensor as an array."""
        return self.whole().numpy(force=force)

    def tolist(self) -> Any:
        """The tensor as nested lists."""
        return self.whole().tolist()

    def __array__(self, dtype: Any = None) -> Any:
        return self.whole().__array__(dtype)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return repr(self.whole())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = _rows(func, args, kwargs)
        if found is not None:
            return found
        args, kwargs = tree_map_only(Deferred, Deferred.whole, (args, kwargs))
        return func(*args, **kwargs)


def _rows(func: Any, args: Any, kwargs: Any) -> Deferred | None:
    """The rows that an operation chooses; None for any other operation."""
    one, *rest = args
    if not isinstance(one, Deferred):
        return None
    x = one._given[0]
    if func in SAME:
        return one._with(x)
    if func in (ATEN.select.int, ATEN.slice.Tensor, ATEN.index_select.default):
        axis = rest[0] if rest else 0
        if axis % one.ndim < one.ndim - 1:
            return one._with(func(x, axis % one.ndim, *rest[1:], **kwargs))
    if func is ATEN.index.Tensor and _leading(rest[0], one.ndim):
        return one._with(func(x, rest[0]))
    return None


def _leading(indices: Any, ndim: int) -> bool:
    """Whether indices leave the last axis whole and at its place."""
    boolean = (torch.bool, torch.uint8)
    used = sum(1 if x is None or x.dtype not in boolean else x.ndim for x in indices)
    return used < ndim


def last_linear(
    model: nn.Module, run: Callable[[], Any], edited: Collection[nn.Module]
) -> nn.Linear | None:
    """The linear layer that a run calls last and once, behind all ``edited`` modules, if any."""
    ran: list[nn.Module] = []
    hooks = [x.register_forward_pre_hook(lambda m, given: ran.append(m)) for x in model.modules()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    last = ran[-1] if ran else None
    inside = any(part is last for module in edited for part in module.modules())
    if not isinstance(last, nn.Linear) or type(last).forward is not nn.Linear.forward:
        return None
    return None if inside or ran.count(last) > 1 else last


@contextmanager
def deferring(last: nn.Linear) -> Iterator[None]:
    """Let a layer return its output `Deferred` while the block runs."""
    own = vars(last).get("forward")
    last.forward = lambda input: Deferred(input, last.weight, last.bias)
    try:
        yield
    finally:
        del last.forward
        if own is not None:
            last.forward = own
