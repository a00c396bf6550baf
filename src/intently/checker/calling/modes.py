"""Run somebody's code otherwise: in float64 throughout, past a ReLU, where its views raise."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

HALF = frozenset((torch.float16, torch.bfloat16))
SHORT = HALF | {torch.float32}


class Eager(TorchDispatchMode):
    """A mode that never meets compiled code, and need not import the compiler (a second)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Exact(Eager):
    """Makes float64 of shorter floats; ``used`` says whether there was anything to widen.

    So a norm in float32, a table of cosines or a module in a closure blurs nothing.
    """

    supports_higher_order_operators = True
    used = halved = False

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
        given = [x if isinstance(x, (list, tuple)) else (x,) for x in (*args, *kwargs.values())]
        kinds = {x.dtype for xs in given for x in xs if isinstance(x, Tensor)}
        if torch.double in kinds and kinds & SHORT and not func._schema.is_mutable:
            self.used = True
            args, kwargs = tree.tree_map_only(Tensor, _widened, (args, kwargs))
        return func(*args, **kwargs)


class Straight(Eager):
    """Lets gradients pass the zeros of a ReLU: they tell what numbers are made of."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        through = func is torch.ops.aten.threshold_backward.default
        return args[0] if through else func(*args, **(kwargs or {}))


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


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.dtype in SHORT else x


class Reshaped(TorchFunctionMode):
    """Reshapes where a view raises; ``places`` are the lines in which it does."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            if func is not Tensor.view:
                raise
            self.places.append(_place())
            return Tensor.reshape(*args, **(kwargs or {}))


class Detaching(TorchFunctionMode):
    """Hears whether the subject's code detaches a tensor."""

    heard = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        home = str(sys._getframe(1).f_globals.get("__name__", ""))
        self.heard |= func is Tensor.detach and not home.startswith("intently.")
        return func(*args, **(kwargs or {}))


def _place() -> str:
    """The innermost line that is the subject's own, as ``file:line: code``."""
    for frame, line in walk_stack(sys._getframe(2)):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in ("torch", "intently"):
            file = frame.f_code.co_filename
            return f"{Path(file).name}:{line}: `{linecache.getline(file, line).strip()}`"
    return "its code"
