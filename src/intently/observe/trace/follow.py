"""The dispatch mode that records operations, and looks at every contraction for a site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from intently.observe.trace.axes import PRODUCTS
from intently.observe.trace.graph import CONSTANT, RANDOM, Node, View, kind
from intently.observe.trace.sites import SOFTMAX, Contraction, Site, found
from intently.observe.trace.sums import divided

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
BACKENDS = ("CPU", "CUDA", "MPS", "XPU")
RECENT = 6
"""Operations whose arguments are kept although they are as large as their results."""


WAITING = 64
"""Products at most that wait for a division."""


class Trace(TorchDispatchMode):
    """Records what operations do to tensors, and tells the sites that it finds."""

    supports_higher_order_operators = True

    def __init__(self, tell: Callable[[Site], None], fixed: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self._tell, self._fixed = tell, fixed
        self._memory: dict[int, tuple[StorageWeakRef, Node]] = {}
        self._recent: list[Node] = []
        self._waiting: dict[Node, Contraction] = {}
        self.failed: list[str] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code compiled, so that its output stays the same."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if _composite(func):
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        try:
            given: Any = [self._viewed(x) for x in args]
        except Exception as error:
            self.failed.append(f"{func}: {error}")
            given = None
        result = func(*args, **kwargs)
        if given is not None:
            try:
                self._record(func, args, given, kwargs, result)
            except Exception as error:
                import traceback; traceback.print_exc()
                self.failed.append(f"{func}: {type(error).__name__}: {error}")
        return result

    def _record(self, func: Any, args: Any, given: Any, kwargs: Any, result: Any) -> None:
        name, changes = kind(func)
        outs = result if isinstance(result, (tuple, list)) else (result,)
        outs = args[:1] if changes and "out" not in kwargs else outs
        for x in outs:
            storage = _storage(x)
            if storage is None:
                continue
            alive, before = self._memory.get(storage._cdata, (None, None))
            known = before is not None and alive is not None and not alive.expired()
            if known and not changes:
                continue  # a view
            data = not name.startswith((*CONSTANT, *RANDOM)) and any(
                v.node.data for v in _views([*given, *map(self._viewed, kwargs.values())])
            )
            node = Node(name, x, data, func, given, kwargs, before if known else None)
            self._memory[storage._cdata] = StorageWeakRef(storage), node
            if data:
                self._keep(node, args, x)
                self._look(node, args, x)

    def _keep(self, node: Node, args: Any, out: Tensor) -> None:
        """Keep the arguments that a site may need: factors, and what is added or multiplied."""
        large = node.name in PRODUCTS
        if not large and not node.entrywise:
            return
        for i, x in enumerate(args):
            if isinstance(x, Tensor):
                node.keep(i, x)
                large |= x.numel() >= out.numel()
        if node.name in SOFTMAX:
            node.result = out
        if large and node.name not in PRODUCTS:
            self._recent.append(node)
            if len(self._recent) > RECENT:
                old = self._recent.pop(0)
                size = torch.Size(old.size).numel()
                old.tensors = {i: p for i, p in old.tensors.items() if p[0].numel() < size}

    def _look(self, node: Node, args: Any, out: Tensor) -> None:
        if node.name in ("div", "mul") and self._waiting and out.is_floating_point():
            for site in divided(node, out, self._waiting):
                self._tell(site)
            return
        contraction = None
        if node.name in PRODUCTS:
            contraction = Contraction.of_product(node, args, out)
        elif node.name == "sum":
            contraction = Contraction.of_sum(node, out)
        if contraction is None:
            return
        site = found(contraction)
        if site is not None:
            self._tell(site)
        elif node.name in PRODUCTS and all(x.node.data for x in contraction.views):
            self._waiting[node] = contraction
            if len(self._waiting) > WAITING:
                del self._waiting[next(iter(self._waiting))]

    def made(self, module: nn.Module, given: Iterable[Any], result: Any) -> None:
        """Hear what a module made while nothing was recorded."""
        first = next((self._viewed(x) for x in given if isinstance(x, Tensor)), None)
        own = 1 if isinstance(module, nn.modules.conv._ConvNd) else -1
        for x in result if isinstance(result, (tuple, list)) else (result,):
            storage = _storage(x)
            if storage is not None and isinstance(first, View) and first.node.data:
                same = len(first.size) == x.ndim
                node = Node("module", x, True, None, [first] if same else [], {"own": own})
                self._memory[storage._cdata] = StorageWeakRef(storage), node

    def _viewed(self, x: Any) -> Any:
        """A tensor as a view of the node that wrote it; other arguments as they are."""
        if isinstance(x, (list, tuple)):
            return [self._viewed(y) for y in x]
        storage = _storage(x)
        if storage is None:
            return x
        alive, node = self._memory.get(storage._cdata, (None, None))
        if node is None or alive is None or alive.expired():
            base = x._base if x._is_view() and x._base is not None else x
            data = x.ndim > 0 and not self._fixed(base)
            node = Node("given", base, data)
            self._memory[storage._cdata] = StorageWeakRef(storage), node
        return View.of(node, x)


def _views(given: Iterable[Any]) -> Iterable[View]:
    for x in given:
        if isinstance(x, View):
            yield x
        elif isinstance(x, list):
            yield from _views(x)


def _storage(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return None
    try:
        return x.untyped_storage()
    except (NotImplementedError, RuntimeError):  # of vmap, sparse and the like
        return None


@cache
def _composite(func: Any) -> bool:
    """Whether an operation is made of others, and comes here whole, as in inference mode."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return (
        func.namespace != "prim"
        and has(func.name(), COMPOSITE)
        and not any(has(func.name(), key) for key in BACKENDS)
    )
