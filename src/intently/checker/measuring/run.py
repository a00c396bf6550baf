"""One run of a subject under the trace, with every tensor kept, so that gradients can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from inspect import unwrap
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from intently.checker.calling.modes import Eager
from intently.checker.calling.subject import less_precise
from intently.core import kernels
from intently.observe.trace.follow import Trace
from intently.observe.trace.graph import COPIES, PRODUCTS, SOFTMAX, Node, View
from intently.observe.trace.normaliser import Normal, behind, upstream
from intently.observe.trace.sites import Contraction, Site, laid_out
from intently.observe.watching.modules import storage_of
from intently.observe.watching.scope import line_of_code


@dataclass
class Older:
    """A tensor that was overwritten: what it held, and where it stands in the graph."""

    data: Tensor
    edge: GradientEdge | None


@dataclass
class Seen:
    """A site as the run met it: how to lay it out again above autograd, and where it stands."""

    node: Node
    make: Callable[[], Site | None]
    module: str
    line: str
    products: frozenset[Node]
    turned: Normal | None = None
    """What made its weights a whole along another axis than the one that is summed."""


class Run(Eager, Trace):
    """Follows a call; ``data`` are its inputs, ``parameters`` the names of what it holds."""

    __torch_dispatch__ = unwrap(Trace.__torch_dispatch__)

    def __init__(
        self, data: Iterable[Tensor], parameters: Mapping[int, str], names: Mapping[nn.Module, str]
    ) -> None:
        super().__init__()
        self.parameters, self.names = parameters, names
        self.input_names: dict[int, str] = {}
        self.results: dict[Node, Tensor] = {}
        self.older: dict[Node, Older] = {}
        """What nodes wrote that was overwritten since."""
        self.lowest = torch.double
        """The least precise dtype in which what depends on the inputs is computed."""
        self.seen: list[Seen] = []
        self.loose: dict[Node, str] = {}
        """Products of values with scores that nothing made a whole, and their lines."""
        self.places: dict[Node, tuple[str, str]] = {}
        """Where these are: their modules and lines of code."""
        self.gradients = True
        """Whether all of it runs with gradients."""
        self.returned: list[Tensor] = []
        """What the call returned."""
        self.unread = ""
        """The line of a softmax that nothing reads."""
        self.softmaxes: dict[Node, str] = {}
        """The lines of code of each softmax."""
        self.running: list[str] = []
        data = list(data)
        self._inputs = {memory(x) for x in data}
        self._ids = [x for x in data if not x.is_floating_point()]

    def listens(self) -> bool:
        """Always."""
        return True

    def is_data(self, x: Tensor) -> bool:
        """Only the inputs of the call are, and copies of their ids."""
        if memory(x) in self._inputs:
            return True
        if not x.ndim or x.is_floating_point() or x.dtype is torch.bool:
            return False
        return any(x.shape == y.shape and torch.equal(x, y.to(x.dtype)) for y in self._ids)

    def given(self, x: Tensor) -> int:
        """Take another tensor as an input; its memory."""
        self._inputs.add(memory(x))
        self._memory.pop(memory(x), None)
        return memory(x)

    def is_new_data(self) -> bool:
        """Constants are none."""
        return False

    def wrote(self, node: Node, x: Tensor) -> None:
        """Keep every tensor."""
        self.results[node] = x
        self.gradients &= torch.is_grad_enabled()
        if node.name in SOFTMAX:
            self.softmaxes[node] = line_of_code()
        if node.data and x.is_floating_point() and node.name != "given":
            self.lowest = less_precise(self.lowest, x.dtype)

    def spares(self) -> bool:
        """Always: what is overwritten may be asked for."""
        return True

    def _spare(self, x: Any) -> None:
        """Keep what a tensor holds, and its place in the graph, before it is overwritten."""
        storage = storage_of(x) if isinstance(x, Tensor) else None
        _, node = self._memory.get(storage._cdata, (None, None)) if storage else (None, None)
        if node is None or node not in self.results or node in self.older:
            return
        y = self.results[node]
        edge = None
        with suppress(RuntimeError):  # a view that was made without gradients
            edge = get_gradient_edge(y) if y.requires_grad and y.is_floating_point() else None
        held = torch.empty_strided(y.shape, y.stride(), dtype=y.dtype, device=y.device)
        self.older[node] = Older(held.copy_(y.detach()), edge)

    def value(self, node: Node) -> Tensor | Older:
        """What a node wrote, as it was before anything overwrote it."""
        return self.older.get(node, self.results[node])

    def _remember(self, node: Node) -> None:
        """Everything is kept."""

    def _look(self, node: Node, args: Any, out: Tensor) -> None:
        before = len(self.seen)
        super()._look(node, args, out)
        if node in self._loose:
            self.places[node] = self.running[-1] if self.running else "", line_of_code()
        contraction = None
        if node.name in PRODUCTS:
            contraction = Contraction.of_product(node, args, out)
        elif node.name == "sum":
            contraction = Contraction.of_sum(node, out)
        if contraction is not None and len(self.seen) == before:
            self._misaligned(node, contraction)

    def _misaligned(self, node: Node, contraction: Contraction) -> None:
        """Note values that meet weights which are a whole along another axis, or along none."""
        for side in (0, 1):
            other = contraction.views[1 - side]
            if not contraction.keys or not other.node.data:
                continue
            made = _softmax_of(contraction.views[side])
            if made is not None and made not in behind([other], lambda node: True, 400):
                normal = Normal(made, made.name in SOFTMAX)
                self._keep_site(
                    node, lambda c=contraction, s=side, n=normal: _site(c, s, n), {node}, normal
                )
                return

    def _found(self, site: Site, again: Callable[[], Site | None]) -> None:
        for other in upstream(site.contraction.views[site.side]):
            self._loose.pop(other, None)
            self._products.pop(other, None)
        if site.mixing in (None, "fixed"):
            self._keep_site(site.node, again, {site.node})

    def _summed(self, make: Callable[[], tuple[set[Node], Site] | None]) -> None:
        made = make()
        if made is None:
            return
        products, site = made
        for node in products:
            self._loose.pop(node, None)
        self.seen = [x for x in self.seen if not x.products <= products or x.turned is None]
        self._keep_site(site.node, lambda: (make() or (None, None))[1], products)

    def _keep_site(
        self,
        node: Node,
        make: Callable[[], Site | None],
        products: Iterable[Node],
        turned: Normal | None = None,
    ) -> None:
        where = self.running[-1] if self.running else ""
        self.seen.append(Seen(node, make, where, line_of_code(), frozenset(products), turned))

    def flush(self, ended: bool = False) -> None:
        """Nothing is held."""

    def finish(self) -> None:
        """Note what nothing made a whole."""
        self.loose = {node: why for node, (_, why) in self._loose.items()}
        made = set[Node]()
        for x in self.seen:
            if x.turned is None:
                made |= self._near(x.node)
        self.seen = [
            x for x in self.seen if x.turned is None or x.turned.sure or x.node not in made
        ]

    def passed_by(self, returned: Iterable[Tensor]) -> str:
        """The line of a softmax that nothing reads, while its scores enter a product; else ""."""
        out = {memory(x) for x in returned}
        read = {x.settled().node for node in self.results for _, x in node.views}
        for node, line in self.softmaxes.items():
            if node in read or memory(self.results[node]) in out:
                continue
            reached = {x.settled().node for _, x in node.sources}
            for other in self.results:
                if any(x.settled().node in reached for _, x in other.sources):
                    if other.name in PRODUCTS and sum(x.node.data for _, x in other.views) > 1:
                        return line
                    if other.entrywise or other.name in COPIES:
                        reached.add(other)
        return ""

    @cached_property
    def reached(self) -> set[Node]:
        """What went into anything that was returned."""
        reached = set[Node]()
        left = [self._memory.get(memory(x), (None, None))[1] for x in self.returned]
        while left:
            node = left.pop()
            if node is not None and node not in reached:
                reached.add(node)
                left += [node.before, *(x.node for _, x in node.views)]
        return reached

    def unused(self) -> list[str]:
        """The parameters that are multiplied with, where nothing returned is made of the result.

        What reads an attention is left out: it may belong to the last of many layers.
        """
        sites, names = {x.node for x in self.seen}, list[str]()
        for node in self.results:
            if node.name not in PRODUCTS or not node.data or node in self.reached:
                continue
            read = behind([x for _, x in node.sources], lambda x: x.name not in PRODUCTS)
            if sites.isdisjoint(read):
                names += [self.name_of(x) for _, x in node.views if not x.node.data]
        return [n for n in names if n]

    def _near(self, node: Node) -> set[Node]:
        """What an operation is made of, back to the next layers."""

        def inside(at: Node) -> bool:
            fixed = (x for _, x in at.views if not x.node.data)
            return at.name not in PRODUCTS or not any(map(self.name_of, fixed))

        return set(behind([node.view], inside, 400))

    def tensor(self, view: View) -> Tensor:
        """The tensor that a view shows, with its history."""
        x = self.results[view.settled().node]
        if tuple(x.shape) == view.size and x.stride() == view.stride:
            return x
        return x.as_strided(view.size, view.stride, view.offset)

    def layers(self) -> Iterator[tuple[str, Tensor]]:
        """What was made with parameters of data, in order, and the name of the parameter."""
        for node, x in self.results.items():
            if not node.data or node.name == "given":
                continue
            names = [n for _, v in node.views if not v.node.data and (n := self.name_of(v))]
            if names:
                yield names[0], x.detach()

    def name_of(self, view: View, most: int = 12) -> str:
        """The name of the parameter that a tensor is made of, "" if it is a constant."""
        left = [view]
        while left and most:
            most -= 1
            node = left.pop().settled().node
            if node.name == "given":
                name = self.parameters.get(memory(self.results[node]), "")
                if name:
                    return name
            left += [x for _, x in node.views]
        return ""


def memory(x: Tensor) -> int:
    """What tells the memory of a tensor from that of others."""
    storage = storage_of(x)
    return id(x) if storage is None else storage._cdata


def _softmax_of(view: View, most: int = 12) -> Node | None:
    """The softmax or `exp` that weights come from, through what keeps or moves their entries."""
    for _ in range(most):
        node = view.settled().node
        if node.name in SOFTMAX or node.name in ("exp", "exp2"):
            return node
        if not (node.entrywise or node.name in COPIES) or not node.sources:
            return None
        view = max((x for _, x in node.sources), key=lambda x: len(x.node.size))
    return None


def _site(contraction: Contraction, side: int, normal: Normal) -> Site:
    return laid_out(contraction.alone(), side, normal)


@contextmanager
def plainly() -> Iterator[None]:
    """Fused kernels are left aside, so that scores and weights are computed one after the other."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        stack.enter_context(patch("torch.nn.attention._sdpa_kernel"))  # others stay with it
        stack.enter_context(kernels.use("eager"))
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        yield


@contextmanager
def named(run: Run) -> Iterator[None]:
    """Tell a run which modules run."""
    from torch.nn.modules import module as hooks

    def enter(module: nn.Module, args: Any) -> None:
        run.running.append(run.names.get(module, ""))

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        if run.running:
            run.running.pop()

    held = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in held:
            hook.remove()
