"""The last linear layer of a model, of whose output only the rows that are read are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from intently.observe.watching.modules import Names

ATEN = torch.ops.aten
CHOOSES = ATEN.select.int, ATEN.slice.Tensor, ATEN.index_select.default
"""Operations that choose rows of one axis."""

ROUNDING = 64
"""Units in the last place by which scores may differ that logits of some rows alone give."""


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

    def numpy(self, *, force: bool = False) -> Any:
        return self.whole().numpy(force=force)

    def tolist(self) -> Any:
        return self.whole().tolist()

    def __array__(self, dtype: Any = None) -> Any:
        return self.whole().__array__(dtype)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return repr(self.whole())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, one = kwargs or {}, args[0]
        rows = _rows(func, one, args[1:], kwargs) if isinstance(one, Deferred) else None
        if rows is not None:
            return Deferred(rows, one._given[1], one._given[2])
        args, kwargs = tree_map_only(Deferred, Deferred.whole, (args, kwargs))
        return func(*args, **kwargs)


def _rows(func: Any, one: Deferred, rest: Any, kwargs: Any) -> Tensor | None:
    """The rows of x that an operation chooses; None for any other operation."""
    x = one._given[0]
    if func in (ATEN.detach.default, ATEN.alias.default):
        return x
    axis = rest[0] if rest else 0
    if func in CHOOSES and axis % one.ndim < one.ndim - 1:
        return func(x, axis % one.ndim, *rest[1:], **kwargs)
    if func is ATEN.index.Tensor:  # of leading axes, which leaves the last one whole
        boolean = torch.bool, torch.uint8
        used = sum(1 if i is None or i.dtype not in boolean else i.ndim for i in rest[0])
        return func(x, rest[0]) if used < one.ndim else None
    return None


def deferred(
    model: nn.Module,
    edited: Collection[str],
    scored: Callable[[], float],
    plain: float,
    within: ExitStack,
) -> float:
    """The score with only those rows of logits computed that are read, if it is the same.

    It holds ``within`` what is undone later, for models in which a linear layer runs last, once,
    and behind all ``edited`` modules.
    """
    ran: list[nn.Module] = []
    with ExitStack() as hooks:
        for module in model.modules():
            hook = module.register_forward_pre_hook(lambda module, given: ran.append(module))
            hooks.callback(hook.remove)
        scored()
    last, names = ran[-1] if ran else None, Names(model, None).modules.items()
    inside = any(last is x for module, name in names if name in edited for x in module.modules())
    if not isinstance(last, nn.Linear) or type(last).forward is not nn.Linear.forward:
        return plain
    if inside or ran.count(last) > 1:
        return plain
    own = {name: x for name, x in vars(last).items() if name == "forward"}
    trial = within.enter_context(ExitStack())
    trial.callback(vars(last).update, own)
    trial.callback(vars(last).pop, "forward")
    last.forward = lambda input: Deferred(input, last.weight, last.bias)
    try:
        found = scored()
    except Exception:
        found = math.nan
    rounding = ROUNDING * torch.finfo(torch.float32).eps * max(1.0, abs(plain))
    if abs(found - plain) <= rounding:
        return found
    trial.close()
    return plain
