"""PyTorch's scaled_dot_product_attention, used only where it really runs a fused kernel.

PyTorch silently falls back to the t·s formula (dropout on CPU, e ≠ d, 3-D inputs, a mask that
needs a gradient, a last stride other than 1). This kernel converts inputs to a form that PyTorch
fuses if that costs O(t); it refuses other such calls with a reason, so that another kernel runs
them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from intently.core.kernels import walk
from intently.core.kernels.operands import forward_mode, recording, transformed
from intently.core.kernels.problem import Kernel, Problem, four_axes
from intently.core.scores import Dot
from intently.errors import KernelError, build
from intently.foundation.arrays import valued

SMALL = 512 * 512
"""Queries × keys up to which a mask is written out without a second thought."""

WRITTEN = 2**28
"""Bytes of a written mask or bias from which on tiles are preferred."""


class TorchFused(Kernel):
    """y = scaled_dot_product_attention(q, k, v): memory grows with t, never with t·s."""

    name = "torch_fused"
    note = "first derivatives; a single torch.func.grad; torch.compile"

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        p = problem
        if type(p.score) is not Dot:
            return f"score is {type(p.score).__name__}, not the dot product"
        if p.softcap is not None:
            return "softcap is set"
        if p.sinks is not None:
            return "sinks are set"
        if isinstance(p.scale, Tensor):
            return "scale is a tensor"
        if p.dropout and p.q.device.type == "cpu":
            return "dropout is not fused on CPU"
        if v.shape[-1] != p.q.shape[-1]:
            return f"e={v.shape[-1]} differs from d={p.q.shape[-1]}"
        if not (p.q.numel() and p.k.numel() and v.numel()):
            return "a dimension is empty"
        learned = p.bias is not None and any(x.requires_grad for x in p.bias.tensors())
        if learned and torch.is_grad_enabled():
            return "bias needs a gradient"
        if p.bias is not None and p.compute_dtype != p.q.dtype:
            first = torch.arange(1, device=p.q.device)
            own = p.bias.tile(p.geometry, first, first).dtype
            if own != p.q.dtype:
                return f"bias has dtype {own}, q has {p.q.dtype}"
        if p.k.shape[:-2] != v.shape[:-2]:
            return "k and v have different leading axes"
        if recording():
            return "a trace or an ONNX export needs sizes that may change"
        if transformed(but="Grad"):
            return "torch.func has no rule for it"
        if forward_mode((p.q, p.k, v)):
            return "it has no forward-mode derivative"
        return None if _fuses(p, v) else "PyTorch has no fused kernel for this call"

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """Why tiles are better: a mask or bias would be materialised, at more time or memory."""
        p = problem
        if _knows_mask(p) or torch.compiler.is_exporting() or transformed():
            return None
        if math.prod(p.geometry.shape[-2:]) < SMALL:
            return None
        if not all(map(valued, p.tensors())):
            return "there are no numbers yet, and tiles look at the mask when there are"
        bytes_ = _written_bytes(p)
        if bytes_ > WRITTEN:
            return f"mask and bias, written out, take {bytes_ / 2**20:.0f} MiB"
        found = walk.blocks(p)
        if found is not None and found.visited < 0.7:
            return f"the mask leaves {1 - found.visited:.0%} of the blocks empty"
        return None

    def memory(self, problem: Problem, v: Tensor) -> int:
        p = problem
        rows = math.prod(p.geometry.shape[:-1])
        return rows * (v.shape[-1] * p.q.element_size() + 4) + _written_bytes(p)

    def writes(self, problem: Problem, v: Tensor) -> str | None:
        size = _written_bytes(problem)
        return f"mask and bias are written out: {size / 2**20:.1f} MiB" if size else None

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        p = problem
        if _knows_mask(p):  # and every key is seen by a query
            mask, (q, k, v) = None, _four(p, p.q, p.k, v)
        else:
            mask = _four_mask(_written(p), p)
            q, k, v = _four(p, p.q, *p.without_unseen(p.k, v))
        causal = mask is None and p.mask is not None
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            p.dropout,
            causal,
            scale=cast(float, p.scale),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        if mask is not None and (y.device.type != "cpu" or _has_nan(y)):
            some = mask if mask.dtype is torch.bool else mask != -math.inf
            y = torch.where(some.any(-1, keepdim=True), y, 0)
        if y.requires_grad and not (torch.compiler.is_compiling() or transformed()):
            y.register_hook(once)
        g = p.geometry
        return y if len(g.lead) == 2 else y.reshape(*g.lead, g.t, v.shape[-1])


def _has_nan(y: Tensor) -> bool:
    """Whether NaN came out, as it does on a CPU for a query of NaN that may attend to nothing."""
    return valued(y) and bool(y.detach().isnan().any())


def once(_: Any) -> None:
    """Raise a clear error if the gradient itself is to be differentiated."""
    if torch.is_grad_enabled():
        expected = "first derivatives of torch_fused"
        got = "a gradient that is to be differentiated again"
        cause = "PyTorch's fused kernels have no second derivatives"
        fix = 'compute within `with it.kernels.use("tiled"):`'
        raise build(KernelError, "create_graph", expected, got, cause, fix)


def _fuses(p: Problem, v: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return True
    masked = not _knows_mask(p)
    if p.q.device.type == "cpu":
        flash = torch.backends.cuda.flash_sdp_enabled()
        return _cpu_fuses(p.q.dtype, p.q.shape[-1], masked, p.mask is not None, p.groups > 1, flash)
    q, k, v = _four(p, p.q, p.k, v)
    mask = q.new_zeros(()).expand(*q.shape[:3], k.shape[2]) if masked else None
    causal = mask is None and p.mask is not None
    grouped = q.shape[1] != k.shape[1]
    return _choice(q, k, v, mask, p.dropout, causal, scale=float(p.scale), enable_gqa=grouped)


@lru_cache(maxsize=256)
def _cpu_fuses(
    dtype: torch.dtype, d: int, masked: bool, causal: bool, grouped: bool, flash: bool
) -> bool:
    """Whether PyTorch fuses such calls on CPU, where only the size d matters."""
    with _disable_current_modes():  # the answer is kept, and holds outside of them, too
        k = torch.zeros(1, 1, 2, d, dtype=dtype, device="cpu")
        q = k.expand(1, 2, 2, d).contiguous() if grouped else k
        mask = k.new_zeros(1, 1, 2, 2) if masked else None
        return _choice(q, k, k, mask, 0.0, causal and not masked, scale=1.0, enable_gqa=grouped)


def _choice(*given: Any, **options: Any) -> bool:
    return torch._fused_sdp_choice(*given, **options) > 0  # pyright: ignore[reportPrivateImportUsage]


def _written_bytes(p: Problem) -> int:
    """Bytes of a mask or bias that must be materialised for all queries and keys."""
    if _knows_mask(p):
        return 0
    first, size = torch.arange(1, device=p.q.device), p.q.element_size()
    allow = () if p.mask is None else p.mask.allow(p.geometry, first, first).shape[:-2]
    bias = () if p.bias is None else p.bias.tile(p.geometry, first, first).shape[:-2]
    lead = torch.broadcast_shapes(allow, bias)
    wide = (0 if p.mask is None else 1) + size
    return math.prod(lead) * p.geometry.t * p.geometry.s * wide


def _knows_mask(p: Problem) -> bool:
    """Whether the kernel needs no written mask: there is none, or plain causal without a bias.

    Its own causal mask is multiplied by the scale, so that a scale ≤ 0 needs a written one.
    """
    return p.bias is None and (p.mask is None or bool(p.scale > 0 and p.is_causal()))


def _four(p: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """View (…, h, t, d) as the 4-D tensors PyTorch fuses; leading axes are flattened into b."""
    four = q.ndim == k.ndim == v.ndim == 4 and k.shape[:2] == v.shape[:2]
    same = four and q.shape[0] == k.shape[0] and (q.shape[1] == k.shape[1] or p.groups > 1)
    if same and q.stride(3) == k.stride(3) == v.stride(3) == 1:
        return q, k, v
    heads = p.geometry.lead[-1] if p.geometry.lead else 1
    shared = k.shape[-3] if p.groups > 1 else heads
    g = p.geometry
    return four_axes(q, g, heads), four_axes(k, g, shared), four_axes(v, g, shared)


def _written(p: Problem) -> Tensor:
    """The mask and the bias, at least one of which exists, materialised as one tensor."""
    allow, bias = p.allow(), p.bias_tile()
    if bias is None:
        assert allow is not None
        return allow
    bias = bias.to(p.q.dtype)
    return bias if allow is None else torch.where(allow, bias, -math.inf)


def _four_mask(mask: Tensor, p: Problem) -> Tensor:
    """The same view of a mask or bias: (b or 1, h or 1, t, s)."""
    g = p.geometry
    mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    mask = mask.expand(*mask.shape[:-2], g.t, g.s)
    if len(g.lead) > 2 and any(n > 1 for n in mask.shape[:-3]):
        mask = mask.expand(*g.lead[:-1], *mask.shape[-3:])
    return mask.flatten(0, -4)
