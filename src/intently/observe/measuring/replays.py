"""What modules computed in one run, handed out in others; rows of a last layer that are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

PLAIN = (type(None), bool, int, float, str)
"""Types of values beside tensors that a replay hands out."""


@dataclass
class Ran:
    """One call of a module: numbers of calls before and within it, what it took and returned."""

    module: nn.Module
    given: list[Any]
    end: int = 0
    seconds: float = 0.0
    made: list[Any] | None = None
    tree: Any = None


@dataclass
class _Way:
    """Where a run is: the call that comes next, and how far what was kept still holds."""

    until: int
    following: bool = True
    next: int = 0
    differs: bool = False


class Replays:
    """Keeps the calls of a model's modules around and beside those that are edited.

    A kept call is returned if it was over before the first edited module ran, and if modules
    were called in the same order with equal tensors so far; else the module runs. The last of all
    calls may be that of a linear layer behind all edited modules: it becomes `Deferred`.
    """

    def __init__(self, model: nn.Module, edited: Collection[nn.Module]) -> None:
        self._edited = set(edited)
        self._modules = list(_watched(model, self._edited))
        self._ran: list[Ran] = []
        self._kept = _Kept()
        self._way: _Way | None = None
        self.defers = False
        """Whether the last linear layer computes only the rows that are read."""

    def keep(self, run: Callable[[], Any]) -> float:
        """Run, keep the calls, and return the seconds that it took."""

        def ran(module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
            call = Ran(module, self._kept.all(tree_flatten((args, kwargs))[0]))
            self._ran.append(call)
            start = time.perf_counter()
            made = forward(*args, **kwargs)
            call.seconds = time.perf_counter() - start
            leaves, call.tree = tree_flatten(made)
            call.made, call.end = self._kept.results(leaves), len(self._ran)
            return made

        start = time.perf_counter()
        with self._instead(ran):
            run()
        seconds = time.perf_counter() - start
        self._kept.forget()
        for call in reversed(self._ran):
            if call.module in self._edited:
                break
            call.made = None  # nothing that is edited comes after it
        return seconds

    def before(self, edited: Collection[nn.Module]) -> int:
        """How many calls precede the first of the edited modules; 0 unless that runs once."""
        order = [call.module for call in self._ran]
        first = next((n for n, module in enumerate(order) if module in edited), 0)
        return first if order and order.count(order[first]) == 1 else 0

    def saves(self, until: int) -> float:
        """Seconds of the calls that are over before call number ``until``."""
        found, n = 0.0, 0
        while n < until:
            call = self._ran[n]
            over = call.end <= until and call.made is not None
            found += call.seconds if over else 0.0
            n = call.end if over else n + 1
        return found

    def can_defer(self) -> bool:
        """Whether the last call is that of a linear layer that is not edited and runs once."""
        if not self._ran:
            return False
        last = self._ran[-1].module
        plain = type(last).forward is nn.Linear.forward and last not in self._edited
        return plain and sum(call.module is last for call in self._ran) == 1

    @contextmanager
    def handed_out(self, until: int) -> Iterator[_Way]:
        """Hand out calls that precede call number ``until``, while the block runs.

        What is yielded says whether any later call ``differs`` from what was kept.
        """
        way = _Way(until)

        def ran(module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
            known = way.following and way.next < len(self._ran)
            call = self._ran[way.next] if known else None
            if call is None or call.module is not module:
                way.following, way.differs = False, True
                return forward(*args, **kwargs)
            if call.end <= until and call.made is not None:
                if _same(call.given, tree_flatten((args, kwargs))[0]):
                    way.next = call.end
                    made = [x.clone() if isinstance(x, Tensor) else x for x in call.made]
                    return tree_unflatten(made, call.tree)
                way.following, way.differs = False, True
                return forward(*args, **kwargs)
            way.next += 1
            if self.defers and call is self._ran[-1] and not torch.is_grad_enabled():
                if not way.differs:
                    way.differs = not _same(call.given, tree_flatten((args, kwargs))[0])
                return Deferred(args[0], module.weight, module.bias)  # type: ignore[arg-type]
            made = forward(*args, **kwargs)
            if call.made is not None and not way.differs:
                way.differs = not _same(call.made, tree_flatten(made)[0])
            return made

        with self._instead(ran):
            yield way

    @contextmanager
    def _instead(self, ran: Callable[..., Any]) -> Iterator[None]:
        """Let ``ran(module, forward, args, kwargs)`` run the modules while the block runs."""
        before: list[tuple[nn.Module, Any]] = []
        try:
            for module in self._modules:
                before.append((module, module.__dict__.get("forward")))
                module.forward = _forward(module, ran)
            yield
        finally:
            for module, own in before:
                if own is None:
                    del module.forward
                else:
                    module.forward = own


def _forward(module: nn.Module, ran: Callable[..., Any]) -> Callable[..., Any]:
    forward = module.forward

    @wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ran(module, forward, args, kwargs)

    return call


def _watched(model: nn.Module, edited: set[nn.Module]) -> Iterator[nn.Module]:
    """Edited modules, those around them, and those beside any of these."""
    inside: dict[nn.Module, bool] = {}

    def holds(module: nn.Module) -> bool:
        if module not in inside:
            inside[module] = False  # a module may hold itself
            found = [holds(child) for child in module.children()]
            inside[module] = module in edited or any(found)
        return inside[module]

    holds(model)
    queue, seen = [model], {model}
    while queue:
        module = queue.pop()
        container = isinstance(module, (nn.ModuleList, nn.ModuleDict))
        if not container:
            yield module
        if module not in edited and (inside[module] or container):
            for child in module.children():
                if child not in seen:
                    seen.add(child)
                    queue.append(child)


@dataclass
class _Kept:
    """Copies of tensors, one of each as long as nobody changes it in place."""

    copies: dict[int, tuple[Tensor, int, Tensor]] = field(default_factory=dict)

    def all(self, leaves: list[Any]) -> list[Any]:
        """The leaves with tensors copied; parameters and what is no tensor as they are."""
        return [self._copy(x) if _is_plain(x) else x for x in leaves]

    def results(self, leaves: list[Any]) -> list[Any] | None:
        """The leaves with tensors copied; None if they cannot be handed out again."""
        fit = all(_is_plain(x) or isinstance(x, PLAIN) for x in leaves)
        return self.all(leaves) if fit else None

    def forget(self) -> None:
        """Let go of the tensors that were copied."""
        self.copies.clear()

    def _copy(self, x: Tensor) -> Tensor:
        version = -1 if x.is_inference() else x._version
        known = self.copies.get(id(x))
        if known is not None and known[0] is x and known[1] == version and version >= 0:
            return known[2]
        copy = x.detach().clone()
        self.copies[id(x)] = x, version, copy
        return copy


def _is_plain(x: Any) -> bool:
    return type(x) is Tensor and x.layout is torch.strided and not x.is_nested


def _same(kept: list[Any], given: list[Any]) -> bool:
    """Whether all tensors and plain values are equal, NaN included; objects say nothing."""
    if len(kept) != len(given):
        return False
    return all(_equal(x, y) for x, y in zip(kept, given))


def _equal(x: Any, y: Any) -> bool:
    if _is_plain(x) and _is_plain(y):
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        return torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all())
    if isinstance(x, PLAIN) or isinstance(y, PLAIN):
        return type(x) is type(y) and x == y
    return type(x) is type(y)


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
