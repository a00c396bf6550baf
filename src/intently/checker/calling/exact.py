"""Run somebody's code in float64 throughout, whatever it casts to a shorter type inside.

Casts to shorter floats, and new tensors of shorter floats, become float64; where an operation is
given float64 and shorter floats, the shorter are widened. So a norm in float32, a table of cosines
or a module held in a closure no longer blurs what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SHORT = frozenset((torch.float32, torch.float16, torch.bfloat16))
HALF = frozenset((torch.float16, torch.bfloat16))


class Exact(TorchDispatchMode):
    """Makes float64 of shorter floats; ``used`` says whether there was anything to widen."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.used = False
        self.halved = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not hasattr(func, "_schema"):  # of higher order, such as flex attention
            return func(*args, **kwargs)
        backward = torch._C._current_graph_task_id() >= 0  # gradients have the types of tensors
        if kwargs.get("dtype") in SHORT and not backward:
            self.used = True
            self.halved |= kwargs["dtype"] in HALF
            kwargs = {**kwargs, "dtype": torch.double}
        wide, short = _kinds(args, False, False)
        if kwargs:
            wide, short = _kinds(tuple(kwargs.values()), wide, short)
        if wide and short and not func._schema.is_mutable:
            self.used = True
            args, kwargs = _widened(args), _widened(kwargs)
        return func(*args, **kwargs)


class Straight(TorchDispatchMode):
    """Lets gradients pass the zeros of a ReLU: they tell what numbers are made of."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.threshold_backward.default:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def exactly() -> Iterator[Exact]:
    """Run in float64 throughout, new tensors included."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.double)
    try:
        with Exact() as mode:
            yield mode
    finally:
        torch.set_default_dtype(default)


def _kinds(given: Sequence[Any], wide: bool, short: bool) -> tuple[bool, bool]:
    """Whether there are float64 tensors, and shorter ones."""
    for x in given:
        if isinstance(x, Tensor):
            wide, short = wide or x.dtype == torch.double, short or x.dtype in SHORT
        elif isinstance(x, (list, tuple)):
            wide, short = _kinds(x, wide, short)
    return wide, short


def _widened(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.double() if x.dtype in SHORT else x
    if isinstance(x, (list, tuple)):
        return type(x)(_widened(y) for y in x)
    if isinstance(x, dict):
        return {n: _widened(y) for n, y in x.items()}
    return x
