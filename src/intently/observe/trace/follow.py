"""The dispatch mode that records operations, and looks at every contraction for a site."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from intently.core.kernels.operands import transformed
from intently.observe.sources.functional import how_of, operator_call
from intently.observe.trace.calls import (
    BY_HAND,
    OWN_BACKWARD,
    Waiting,
    call_of,
    has_own_backward,
    sparse_call,
)
from intently.observe.trace.graph import (
    CHOOSES,
    CONSTANT,
    COPIES,
    PRODUCTS,
    RANDOM,
    SOFTMAX,
    Node,
    View,
    kind,
    writes,
)
from intently.observe.trace.normaliser import upstream
from intently.observe.trace.sites import Contraction, Site, found, together, unnormalised
from intently.observe.trace.sums import divided, factored, running_sums
from intently.observe.watching.call import Call, traced
from intently.observe.watching.modules import share, storage_of
from intently.observe.watching.scope import (
    Changing,
    around,
    current,
    in_backward,
    line_of_code,
    running,
    tell,
)
from intently.observe.watching.unseen import Softmax

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
VERSIONS = torch._C.DispatchKey.ADInplaceOrView
BACKENDS = ("CPU", "CUDA", "MPS", "XPU")
FUSED = "_scaled_dot_product_"
RECENT = 6
"""Operations whose arguments are kept although they are as large as their results."""

LOOKED = frozenset(
    (*PRODUCTS, *SOFTMAX, *CHOOSES, "sum", "index_add", "scatter_add", "scatter_reduce")
)
"""Operations that may be sites, or that a site is followed back to."""

CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)

KEPT = (Tensor, list, tuple)
PLAIN = (Tensor, nn.Parameter)

OTHER_AXIS = "its weights are summed at {} over another axis than the one along which they are 1"
LOOSE = "the values met scores at {} that nothing made a whole along the keys"
CUMULATIVE = "running sums are divided at {}, of which no weights are computed"

WAITING = 64
"""Products at most that wait for a division."""

SEVERAL = "aten.{} makes weights a whole that meet values in several products, some in each"


class Trace(TorchDispatchMode):
    """Records what operations do to tensors, and tells the sites that it finds."""

    supports_higher_order_operators = True
    waits_inside = True

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Waiting] = []
        """Sites that edits change; where gradients flow, when their function has returned."""
        self.graded = False
        """Whether gradients flow where the trace was turned on."""
        self.forget()

    def forget(self) -> None:
        """Forget everything that was recorded."""
        self._memory: dict[int, tuple[StorageWeakRef, Node]] = {}
        self._recent: list[Node] = []
        self._past: list[Node] = []  # that the sites that are held need
        self._products: dict[Node, Contraction] = {}
        self._softmaxes: dict[Node, Softmax] = {}
        self._edited: dict[Node, Site] = {}
        self.waiting.clear()
        self._held: list[list[tuple[nn.Module | None, Site]]] = []
        self._sums: list[tuple[nn.Module | None, set[Node], Site]] = []
        self._loose: dict[Node, tuple[nn.Module | None, str]] = {}
        self._room = 256

    def listens(self) -> bool:
        """Whether anybody wants to know what runs now."""
        return bool(current())

    def spares(self) -> bool:
        """Whether tensors that are about to change have to be noted."""
        return bool(self._held)

    def is_data(self, x: Tensor) -> bool:
        """Whether the numbers of a tensor that nothing wrote depend on what the model was given."""
        return x.ndim > 0 and not _fixed(x)

    def is_new_data(self) -> bool:
        """Whether constants and random numbers count as data: they do where no model runs."""
        return not around()

    def wrote(self, node: Node, x: Tensor) -> None:
        """Hear which tensor a node wrote; most do not care."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code compiled, so that its output stays the same."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return _higher(func, args, kwargs)
        name, changes, views = kind(func)
        if views and type(x := args[0]) in PLAIN and x.layout is torch.strided and not x.is_nested:
            if x.untyped_storage()._cdata not in self._memory:
                self._viewed(x)
            return func(*args, **kwargs)
        if "backward" in name or traced() or not self.listens():
            return func(*args, **kwargs)
        if _composite(func) and not any(isinstance(x, Tensor) and x.is_nested for x in args):
            with self:  # comes here whole in inference mode
                return func._op_dk(COMPOSITE, *args, **kwargs)
        given: list[Any] = []
        try:
            for x in args:
                given.append(self._viewed(x) if isinstance(x, KEPT) else x)
        except Exception:  # whatever a model computes with
            return func(*args, **kwargs)
        if changes and self.spares():
            for x in _written(func, args, kwargs):
                self._spare(x)
        result = func(*args, **kwargs)
        for site in self.waiting:
            site.reads(name, args, result)
        if name.startswith(FUSED) or name == "_sparse_softmax":
            made = partial(sparse_call, result, args[1])
            if name.startswith(FUSED):
                made = partial(_fused_call, func, args, kwargs, result[0])
            with _Counted():
                tell(current(), BY_HAND, None, made)
            return result
        if name in ("mm", "addmm", "clone", "_to_copy", "mul", "div", "add"):
            at = 1 if name == "addmm" else 0
            for listener in current():
                listener.running.makes(args[at], result)
        try:
            self._record(func, name, changes, args, given, kwargs, result)
        except Exception as error:  # the model goes on, whatever it computes with
            why = f"{type(error).__name__} in aten.{name}: {error}"
            for listener in current():
                listener.miss(running(), BY_HAND, why)
        for site in list(self.waiting):
            if not site.graded:
                self.waiting.remove(site)
                with _Counted():
                    site.tell()
        return result

    def _record(
        self, func: Any, name: str, changes: bool, args: Any, given: Any, kwargs: Any, result: Any
    ) -> None:
        outs = _written(func, args, kwargs) if changes else result
        outs = outs if isinstance(outs, (tuple, list)) else (outs,)
        data = self.is_new_data() if name.startswith((*CONSTANT, *RANDOM)) else None
        given_too = (self._viewed(x) for x in kwargs.values() if isinstance(x, Tensor))
        if data is None and any(x.node.data for x in given_too):
            data = True
        for x in outs:
            storage = storage_of(x) if isinstance(x, Tensor) else None
            if storage is None:
                continue
            alive, before = self._memory.get(storage._cdata, (None, None))
            known = before is not None and alive is not None and not alive.expired()
            if known and not changes:
                continue  # a view
            node = Node(name, x, data, func, given, kwargs, before if known else None)
            self._note(storage, node)
            self.wrote(node, x)
            if node.data and (node.entrywise or name in LOOKED):
                with _Counted():
                    self._keep(node, args, x)
                    self._look(node, args, x)

    def _note(self, storage: Any, node: Node) -> None:
        if len(self._memory) >= self._room:
            self._memory = {k: p for k, p in self._memory.items() if not p[0].expired()}
            self._room = 2 * len(self._memory) + 256
        self._memory[storage._cdata] = StorageWeakRef(storage), node

    def _keep(self, node: Node, args: Any, out: Tensor) -> None:
        """Keep the arguments that a site may need: factors, and what is added or multiplied."""
        large = node.name in PRODUCTS
        if node.name in SOFTMAX:
            softmax = self._softmaxes[node] = Softmax(node.size)
            for listener in current():
                softmax.module = listener.softmax(out, softmax) or softmax.module
            node.keep(-1, out)
            self._remember(node)
        if node.name in CHOOSES:
            for i, x in enumerate(args[1:], 1):
                for j, y in enumerate(x) if isinstance(x, (list, tuple)) else [(0, x)]:
                    if isinstance(y, Tensor) and not y.is_floating_point():
                        node.keep(10 * i + j if isinstance(x, (list, tuple)) else i, y)
            return
        if not large and not node.entrywise:
            return
        for i, x in enumerate(args):
            if isinstance(x, Tensor):
                node.keep(i, x)
                large |= x.numel() >= out.numel()
        if large and node.name not in PRODUCTS:
            self._remember(node)

    def _remember(self, node: Node) -> None:
        """Keep large tensors of a node until some others were kept."""
        self._recent.append(node)
        if len(self._recent) > RECENT:
            old = self._recent.pop(0)
            size = torch.Size(old.size).numel()
            old.tensors = {i: p for i, p in old.tensors.items() if p[0].numel() < size}

    def _look(self, node: Node, args: Any, out: Tensor) -> None:
        if node.name in ("div", "mul"):
            if self._products and out.is_floating_point():
                products = dict(self._products)
                self._summed(lambda: divided(node, out, products))
            if node.name == "div" and running_sums(node):
                self._loose[node] = running(), CUMULATIVE.format(line_of_code())
        contraction = None
        if node.name == "mul":
            contraction = Contraction.of_one_key(node, out)
        elif node.name in PRODUCTS:
            contraction = Contraction.of_product(node, args, out)
        elif node.name == "sum":
            contraction = Contraction.of_sum(node, out)
        elif node.name in ("index_add", "scatter_add", "scatter_reduce"):
            contraction = Contraction.of_segments(node, args, out)
        site = contraction and found(contraction)
        if contraction is not None and site is not None:
            self._found(site, partial(found, contraction))
        if contraction is None or site is not None or node.name == "mul":
            return
        self.flush()
        for view in contraction.views:  # maybe of weights that meet values along another axis
            whose = view.settled().node
            while whose.name in COPIES and (more := [x for _, x in whose.sources]):
                whose = more[0].settled().node
            if whose in self._softmaxes:
                self._softmaxes[whose].why = OTHER_AXIS.format(line_of_code())
        products = dict(self._products)

        def of_features() -> tuple[set[Node], Site] | None:
            site = factored(contraction, products)
            return None if site is None else ({node}, site)

        self._summed(of_features)
        if node.name in PRODUCTS and all(x.node.data for x in contraction.views):
            self._products[node] = contraction
            if len(self._products) > WAITING:
                del self._products[next(iter(self._products))]
            if unnormalised(contraction):
                self._loose[node] = running(), LOOSE.format(line_of_code())

    def _found(self, site: Site, again: Callable[[], Site | None]) -> None:
        """Hold a site until it is clear which other values its weights meet; edits cannot wait."""
        assert site.normal is not None
        node = site.normal.node
        softmax = self._softmaxes.get(node)
        for other in upstream(site.contraction.views[site.side]):
            self._loose.pop(other, None)
            self._products.pop(other, None)
            if other in self._softmaxes:
                self._softmaxes[other].met = True
        whose = softmax.module if softmax is not None else None
        whose = whose if whose in around() else running()
        if site.mixing:
            for listener in current():
                listener.mixed(whose, site.mixing)
            return
        if any(isinstance(x, Changing) for x in current()):
            first = self._edited.setdefault(node, site)
            same = first is site or torch.equal(first.weights, site.weights)
            refused = None if same else SEVERAL.format(node.name)
            self._change(whose, site, again, first is not site, refused)
            return
        site.node.tensors.clear()
        if not self._held or self._held[-1][0][1].normal.node is not node:  # type: ignore[union-attr]
            self.flush()
            self._held.append([])
        self._held[-1].append((whose, replace(site, again=in_backward())))
        self._past, self._recent = [*self._past, *self._recent], []

    def _summed(self, make: Callable[[], tuple[set[Node], Site] | None]) -> None:
        """Hold the sum of products that a division makes whole, until the module ends."""
        found = make()
        if found is None:
            return
        products, site = found
        for node in products:
            self._loose.pop(node, None)
        whose = running()
        if any(isinstance(x, Changing) for x in current()):
            refused = SEVERAL.format(site.node.name) if products & set(self._edited) else None
            self._edited |= dict.fromkeys(products, site)
            self._change(whose, site, lambda: (make() or (None, None))[1], False, refused)
            return
        self._sums = [x for x in self._sums if not x[1] <= products]
        self._sums.append((whose, products, site))

    def _spare(self, x: Any) -> None:
        """Copy the outputs that are held and about to change; tell a site whose factors are."""
        if not isinstance(x, Tensor):
            return
        if any(share(x, y) for g in self._held for _, s in g for y in (s.weights, s.values)):
            self.flush()
        self._held = [
            [(m, replace(s, output=s.output.clone()) if share(x, s.output) else s) for m, s in g]
            for g in self._held
        ]

    def flush(self, ended: bool = False) -> None:
        """Tell the sites that were held; those of sums if their module ended.

        Within torch.func a tensor stands for many, so that nothing may be computed.
        """
        if transformed():
            return
        waiting, self.waiting[:] = list(self.waiting), []
        for site in waiting:
            site.tell()
        held, self._held = self._held, []
        for group in held:
            with _Counted():
                for site in together([site for _, site in group]):
                    self._tell(group[0][0], site)
        for node in self._past if held else ():
            node.tensors.clear()
        self._past = [] if held else self._past
        sums, self._sums = (self._sums, []) if ended else ([], self._sums)
        for module, _, site in sums:
            self._tell(module, site)

    def finish(self) -> None:
        """Tell the sites that were held, and products of scores that nothing made a whole."""
        self.flush(ended=True)
        for module, why in self._loose.values():
            for listener in current():
                listener.suspect(module, BY_HAND, why)
        self._loose.clear()

    def _tell(self, module: nn.Module | None, site: Site) -> None:
        tell(current(), BY_HAND, module, partial(call_of, site), again=site.again)

    def _change(
        self,
        module: nn.Module | None,
        site: Site,
        again: Callable[[], Site | None],
        more: bool,
        refused: str | None,
    ) -> None:
        """Let edits change a site."""
        products = [site.contraction, *self._products.values()]
        flows = any(x.requires_grad for one in products for x in one.factors)
        graded = torch.is_grad_enabled() and flows
        if self.graded and has_own_backward():
            refused = OWN_BACKWARD
        site = replace(site, again=in_backward())
        self.waiting.append(Waiting(module, site, again, graded, more, refused))

    def holds_weights(self, given: Iterable[Any]) -> bool:
        """Whether weights are among the arguments of a module."""
        views = (self._viewed(x) for x in given if isinstance(x, Tensor))
        return any(isinstance(v, View) and v.node.name in SOFTMAX for v in views)

    def begins(self, weights: Tensor, axis: int, softmax: Softmax) -> None:
        """Follow weights that a softmax made while nothing was recorded."""
        storage = storage_of(weights)
        if storage is not None:
            node = Node("_softmax", weights, True, None, [None, axis % weights.ndim])
            self._softmaxes[node] = softmax
            self._note(storage, node)

    def made(self, module: nn.Module, given: Sequence[Any], result: Any) -> None:
        """Hear what a module made while nothing was recorded."""
        first = next((self._viewed(x) for x in given if isinstance(x, Tensor)), None)
        for x in result if isinstance(result, (tuple, list)) else (result,):
            storage = storage_of(x) if isinstance(x, Tensor) else None
            if storage is None or not isinstance(first, View) or not first.node.data:
                continue
            alive, _ = self._memory.get(storage._cdata, (None, None))
            if alive is None or alive.expired():
                same = len(first.size) == x.ndim
                about = {"own": _own_axis(module, x), "module": module}
                self._note(storage, Node("module", x, True, None, [first] if same else [], about))

    def _viewed(self, x: Any) -> Any:
        """A tensor as a view of the node that wrote it; other arguments as they are."""
        if isinstance(x, (list, tuple)):
            return [self._viewed(y) for y in x]
        storage = storage_of(x) if isinstance(x, Tensor) else None
        if storage is None:
            return x
        alive, node = self._memory.get(storage._cdata, (None, None))
        if node is None or alive is None or alive.expired():
            node = Node("given", _whole(x), self.is_data(x))
            self._note(storage, node)
            self.wrote(node, x)
        return View(node, tuple(x.shape), x.stride(), int(x.storage_offset()))


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an operation overwrites."""
    found = list[Any]()
    for i, name in writes(func):
        x = args[i] if i < len(args) else kwargs.get(name)
        found += x if isinstance(x, (list, tuple)) else [x]
    return found


def _own_axis(module: nn.Module, x: Tensor) -> int:
    """The axis of a module's result along which it has parameters of its own."""
    if isinstance(module, CHANNELS_FIRST):
        return 1
    sizes = {p.shape[0] for p in module.parameters() if p.ndim}
    found = [i for i in range(1, x.ndim) if x.shape[i] in sizes]
    return found[-1] if found else -1


def _whole(x: Tensor) -> Tensor:
    """The tensor of which x is a view, with its axes where x has them: a layer joins them first."""
    base = x._base if x._is_view() else None
    if base is None or base.numel() <= x.numel() or not base.is_contiguous():
        return x
    steps = sorted({s for s, n in zip(x.stride(), x.shape) if n > 1 and s} | {1}, reverse=True)
    sizes = [a // b for a, b in zip([base.numel(), *steps], steps)]
    return base.detach().view(sizes) if math.prod(sizes) == base.numel() else base


def _fixed(x: Tensor) -> bool:
    """Whether a tensor is a parameter or a buffer of a running module."""
    if isinstance(x._base if x._is_view() else x, nn.Parameter):
        return True
    held = [y for m in around() for y in (*m._buffers.values(), *m._parameters.values())]
    return any(y is x or (y is not None and share(x, y)) for y in held)


class _Counted:
    """Views that are made within share the version of their tensor, as outside of a mode."""

    def __enter__(self) -> None:
        self._was = torch._C._dispatch_tls_is_dispatch_key_excluded(VERSIONS)
        torch._C._dispatch_tls_set_dispatch_key_excluded(VERSIONS, False)

    def __exit__(self, *error: object) -> None:
        torch._C._dispatch_tls_set_dispatch_key_excluded(VERSIONS, self._was)


@cache
def _composite(func: Any) -> bool:
    """Whether an operation is made of others, and comes here whole, as in inference mode.

    If a backend has a kernel of its own, as for `silu_backward`, the operation is no composite.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return (
        func.namespace != "prim"
        and has(func.name(), COMPOSITE)
        and not any(has(func.name(), key) for key in BACKENDS)
    )


def _fused_call(func: Any, args: Any, kwargs: Any, y: Tensor) -> Call:
    """The call of a fused operator that bypassed PyTorch's function."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    q, k, v = args[:3]
    mask = given.get("attn_mask", given.get("attn_bias"))
    how = how_of(
        q, k, mask, given.get("dropout_p", 0.0), given.get("is_causal", False), given.get("scale")
    )
    return Call(q, k, v, y, how, BY_HAND)


def _higher(func: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
    """Run an operator that takes functions; only FlexAttention can be read."""
    result, name = func(*args, **kwargs), func.name()
    if name == "flex_attention":
        tell(current(), BY_HAND, None, partial(operator_call, *args, **kwargs, y=result[0]))
    elif not name.endswith("backward"):
        tell(current(), BY_HAND, None, lambda: f"the operator {name} ran, in which nothing is seen")
    return result
