"""What a model really attends: a dispatch mode that follows every softmax to its values.

Nothing here knows `intently`. A softmax counts as attention where its weights meet values:

- as an operand of a matrix product that sums over the axis that the softmax normalised, the other
  operand being no parameter or buffer (a distribution over bins times their centres is none); or
- multiplied with features and summed over that axis, where the values are shared by several rows of
  weights, or there is one row for each entry of the batch (pooling).

On the way it may be moved (views, slices, copies, concatenation) and changed entry by entry
(dropout, masks, casts). Whatever selects (`topk`, `argmax`, `multinomial`) or sums otherwise ends
the way, and a softmax of scores that `topk` chose does not count where it weighs entry by entry, so
that routers and samplers are left out. Nor does a weighted sum count of values that every row has
of its own (mixtures of experts, deformable sampling), nor a softmax of numbers that depend on no
input (a mixture of layers). `log_softmax` then `exp`, and `exp` divided by its sum, count like a
softmax, also if it meets values first and is divided then. The weights of fused calls are computed
from their arguments, and those of a softmax that never exists as a whole are declared by the module
(``declared_weights``). Weights that are no softmax, or were changed, are ``factors`` of products.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks.breadth.fused import (
    arguments,
    flex_replaced,
    fused_weights,
    native_weights,
    operands,
)
from benchmarks.breadth.marks import (
    FUSED,
    KNOWN,
    LOG_SOFTMAX,
    MOVES,
    NATIVE,
    POINTWISE,
    PRODUCTS,
    SOFTMAX,
    STARTS,
    Attended,
    Mark,
    axis_of,
    laid_out,
    merged,
    rounding,
    spread,
    tensors,
    varies,
)

STREAMS = ("HyperConnection", "HyperConnections")
"""How the names of classes end whose methods mix streams by softmax."""


class Truth(TorchDispatchMode):
    """Record what a model attends while the mode is on.

    ``found`` are the softmaxes that met values, ``others`` those that did not; ``stopped`` counts
    the operations that ended their way.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        super().__init__()
        self.all: list[Attended] = []
        self.stopped: dict[str, int] = {}
        self.factors: list[Tensor] = []  # of products of two tensors that depend on the input
        self._batch = batch
        floats = (x.dtype for x in model.parameters() if x.is_floating_point())
        self._eps = torch.finfo(next(floats, torch.float32)).eps
        self._names = {id(m): name for name, m in model.named_modules()}
        self._constants = {
            x.untyped_storage().data_ptr()
            for x in [*model.parameters(), *model.buffers()]
            if x.layout == torch.strided
        }
        self._marks: dict[int, tuple[Tensor, Mark]] = {}
        self._stored: dict[int, tuple[Tensor, Mark]] = {}
        self._fixed: dict[int, Tensor] = {}
        self._running: list[str] = []

    @property
    def found(self) -> list[Attended]:
        """The softmaxes that met values, in their order."""
        return [x for x in self.all if x.counts]

    @contextmanager
    def on(self) -> Iterator[Truth]:
        """Record within the block."""
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            with flex_replaced(self._flex), self:
                yield self
        finally:
            before.remove()
            after.remove()
            self._marks.clear()
            self._stored.clear()
            self._fixed.clear()

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._names.get(id(module), self._where()))

    def _leave(self, module: nn.Module, args: Any, _: Any) -> None:
        declared: Any = getattr(module, "declared_weights", None)
        if declared is not None:
            with _disable_current_modes():
                self._add("declared", declared(*args))
        if self._running:
            self._running.pop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(getattr(func, "overloadpacket", func), "__name__", str(func))
        name = name if name == "copy_" else name.rstrip("_")
        if FUSED in name and "backward" not in name and "fused_sdp_choice" not in name:
            self._add(name, fused_weights(**operands(func, args, kwargs)))
        elif name in NATIVE:
            self._add(name, native_weights(arguments(func, args, kwargs)))
        elif torch.is_inference_mode_enabled() and name not in KNOWN:
            with self:  # composite operations arrive whole: look inside
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        inputs = [(x, m) for x in tensors((args, kwargs)) if (m := self._mark(x)) is not None]
        out = func(*args, **kwargs)
        fixed = all(map(self._is_fixed, tensors((args, kwargs))))
        for x in tensors(out):
            if x.layout == torch.strided:
                place = x.untyped_storage().data_ptr()
                self._fixed.pop(place, None)
                self._fixed |= {place: x} if fixed else {}
        if name in PRODUCTS and not fixed:
            both = [args[i].detach() for i in PRODUCTS[name]]
            if all(x.dim() > 1 and not self._is_fixed(x) for x in both):
                self.factors += [y.clone() for x in both for y in (x, x.mT)]
        if inputs or name in STARTS:
            self._follow(name, func, args, kwargs, inputs, out)
        return out

    # --- following ------------------------------------------------------------------------------

    def _follow(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[tuple[Tensor, Mark]],
        out: Any,
    ) -> None:
        kept = [pair for pair in inputs if pair[1].kind != "chosen"]
        inputs = inputs if "softmax" in name else kept or inputs
        kinds = {m.kind for _, m in inputs}
        if name in ("topk", "sort"):
            for x in out:  # values and places
                self._put(x, Mark("chosen", None, None))
        elif name in SOFTMAX:
            chosen = any(m.kind == "chosen" for _, m in inputs)
            self._weights(out, axis_of(args, kwargs), name, chosen, args[0])
            if self._is_fixed(args[0]):
                self._marks.pop(id(out))  # the same for all inputs
        elif name in LOG_SOFTMAX:
            chosen = any(m.kind == "chosen" for _, m in inputs)
            self._put(out, Mark("log", None, None, axis_of(args, kwargs), chosen=chosen))
        elif name == "logsumexp":
            chosen = any(m.kind == "chosen" for _, m in inputs)
            self._put(out, Mark("lse", None, None, args[1], chosen=chosen))
        elif name == "_sparse_softmax":
            self._add(name, out.to_dense())
        elif name in ("exp", "exp2"):
            logs = [m for _, m in inputs if m.kind == "log"]
            if logs:
                self._weights(out, logs[0].axis, "log_softmax, exp", logs[0].chosen)
            elif out.is_floating_point() and out.dim() > 1:
                self._put(out, Mark("exp", None, None, exponentials=out.clone()))
        elif all(m.kind == "chosen" for _, m in inputs):
            if name in MOVES or name in POINTWISE or name == "gather":
                for x in tensors(out):
                    self._put(x, Mark("chosen", None, None))
        elif {"exp", "mixed"} & kinds and "weights" not in kinds:
            self._by_hand(name, args, inputs, out)
        elif any(m.kind == "lse" for _, m in inputs):
            mark = next(m for _, m in inputs if m.kind == "lse")
            if name == "sub" and self._mark(args[1]) is mark:
                self._put(out, Mark("log", None, None, mark.axis, chosen=mark.chosen))
            elif name in POINTWISE or name in MOVES:
                self._put(out, mark)
        elif any(m.kind == "log" for _, m in inputs):
            self._move(name, func, args, kwargs, [p for p in inputs if p[1].kind == "log"], out)
        elif name in PRODUCTS:
            self._product(PRODUCTS[name], name, args, out)
        elif name == "convolution" and self._mark(args[0]) is not None:  # heads are mixed
            self._put(out, replace(inputs[0][1], keys=None))
        elif name == "sum":
            self._sum(args, kwargs, inputs, out)
        elif name == "native_layer_norm":
            self._put(out[0], replace(inputs[0][1], keys=None))
        elif name in MOVES or name in POINTWISE or name == "as_strided":
            self._move(name, func, args, kwargs, inputs, out)
        else:
            self.stopped[name] = self.stopped.get(name, 0) + 1

    def _weights(
        self,
        out: Tensor,
        axis: int | Sequence[int],
        how: str,
        chosen: bool = False,
        scores: Tensor | None = None,
    ) -> None:
        """A softmax, or what equals one, over one axis or several; ``chosen``: by a router."""
        axes = [axis % out.dim()] if isinstance(axis, int) else [i % out.dim() for i in axis]
        if out.dim() == 0 or not out.is_floating_point() or _mixes_streams():
            return
        last = list(range(-len(axes), 0))
        weights = out.detach().movedim(axes, last).flatten(-len(axes)).clone()
        scores = out.log() if scores is None else scores
        read = rounding(scores, self._eps)
        source = Attended(self._where(), how, weights, batch=self._batch, rounding=read)
        self.all.append(source)
        sizes = [out.shape[i] for i in axes]
        keys = torch.arange(1, math.prod(sizes) + 1, dtype=torch.int32).view(sizes)
        keys = keys.expand(*(n for i, n in enumerate(out.shape) if i not in axes), *sizes)
        mark = Mark("weights", source, keys.movedim(last, axes).contiguous(), chosen=chosen)
        self._put(out, mark)

    def _by_hand(
        self, name: str, args: tuple[Any, ...], inputs: list[tuple[Tensor, Mark]], out: Any
    ) -> None:
        """`exp` of scores, its sum, and their quotient, before or after a product with values."""
        first, second = (*args, None, None)[:2]
        mark, other = (self._mark(x) if isinstance(x, Tensor) else None for x in (first, second))
        kinds = [None if x is None else x.kind for x in (mark, other)]
        if name == "sum" and kinds[0] == "exp" and second:
            self._put(out, Mark("exp sum", None, None, list(second)))
        elif name == "linalg_vector_norm" and kinds[0] == "exp" and second == 1:
            self._put(out, Mark("exp sum", None, None, list(args[2])))
        elif name in PRODUCTS and "exp" in kinds:
            side = kinds.index("exp")
            used = (mark, other)[side].exponentials  # type: ignore[union-attr]
            self._put(out, Mark("mixed", None, None, exponentials=used.mT if side else used))
        elif name in ("div", "mul") and kinds == ["mixed", "exp sum"]:
            used = mark.exponentials  # type: ignore[union-attr]
            self._add("exp, product / sum", used / used.sum(-1, keepdim=True))
        elif name in ("div", "mul") and kinds == ["exp", "exp sum"] and second.dim() == out.dim():
            self._weights(out, other.axis, "exp / sum")  # type: ignore[union-attr]
        elif (name in POINTWISE or name in MOVES) and kinds != ["mixed", "mixed"]:
            kept = inputs[0][1]
            for x in tensors(out):
                used = x.clone() if kept.kind == "exp" else kept.exponentials
                self._put(x, Mark(kept.kind, None, None, kept.axis, exponentials=used))

    def _move(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[tuple[Tensor, Mark]],
        out: Any,
    ) -> None:
        mark = inputs[0][1]
        outs = [x for x in tensors(out) if x.is_floating_point()]
        if mark.kind == "log":
            for x in outs:
                self._put(x, Mark("log", None, None, mark.axis, chosen=mark.chosen))
            return
        if name == "mul" and outs and self._weighs(args, inputs, outs[0]):
            return
        keys: list[Tensor | None] = [None] * len(outs)
        if name in MOVES and mark.keys is not None:
            keys = self._moved(func, args, kwargs, len(outs))
        elif mark.keys is not None and name != "as_strided":
            keys = [spread(mark.keys, x.shape) for x in outs]
        for x, k in zip(outs, keys):
            self._put(x, Mark(mark.kind, mark.source, k, mark.axis, mark.shared, mark.chosen))
        if name == "copy_":  # written into a part of another tensor: all of it may hold weights
            target = args[0]
            stored = Mark(mark.kind, mark.source, None, mark.axis, mark.shared)
            self._stored[target.untyped_storage().data_ptr()] = (target, stored)

    def _moved(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], n: int
    ) -> list[Tensor | None]:
        """The keys, moved by the same operation."""

        def keys(x: Any) -> Any:
            if isinstance(x, Tensor) and x.is_floating_point():
                mark = self._mark(x)
                known = None if mark is None else mark.keys
                return torch.zeros(x.shape, dtype=torch.int32) if known is None else known
            if isinstance(x, (list, tuple)):
                return type(x)(map(keys, x))
            return x

        try:
            made = list(tensors(func(*keys(args), **kwargs)))
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return [None] * n
        return list(made) if len(made) == n else [None] * n

    def _weighs(
        self, args: tuple[Any, ...], inputs: list[tuple[Tensor, Mark]], out: Tensor
    ) -> bool:
        """Whether weights are multiplied with features, which a sum is to follow."""
        weights, mark = inputs[0]
        other = args[1] if args[0] is weights else args[0]
        if mark.kind != "weights" or mark.source is None or mark.keys is None or mark.chosen:
            return False
        if not isinstance(other, Tensor) or out.shape == weights.shape or self._constant(other):
            return False
        keys = spread(mark.keys, out.shape)
        padded = (1,) * (out.dim() - other.dim()) + tuple(other.shape)
        shared = any(n > 1 == m for n, m in zip(out.shape, padded))
        alone = mark.source.weights[..., 0].numel() == self._batch
        self._put(out, Mark("weighted", mark.source, keys, mark.axis, shared or alone))
        return True

    def _sum(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Any, out: Any) -> None:
        mark = inputs[0][1]
        axes = args[1] if len(args) > 1 else kwargs.get("dim")
        if mark.kind != "weighted" or mark.keys is None or axes is None:
            return
        for axis in axes if isinstance(axes, (list, tuple)) else [axes]:
            if varies(mark.keys, axis) and mark.shared:
                self._met(mark.source)

    def _product(self, places: tuple[int, int], name: str, args: tuple[Any, ...], out: Any) -> None:
        first, second = (args[i] for i in places)
        for x, other, axis in ((first, second, -1), (second, first, -2)):
            mark = self._mark(x)
            if mark is None or mark.source is None or mark.kind != "weights":
                continue
            axis = -1 if x.dim() == 1 or name == "linear" else axis
            if mark.keys is not None and not varies(mark.keys, axis):
                self._put(out, Mark("weights", mark.source, None))  # heads are mixed
            elif not self._constant(other):
                used = x.detach().movedim(axis, -1)
                self._met(mark.source, used)
                if other.dim() == x.dim() > 2:
                    values = other.detach() if axis == -1 else other.detach().mT
                    laid = merged(used, values), laid_out(used, values)
                    mark.source.laid += [x for x in laid if x is not None]

    def _met(self, source: Attended | None, used: Tensor | None = None) -> None:
        if source is not None:
            source.counts = True
            if used is not None:
                source.used.append(used.clone())

    # --- fused calls ----------------------------------------------------------------------------

    def _add(self, how: str, weights: Tensor) -> None:
        """Record the weights of a fused call."""
        made = Attended(self._where(), how, weights.detach(), [], [], True, self._batch)
        made.rounding = rounding(weights[:0], self._eps)  # those of a recording are rounded, too
        self.all.append(made)

    def _flex(
        self, original: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **given: Any
    ) -> Any:
        """FlexAttention; its weights are what it makes of the unit vectors as values."""
        unit = torch.eye(key.shape[-2], dtype=value.dtype).expand(*value.shape[:-1], -1)
        with _disable_current_modes():
            weights = original(query, key, unit.contiguous(), *args, **given)
            out = original(query, key, value, *args, **given)
        weights = weights[0] if isinstance(weights, tuple) else weights
        self._add("flex_attention", weights)
        return out

    # --- marks ----------------------------------------------------------------------------------

    def _where(self) -> str:
        return self._running[-1] if self._running else ""

    def _put(self, x: Any, mark: Mark) -> None:
        if isinstance(x, Tensor):
            self._marks[id(x)] = (x, mark)

    def _mark(self, x: Tensor) -> Mark | None:
        found = self._marks.get(id(x))
        if found is None and self._stored and x.layout == torch.strided:
            found = self._stored.get(x.untyped_storage().data_ptr())
        return found and found[1]

    def _constant(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self._constants

    def _is_fixed(self, x: Tensor) -> bool:
        """Whether a tensor is made of parameters and constants alone."""
        place = x.untyped_storage().data_ptr() if x.layout == torch.strided else None
        return place in self._constants or place in self._fixed


class Nothing(TorchDispatchMode):
    """A dispatch mode that does nothing: under any, PyTorch may pick other kernels."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


def _mixes_streams() -> bool:
    """Whether the module whose code runs is one of `STREAMS`."""
    frame: Any = sys._getframe()
    while frame is not None and not isinstance(frame.f_locals.get("self"), nn.Module):
        frame = frame.f_back
    return frame is not None and type(frame.f_locals["self"]).__name__.endswith(STREAMS)
