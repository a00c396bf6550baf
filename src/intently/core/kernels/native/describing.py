"""The operands of a product as the native kernel reads them, and the short way of small calls.

A mask becomes a program in postfix order: ``(kind, a, b, n, x, y)``, one step for each rule and for
each ``&``, ``|`` and ``~``. A bias becomes a tensor that broadcasts to (…, t, s), or, if it depends
on the distance alone, a profile (…, 1, t + s − 1) whose entry i − j + s − 1 belongs to query i and
key j. Every tensor has two axes after the leading ones, which broadcast from the right.
"""

from __future__ import annotations

import importlib
import math
import os
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from intently.core.biases import Bias, ByDistance, Sum, TensorBias
from intently.core.kernels.eager import Dropping
from intently.core.kernels.operands import usual, wanted_kernel
from intently.core.kernels.problem import Problem
from intently.core.kernels.torch_fused import once
from intently.core.masks import Geometry, Mask, is_plain_causal
from intently.core.masks.by_position import Band, Dilated
from intently.core.masks.geometry import two_axes
from intently.core.masks.mask import Allowed, Both, Either, Not
from intently.core.masks.ragged import First, Segments, is_sorted
from intently.foundation import process

BAND, FIRST, SEGMENTS, DILATED, ENTRIES, AND, OR, NOT = range(8)
JOINS = {Both: AND, Either: OR, Not: NOT}

STEPS, DEPTH = 32, 8
"""Steps of a program, and results that it holds at once, at most."""

BIASES = 4
"""Tensors in a sum of biases at most; profiles are added up."""

OUTSIDE = 2**48
"""Positions are cut to it, beyond all keys and small beside the farthest reach of a mask."""

WRITTEN = 2**20
"""Entries up to which a rule without a description is written out."""

SMALL = 2**20
"""Multiplications of q and k below which plain and causal calls with gradients go to PyTorch."""

WIDEST = 256
"""The widest head that the kernel multiplies."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

Step: TypeAlias = tuple[int, int, int, int, Tensor | None, Tensor | None]


KNOWN = (Band, First, Segments, Dilated, Allowed, Both, Either, Not)
"""Masks with a description; others are written out where they are small."""


def unknown_mask(mask: Mask | None, g: Geometry) -> str | None:
    """Why a mask has no program; None if it has one. Looks at types and shapes only."""
    rules = [] if mask is None else _postfix(mask)
    depth, deepest = 0, 0
    for rule in rules:
        depth += {Both: -1, Either: -1, Not: 0}.get(type(rule), 1)
        deepest = max(deepest, depth)
    if len(rules) > STEPS or deepest > DEPTH:
        return "the mask joins too many rules"
    for rule in rules:
        if not isinstance(rule, KNOWN) and math.prod(rule.lead()) * g.t * g.s > WRITTEN:
            return f"it has no description of {type(rule).__name__}"
    return None


def program(mask: Mask | None, g: Geometry) -> tuple[Step, ...]:
    """The steps that evaluate a mask for a block of the matrix ``g``."""
    return () if mask is None else tuple([_step(rule, g) for rule in _postfix(mask)])


def _postfix(mask: Mask) -> list[Mask]:
    """The rules of a mask, each after those that it joins."""
    if isinstance(mask, (Both, Either)):
        return [*_postfix(mask.left), *_postfix(mask.right), mask]
    return [*_postfix(mask.inner), mask] if isinstance(mask, Not) else [mask]


def _step(mask: Mask, g: Geometry) -> Step:
    if isinstance(mask, (Both, Either, Not)):
        return JOINS[type(mask)], 0, 0, 0, None, None
    if isinstance(mask, Band):
        return BAND, mask.before, mask.after, *_number(mask.start(g)), None
    if isinstance(mask, Dilated):
        return DILATED, mask.step, 0, *_number(mask.start(g)), None
    if isinstance(mask, First):
        return FIRST, 0, 0, *_number(mask.n if isinstance(mask.n, int) else mask.counts(g)), None
    if isinstance(mask, Segments):
        q, k = map(_written, mask.sides(g))
        x, y = (ids.long().contiguous() for ids in (q[..., :, None], k[..., None, :]))
        return SEGMENTS, int(is_sorted(k)), 0, 0, x, y
    entries = mask.laid(g) if isinstance(mask, Allowed) else mask.dense(g)
    return ENTRIES, 0, 0, 0, _written(two_axes(entries)), None


def _number(n: int | Tensor) -> tuple[int, Tensor | None]:
    """A number for all rows of a batch, or a tensor (…, 1, 1) of them."""
    if isinstance(n, int):
        return max(-OUTSIDE, min(n, OUTSIDE)), None
    if n.numel() == 1:
        return max(-OUTSIDE, min(int(n), OUTSIDE)), None
    return 0, _written(n).long().clamp(-OUTSIDE, OUTSIDE)


def unknown_bias(bias: Bias | None, g: Geometry) -> str | None:
    """Why a bias has no description; None if it has one."""
    parts = _parts(bias)
    if sum(not isinstance(part, ByDistance) for part in parts) > BIASES:
        return f"the bias is a sum of more than {BIASES} tensors"
    for part in parts:
        if not isinstance(part, (TensorBias, ByDistance)) and g.t * g.s > WRITTEN // 16:
            return f"it has no description of {type(part).__name__}"
    return None


def _parts(bias: Bias | None) -> list[Bias]:
    if isinstance(bias, Sum):
        return [*_parts(bias.left), *_parts(bias.right)]
    return [] if bias is None else [bias]


def biases(p: Problem) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors and the profiles of a bias, differentiable in what it holds."""
    g = p.geometry
    tensors, profiles = [], []
    for part in _parts(p.bias):
        if isinstance(part, ByDistance):
            profiles.append(profile(part, g))
        elif isinstance(part, TensorBias):
            x = part.tensor if part.tensor.dtype in FLOATS else part.tensor.float()
            tensors.append(two_axes(x))
        else:
            i, j = (torch.arange(n, device=g.device) for n in (g.t, g.s))
            tensors.append(two_axes(part.tile(g, i, j, torch.float32)))
    return tensors, [sum(profiles[1:], profiles[0])] if profiles else []


def profile(bias: ByDistance, g: Geometry) -> Tensor:
    """The numbers of a bias by distance, (…, 1, t + s − 1), from the farthest key ahead on."""
    start = bias.start(g)
    start = start[..., 0] if isinstance(start, Tensor) else start
    apart = torch.arange(g.s - 1, -g.t, -1, device=g.device) - start
    return bias.profile(g, apart, torch.float32)[..., None, :].contiguous()


class Loaded(NamedTuple):
    """The module, or the reason why there is none."""

    module: ModuleType | None
    reason: str | None


def _load() -> Loaded:
    if os.environ.get("INTENTLY_NATIVE") == "off":
        return Loaded(None, "INTENTLY_NATIVE=off is set")
    try:
        module = importlib.import_module("intently.core.kernels.native._native")
    except ModuleNotFoundError:
        return Loaded(None, "it was not built: no C++ compiler was found, or it failed")
    except ImportError as error:
        return Loaded(None, f"it does not load: {error}")
    if process.is_fork:  # of a process that may have used PyTorch's threads
        module.forked()
    return Loaded(module, None)


loaded = _load()
"""Read when the package is imported; ``INTENTLY_NATIVE`` names an instruction set, or ``off``."""


def library() -> Any:
    """Return the module; only called where `loaded` has one."""
    assert loaded.module is not None
    return loaded.module


def instructions() -> str | None:
    """Return the instruction set in use, such as ``"avx512"``; None without the module."""
    return None if loaded.module is None else library().instructions()


PRODUCT, BACKWARD, BIAS_BACKWARD, MEASURE, RECEIVE, PICTURE, HEADS = 0, 2, 3, 4, 5, 6, 7
"""The jobs of the compiled module."""


ROWS = 64
"""Queries in one block."""


class NativeOperands(NamedTuple):
    """What the kernel reads, each tensor with two axes after the leading ones."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    scale: Tensor | float
    biases: list[Tensor]
    profiles: list[Tensor]
    rule: Mask | None
    mask: tuple[Step, ...]
    """The program of the rule."""
    softcap: float
    lead: tuple[int, ...]
    groups: int
    dropping: Dropping | None

    @property
    def t(self) -> int:
        """The number of queries."""
        return self.q.shape[-2]

    @property
    def s(self) -> int:
        """The number of keys."""
        return self.k.shape[-2]

    def run(self, job: int, **others: Any) -> None:
        """Run one job of the compiled module on these operands and others.

        It takes pointers, so a view that only promises its numbers (negative, all zeros) is copied.
        """
        given: dict[str, Any] = {"q": self.q, "k": self.k, "t": self.t, "s": self.s, **others}
        given |= {"d": self.q.shape[-1], "softcap": self.softcap, "mask": self.mask or None}
        given["biases"] = tuple(map(_written, self.biases)) or None
        given["profiles"] = tuple(map(_written, self.profiles)) or None
        given["scales" if isinstance(self.scale, Tensor) else "scale"] = self.scale
        given["sinks"] = self.sinks
        if self.dropping is not None and "v" in others:
            given["rate"] = self.dropping.rate
            given["drop_rows"], given["drop_cols"] = self.dropping.rows, self.dropping.cols
        for name, x in given.items():
            if isinstance(x, Tensor) and (x.is_neg() or x._is_zerotensor()):
                given[name] = _written(x)
        library().run(job, torch.get_num_threads(), self.lead, self.groups, given)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory to write to, whatever PyTorch's default dtype and device are."""
        return self.q.new_empty(shape, dtype=dtype)

    def tensors(self) -> list[Tensor]:
        """Those that may need a gradient, in the order of `gradients`."""
        found = [self.q, self.k, self.v]
        for x in (self.sinks, self.scale):
            if isinstance(x, Tensor):
                found.append(x)
        return [*found, *self.biases, *self.profiles]

    def read_by_mask(self) -> list[Tensor]:
        """The tensors that the mask holds, and those that its program reads."""
        program = [x for step in self.mask for x in step if isinstance(x, Tensor)]
        return [*program, *(() if self.rule is None else self.rule.tensors())]

    def replaced_by(self, tensors: list[Tensor]) -> NativeOperands:
        """Return the same operands with other tensors, in the order of `tensors`."""
        q, k, v, *rest = tensors
        sinks = rest.pop(0) if self.sinks is not None else None
        scale = rest.pop(0) if isinstance(self.scale, Tensor) else self.scale
        n = len(self.biases)
        return self._replace(
            q=q, k=k, v=v, sinks=sinks, scale=scale, biases=rest[:n], profiles=rest[n:]
        )


def _written(x: Tensor) -> Tensor:
    """The tensor with its numbers in its memory."""
    return x.resolve_neg().clone() if x.is_neg() or x._is_zerotensor() else x


def operands(p: Problem, v: Tensor, dropping: Dropping | None) -> NativeOperands:
    """Describe a product for the kernel; differentiable in everything that the problem holds."""
    k, groups = p.k, shared_heads(p, v)
    if groups != p.groups and p.groups > 1:
        k = p.per_query_head(k)  # values of their own for every query head
    if p.compute_dtype != p.q.dtype and p.geometry.t >= ROWS:  # read by many blocks of queries
        k, v = k.float(), v.float()
    tensors, profiles = biases(p) if p.bias is not None else ([], [])
    sinks = None if p.sinks is None else p.sinks[..., None, None]
    scale = two_axes(p.scale) if isinstance(p.scale, Tensor) else p.scale
    steps, softcap = program(p.mask, p.geometry), p.softcap or 0.0
    bare = p.q, k, v, sinks, scale, tensors, profiles
    return NativeOperands(*bare, p.mask, steps, softcap, p.geometry.lead, groups, dropping)


def shared_heads(p: Problem, v: Tensor) -> int:
    """How many query heads share the same key and value head."""
    lead = p.geometry.lead
    mine, own = p.k.shape[-3:-2], v.shape[-3:-2]
    if len(lead) < 1 or mine != own or not mine or lead[-1] % mine[0]:
        return 1
    return lead[-1] // mine[0]


_quick = getattr(loaded.module, "quick", None)


def quick(q: Any, k: Any, v: Any, scale: float | None, mask: Any) -> Tensor | None:
    """The product of a small call, where Python costs more than the arithmetic; None elsewhere.

    Y (b, h, t, e) for float32 q (b, h, t, d), k (b, g, s, d) and v (b, g, s, e), a mask, booleans
    or numbers to add, and a scale. Plain and causal calls with gradients go to PyTorch, whose
    autograd is C++. Raises what `attend` raises for a mask that does not fit.
    """
    if _quick is None or torch.compiler.is_compiling() or torch._C._is_tracing():
        return None
    if wanted_kernel.get() is not None:
        return None
    if not (type(q) is type(k) is type(v) is Tensor and q.dtype is k.dtype is v.dtype):
        return None
    if q.dtype is not torch.float32 or not q.ndim == k.ndim == v.ndim == 4:
        return None
    if q.device.type != "cpu" or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    if scale is not None and not math.isfinite(scale):
        return None
    if isinstance(mask, Tensor) and mask.is_neg():
        return None
    if (
        torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
        or _functorch.maybe_current_level() is not None
    ):
        return None
    if isinstance(mask, Mask):
        if is_plain_causal(mask):
            mask = True
        elif mask.tensors():
            return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _with_gradients(q, k, v, scale, mask)
    try:
        shape, width = q.shape, v.shape[-1]
        y = torch.empty_like(q) if width == shape[3] else q.new_empty((*shape[:3], width))
    except RuntimeError:  # nested, or of MKLDNN
        return None
    scale = 1 / math.sqrt(shape[3]) if scale is None and shape[3] else scale
    if isinstance(mask, Mask):
        return y if _masked(q, k, v, y, cast(float, scale), mask) else None
    return y if _quick(q, k, v, y, scale, mask, torch.get_num_threads()) else None


def _with_gradients(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, mask: Mask | Tensor | bool | None
) -> Tensor | None:
    if q.is_nested or k.is_nested or v.is_nested:
        return None
    shape = q.shape
    if isinstance(mask, Tensor | Mask) or not (k.shape == v.shape and shape[1] == k.shape[1]):
        return None
    if shape[0] != k.shape[0] or shape[3] != k.shape[3] or not q.numel() * k.numel():
        return None
    if mask and (shape[2] != k.shape[2] or (scale is not None and scale <= 0)):
        return None
    if q.numel() * k.shape[2] >= SMALL or not q.stride(3) == k.stride(3) == v.stride(3) == 1:
        return None
    if not torch.backends.cuda.flash_sdp_enabled():  # the switch of the CPU's fused kernel, too
        return None
    y = F.scaled_dot_product_attention(q, k, v, is_causal=bool(mask), scale=scale)
    if y.grad_fn is not None:
        y.grad_fn.register_prehook(once)  # cheaper than a hook of the tensor
    return y


def _masked(q: Tensor, k: Tensor, v: Tensor, y: Tensor, scale: float, mask: Mask) -> bool:
    """Write y for a mask, and return whether it could."""
    if not (usual(q) and usual(k) and usual(v)):  # sparse, say
        return False
    (b, h, t, d), (_, g, s, e) = q.shape, v.shape
    if k.shape != (b, g, s, d) or v.shape[0] != b or not y.numel() * k.numel() or h % g:
        return False
    at = Geometry((b, h), t, s, q.device)
    if max(d, e) > WIDEST or unknown_mask(mask, at):
        return False
    mask.check(at)
    steps = () if mask.allows_all(at) else program(mask, at)
    o = NativeOperands(q, k, v, None, scale, [], [], None, steps, 0.0, (b, h), h // g, None)
    o.run(PRODUCT, v=v, y=y, e=e)
    return True
