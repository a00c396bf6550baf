"""What a model really attends: a dispatch mode that follows every softmax to its values.

Nothing here knows `intently`. A softmax counts as attention where its weights meet values:

- as an operand of a matrix product that sums over the axis that the softmax normalised, the other
  operand being no parameter or buffer (a distribution over bins times their centres is none); or
- multiplied with features and summed over that axis, where the values are shared by several rows of
  weights, or there is one row for each entry of the batch (pooling).

On the way it may be moved (views, slices, copies, concatenation) and changed entry by entry
(dropout, masks, casts). Whatever selects (`topk`, `argmax`, `multinomial`) or sums otherwise ends
the way, and a softmax of scores that `topk` chose does not count where it weighs entry by entry, so
that routers and samplers are left out. Nor does a weighted sum count of values that every row has of
its own (mixtures of experts, deformable sampling). `log_softmax` then `exp`, and `exp`
divided by its sum, count like a softmax. The weights of fused calls are computed from their
arguments, in float64.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import flex_attention
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

SOFTMAX = {"softmax", "_softmax", "_safe_softmax", "special_softmax"}
LOG_SOFTMAX = {"log_softmax", "_log_softmax", "special_log_softmax"}
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "matmul": (0, 1), "mv": (0, 1), "dot": (0, 1)}
PRODUCTS |= {"addmm": (1, 2), "baddbmm": (1, 2), "addmv": (1, 2), "linear": (0, 1)}
NATIVE = {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}
FUSED = "scaled_dot_product"
MOVES = set(
    "view _unsafe_view reshape permute transpose t mT expand slice select squeeze unsqueeze clone "
    "contiguous alias detach split split_with_sizes chunk unbind cat stack constant_pad_nd roll "
    "flip repeat narrow unfold index index_select lift_fresh _reshape_alias movedim view_as "
    "_reshape_copy permute_copy flatten unflatten".split()
)
POINTWISE = set(
    "mul div add sub where masked_fill dropout native_dropout _to_copy nan_to_num clamp clamp_min "
    "clamp_max to type_as mul_ div_ add_ sub_ masked_fill_ nan_to_num_ dropout_ clamp_ relu "
    "copy_ pow softplus threshold maximum minimum".split()
)
STARTS = SOFTMAX | LOG_SOFTMAX | {"exp", "logsumexp", "topk", "sort"}
KNOWN = STARTS | LOG_SOFTMAX | set(PRODUCTS) | MOVES | POINTWISE | {"sum"}


@dataclass
class Attended:
    """One softmax: the ``weights`` (…, s) as normalised, and as they were multiplied (``used``).

    ``counts`` says that it met values; ``beams`` that a search may have given up some of its rows.
    """

    module: str
    how: str
    weights: Tensor
    used: list[Tensor] = field(default_factory=list)
    counts: bool = False
    beams: bool = False

    def forms(self) -> list[Tensor]:
        """The rows (n, s) in float64 as normalised, and as multiplied if that differs in width.

        A part of the keys may be left out (a sink), or multiplied in several pieces: then all
        pieces together are one form.
        """
        whole = self.weights.double().reshape(-1, self.weights.shape[-1])
        pieces: list[Tensor] = []
        for x in self.used:
            rows = x.double().reshape(-1, x.shape[-1])
            if len(rows) != len(whole):
                return [whole]
            if not any(rows.shape == y.shape and torch.equal(rows, y) for y in pieces):
                pieces.append(rows)
        return [whole, torch.cat(pieces, -1)] if pieces else [whole]


@dataclass
class _Mark:
    """What is known of a tensor: which softmax it holds, and which of its keys, from 1.

    ``keys`` has the shape of the tensor, or is None where the places are not known any more.
    """

    kind: str
    source: Attended | None
    keys: Tensor | None
    axis: int | Sequence[int] = -1
    shared: bool = False
    chosen: bool = False


class Truth(TorchDispatchMode):
    """Record what a model attends while the mode is on.

    ``found`` are the softmaxes that met values, ``others`` those that did not; ``stopped`` counts
    the operations that ended their way.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        super().__init__()
        self.all: list[Attended] = []
        self.stopped: dict[str, int] = {}
        self._batch = batch
        self._names = {id(m): name for name, m in model.named_modules()}
        self._constants = {
            x.untyped_storage().data_ptr() for x in [*model.parameters(), *model.buffers()]
        }
        self._marks: dict[int, tuple[Tensor, _Mark]] = {}
        self._stored: dict[int, tuple[Tensor, _Mark]] = {}
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
            with _flex_replaced(self._flex), self:
                yield self
        finally:
            before.remove()
            after.remove()
            self._marks.clear()
            self._stored.clear()

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._names.get(id(module), self._where()))

    def _leave(self, *_: Any) -> None:
        if self._running:
            self._running.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(getattr(func, "overloadpacket", func), "__name__", str(func))
        if FUSED in name and "backward" not in name and "fused_sdp_choice" not in name:
            self._fused(name, func, args, kwargs)
        elif name in NATIVE:
            self._native(name, func, args, kwargs)
        elif torch.is_inference_mode_enabled() and name not in KNOWN:
            with self:  # composite operations arrive whole: look inside
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        inputs = [(x, m) for x in _tensors((args, kwargs)) if (m := self._mark(x)) is not None]
        if not inputs and name not in STARTS:
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        self._follow(name, func, args, kwargs, inputs, out)
        return out

    # --- following ------------------------------------------------------------------------------

    def _follow(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[tuple[Tensor, _Mark]],
        out: Any,
    ) -> None:
        if name in ("topk", "sort"):
            self._put(out[0], _Mark("chosen", None, None))
        elif name in SOFTMAX:
            chosen = any(m.kind == "chosen" for _, m in inputs)
            self._weights(out, _axis(args, kwargs), name, chosen)
        elif any(m.kind == "chosen" for _, m in inputs):
            if name in MOVES or name in POINTWISE:
                for x in _tensors(out):
                    self._put(x, _Mark("chosen", None, None))
        elif name in LOG_SOFTMAX:
            self._put(out, _Mark("log", None, None, _axis(args, kwargs)))
        elif name == "logsumexp":
            self._put(out, _Mark("lse", None, None, args[1]))
        elif name == "exp":
            logs = [m for _, m in inputs if m.kind == "log"]
            if logs:
                self._weights(out, logs[0].axis, "log_softmax, exp")
            elif out.is_floating_point() and out.dim() > 1:
                self._put(out, _Mark("exp", None, None))
        elif any(m.kind == "exp" for _, m in inputs):
            self._by_hand(name, args, inputs, out)
        elif any(m.kind == "lse" for _, m in inputs):
            mark = next(m for _, m in inputs if m.kind == "lse")
            if name in ("sub", "sub_") and self._mark(args[1]) is mark:
                self._put(out, _Mark("log", None, None, mark.axis))
            elif name in POINTWISE or name in MOVES:
                self._put(out, mark)
        elif any(m.kind == "log" for _, m in inputs):
            self._move(name, func, args, kwargs, [p for p in inputs if p[1].kind == "log"], out)
        elif name in PRODUCTS:
            self._product(PRODUCTS[name], name, args, out)
        elif name == "sum":
            self._sum(args, kwargs, inputs, out)
        elif name in MOVES or name in POINTWISE or name == "as_strided":
            self._move(name, func, args, kwargs, inputs, out)
        else:
            self.stopped[name] = self.stopped.get(name, 0) + 1

    def _weights(
        self, out: Tensor, axis: int | Sequence[int], how: str, chosen: bool = False
    ) -> None:
        """A softmax, or what equals one, over one axis or several; ``chosen``: by a router."""
        axes = [axis % out.dim()] if isinstance(axis, int) else [i % out.dim() for i in axis]
        if out.dim() == 0 or not out.is_floating_point():
            return
        last = list(range(-len(axes), 0))
        weights = out.detach().movedim(axes, last).flatten(-len(axes)).clone()
        source = Attended(self._where(), how, weights)
        self.all.append(source)
        sizes = [out.shape[i] for i in axes]
        keys = torch.arange(1, math.prod(sizes) + 1, dtype=torch.int32).view(sizes)
        keys = keys.expand(*(n for i, n in enumerate(out.shape) if i not in axes), *sizes)
        mark = _Mark("weights", source, keys.movedim(last, axes).contiguous(), chosen=chosen)
        self._put(out, mark)

    def _by_hand(
        self, name: str, args: tuple[Any, ...], inputs: list[tuple[Tensor, _Mark]], out: Any
    ) -> None:
        """`exp` of scores, its sum, and their quotient."""
        first = args[0] if args and isinstance(args[0], Tensor) else None
        mark = self._mark(first) if first is not None else None
        if name == "sum" and mark is not None and mark.kind == "exp" and len(args) > 1 and args[1]:
            axes = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            self._put(out, _Mark("exp sum", None, None, list(axes)))
        elif name in ("div", "div_") and mark is not None and mark.kind == "exp":
            below = self._mark(args[1]) if isinstance(args[1], Tensor) else None
            if below is not None and below.kind == "exp sum" and args[1].dim() == out.dim():
                self._weights(out, below.axis, "exp / sum")
        elif name in POINTWISE or name in MOVES:
            kept = inputs[0][1]
            for x in _tensors(out):
                self._put(x, _Mark(kept.kind, None, None, kept.axis))

    def _move(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[tuple[Tensor, _Mark]],
        out: Any,
    ) -> None:
        mark = inputs[0][1]
        outs = [x for x in _tensors(out) if x.is_floating_point()]
        if mark.kind == "log":
            for x in outs:
                self._put(x, _Mark("log", None, None, mark.axis))
            return
        if name in ("mul", "mul_") and outs and self._weighs(args, inputs, outs[0]):
            return
        keys: list[Tensor | None] = [None] * len(outs)
        if name in MOVES and mark.keys is not None:
            keys = self._moved(func, args, kwargs, len(outs))
        elif mark.keys is not None and name != "as_strided":
            keys = [_spread(mark.keys, x.shape) for x in outs]
        for x, k in zip(outs, keys):
            self._put(x, _Mark(mark.kind, mark.source, k, mark.axis, mark.shared, mark.chosen))
        if name == "copy_":  # written into a part of another tensor: all of it may hold weights
            target = args[0]
            stored = _Mark(mark.kind, mark.source, None, mark.axis, mark.shared)
            self._stored[target.untyped_storage().data_ptr()] = (target, stored)

    def _moved(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], n: int
    ) -> list[Tensor | None]:
        """The keys, moved by the same operation."""

        def keys(x: Any) -> Any:
            if isinstance(x, Tensor) and x.is_floating_point():
                mark = self._mark(x)
                known = mark is not None and mark.keys is not None
                return mark.keys if known else torch.zeros(x.shape, dtype=torch.int32)
            if isinstance(x, (list, tuple)):
                return type(x)(map(keys, x))
            return x

        try:
            made = list(_tensors(func(*keys(args), **kwargs)))
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return [None] * n
        return list(made) if len(made) == n else [None] * n

    def _weighs(
        self, args: tuple[Any, ...], inputs: list[tuple[Tensor, _Mark]], out: Tensor
    ) -> bool:
        """Whether weights are multiplied with features, which a sum is to follow."""
        weights, mark = inputs[0]
        other = args[1] if args[0] is weights else args[0]
        if mark.kind != "weights" or mark.source is None or mark.keys is None or mark.chosen:
            return False
        if not isinstance(other, Tensor) or out.shape == weights.shape or self._constant(other):
            return False
        keys = _spread(mark.keys, out.shape)
        padded = (1,) * (out.dim() - other.dim()) + tuple(other.shape)
        shared = any(n > 1 == m for n, m in zip(out.shape, padded))
        alone = mark.source.weights[..., 0].numel() == self._batch
        self._put(out, _Mark("weighted", mark.source, keys, mark.axis, shared or alone))
        return True

    def _sum(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Any, out: Any
    ) -> None:
        mark = inputs[0][1]
        axes = args[1] if len(args) > 1 else kwargs.get("dim")
        if mark.kind != "weighted" or mark.keys is None or axes is None:
            return
        for axis in axes if isinstance(axes, (list, tuple)) else [axes]:
            if _varies(mark.keys, axis) and mark.shared:
                self._met(mark.source)

    def _product(
        self, places: tuple[int, int], name: str, args: tuple[Any, ...], out: Any
    ) -> None:
        first, second = (args[i] for i in places)
        for x, other, axis in ((first, second, -1), (second, first, -2)):
            mark = self._mark(x)
            if mark is None or mark.source is None or mark.kind != "weights":
                continue
            axis = -1 if x.dim() == 1 or name == "linear" else axis
            if mark.keys is not None and not _varies(mark.keys, axis):
                self._put(out, _Mark("weights", mark.source, None))  # heads are mixed
            elif not self._constant(other):
                self._met(mark.source, x.detach().movedim(axis, -1))

    def _met(self, source: Attended | None, used: Tensor | None = None) -> None:
        if source is not None:
            source.counts = True
            if used is not None:
                source.used.append(used.clone())

    # --- fused calls ----------------------------------------------------------------------------

    def _fused(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _arguments(func, args, kwargs)
        mask = given.get("attn_mask", given.get("attn_bias"))
        weights = fused_weights(
            given["query"], given["key"], mask, given.get("is_causal"), given.get("scale")
        )
        self.all.append(Attended(self._where(), name, weights, counts=True))

    def _native(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """PyTorch's fused layers: queries and keys follow from their input and weights."""
        given = _arguments(func, args, kwargs)
        x = given.get("query", given.get("src"))
        y = given.get("key", x)
        if given.get("norm_first"):
            y = x = F.layer_norm(
                x, x.shape[-1:], given["norm_weight_1"], given["norm_bias_1"], given["eps"]
            )
        heads = given.get("num_heads", given.get("num_head"))
        w, b = given["qkv_weight"].chunk(3), given["qkv_bias"].chunk(3)
        q, k = (
            F.linear(z, w[i], b[i]) for i, z in enumerate((x, y))
        )
        mask = given["mask"]
        if q.is_nested:
            weights = [
                fused_weights(*(z.unflatten(-1, (heads, -1)).transpose(-3, -2) for z in pair))
                for pair in zip(q.unbind(), k.unbind())
            ]
            t = max(len(z) for z in q.unbind())
            found = torch.full((len(weights), heads, t, t), torch.nan, dtype=torch.float64)
            for row, part in zip(found, weights):
                row[..., : part.shape[-2], :] = 0.0
                row[..., : part.shape[-2], : part.shape[-1]] = part
        else:
            q, k = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in (q, k))
            if mask is not None and given["mask_type"] == 1:
                mask = mask[:, None, None]
            if mask is not None and mask.dtype == torch.bool:
                mask = ~mask  # True means masked in these layers
            found = fused_weights(q, k, mask)
        self.all.append(Attended(self._where(), name, found, counts=True))

    def _flex(self, original: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **given: Any) -> Any:
        """FlexAttention; its weights are what it makes of the unit vectors as values."""
        unit = torch.eye(k.shape[-2], dtype=v.dtype).expand(*v.shape[:-1], -1).contiguous()
        with _disable_current_modes():
            weights = original(q, k, unit, *args, **given)
            out = original(q, k, v, *args, **given)
        weights = weights[0] if isinstance(weights, tuple) else weights
        self.all.append(Attended(self._where(), "flex_attention", weights.detach(), counts=True))
        return out

    # --- marks ----------------------------------------------------------------------------------

    def _where(self) -> str:
        return self._running[-1] if self._running else ""

    def _put(self, x: Any, mark: _Mark) -> None:
        if isinstance(x, Tensor):
            self._marks[id(x)] = (x, mark)

    def _mark(self, x: Tensor) -> _Mark | None:
        found = self._marks.get(id(x))
        if found is None and self._stored and x.layout == torch.strided:
            found = self._stored.get(x.untyped_storage().data_ptr())
        return found and found[1]

    def _constant(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self._constants


class Nothing(TorchDispatchMode):
    """A dispatch mode that does nothing: under any, PyTorch may pick other kernels."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def _flex_replaced(by: Any) -> Iterator[None]:
    """Replace PyTorch's FlexAttention wherever a module names it: no mode can look inside."""
    original = flex_attention.flex_attention
    named = [m for m in list(sys.modules.values()) if vars(m).get("flex_attention") is original]
    replacement = functools.partial(by, original)
    try:
        for module in named:
            vars(module)["flex_attention"] = replacement
        yield
    finally:
        for module in named:
            vars(module)["flex_attention"] = original


def fused_weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    causal: bool | None = False,
    scale: float | None = None,
) -> Tensor:
    """The weights (…, t, s) in float64; rows that see nothing are zero."""
    q, k = q.detach().double(), k.detach().double()
    if q.dim() > 2 and q.shape[-3] != k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    z = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None and mask.dtype == torch.bool:
        z = z.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        z = z + mask.detach().double()
    if causal:
        past = torch.ones(z.shape[-2:], dtype=torch.bool).tril()
        z = z.masked_fill(~past, -torch.inf)
    return z.softmax(-1).nan_to_num(0.0)


def _arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of an operator by name, defaults included."""
    given = {a.name: a.default_value for a in func._schema.arguments}
    return given | dict(zip(given, args)) | kwargs


def _axis(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    return int(args[1] if len(args) > 1 else kwargs["dim"])


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from _tensors(y)
    elif isinstance(x, dict):
        for y in x.values():
            yield from _tensors(y)


def _spread(keys: Tensor, shape: Sequence[int]) -> Tensor | None:
    try:
        return keys.expand(shape)
    except RuntimeError:
        return None


def _varies(keys: Tensor, axis: int) -> bool:
    """Whether different keys lie along an axis; one key alone lies along any axis of size 1."""
    if keys.numel() == 0 or keys.shape[axis] == 1:
        return keys.numel() > 0 and int(keys.max()) <= 1
    return bool((keys.amax(axis) != keys.amin(axis)).any())
