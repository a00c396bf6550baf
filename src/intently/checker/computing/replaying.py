"""Run a traced call again, with other values in some places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from intently.checker.computing.tracing import Operation, tensors_in


class Call(NamedTuple):
    """One call of an operation."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Reached(BaseException):
    """Ends a run in which all that was wanted has been seen; no ``except Exception`` stops it."""


class Replay(TorchDispatchMode):
    """Runs the same operations again: replaces what some make, and keeps what enters others.

    Operations are known by their number in the run that was traced.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        replaced: Mapping[Operation, Tensor],
        kept: Mapping[Operation, int],
        seen: Collection[Operation] = (),
    ) -> None:
        super().__init__()
        self._replaced, self._kept, self._seen = replaced, kept, seen
        self._ran: Counter[str] = Counter()
        self.entries: dict[Operation, Tensor] = {}
        self.calls: dict[Operation, Call] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not hasattr(func, "_schema"):
            return func(*args, **(kwargs or {}))
        name = func._schema.name
        self._ran[name] += 1
        this = name, self._ran[name]
        if this in self._kept:
            entering = list(tensors_in((args, kwargs or {})))
            self.entries[this] = entering[self._kept[this]].detach().clone()
        if this in self._seen:
            own = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, args)
            self.calls[this] = Call(func, own, kwargs or {})
        wanted = len(self._kept) + len(self._seen)
        if wanted and len(self.entries) + len(self.calls) == wanted:
            raise Reached
        out = func(*args, **(kwargs or {}))
        if this in self._replaced:
            first = next(iter(tensors_in(out)))
            first.copy_(self._replaced[this].reshape(first.shape))
        return out
