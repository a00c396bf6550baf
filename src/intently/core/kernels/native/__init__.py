"""The native kernel: attention in C++ for CPUs, in tiles that never leave the cache.

float32 and the half types; masks as descriptions, whose empty blocks are never touched; biases,
softcap, sinks, dropout; gradients of all of them. `source/` holds the C++, `describing` the form in
which masks and biases reach it, `operator` the gradients, `measuring` the statistics.

It is built when Intently is installed where a C++ compiler is there; elsewhere the other kernels
serve every call.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from intently.core.kernels.native import describing, measuring, operator
from intently.core.kernels.native.describing import instructions, loaded
from intently.core.kernels.operands import (
    forward_mode,
    needs_gradients,
    opaque,
    recording,
    transformed,
)
from intently.core.kernels.problem import Kernel, Problem
from intently.core.kernels.torch_fused import once
from intently.core.scores import Dot

__all__ = ["Native", "instructions", "loaded", "measuring", "quick", "unserved"]

SMALL = 2**20
"""Multiplications of q and k below which plain and causal calls with gradients go to PyTorch."""

WIDEST = 256
"""The widest head that the kernel multiplies."""

AXES = 9
"""Leading axes at most."""


class Native(Kernel):
    """y = weights @ v in C++: O(t) memory, forward and backward."""

    name = "native"
    note = "first derivatives in O(t) memory, second derivatives build the t × s matrix"
    device = "cpu"

    def present(self) -> bool:
        """Whether its module was built and loads."""
        return loaded.module is not None

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Why the kernel cannot run this call; None if it can."""
        return unserved(problem, v)

    def serves(self, problem: Problem, v: Tensor) -> bool:
        """The same as that of every kernel, the cheaper question first."""
        return self.yields(problem, v) is None and unserved(problem, v) is None

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """Small calls with gradients: their derivatives cost more to set up than to compute."""
        p = problem
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        if not needs_gradients((*p.tensors(), v)):
            return None
        plain = p.bias is None and (p.mask is None or p.is_causal())
        small = SMALL if plain else SMALL // 16  # others cost PyTorch a written mask
        if math.prod(p.geometry.shape) * p.q.shape[-1] >= small:
            return None
        return "the call is small and needs gradients"

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes beside the inputs: the result, and the maximum and sum of every row."""
        rows = math.prod(problem.geometry.shape[:-1])
        return rows * (v.shape[-1] * problem.q.element_size() + 8)

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """Y (…, t, e) in the dtype of q."""
        return operator.product(problem.shared_by(v), v)


def unserved(p: Problem, v: Tensor) -> str | None:
    """Why the kernel cannot serve a product; looks at no entry of any tensor."""
    if loaded.module is None:
        return loaded.reason
    if p.q.device.type != "cpu":
        return "it runs on the CPU"
    if type(p.score) is not Dot:
        return f"score is {type(p.score).__name__}, not the dot product"
    if p.q.dtype not in describing.FLOATS:
        return f"dtype is {p.q.dtype}"
    if not (p.q.numel() and p.k.numel() and v.numel()):
        return "a dimension is empty"
    if max(p.q.shape[-1], v.shape[-1]) > WIDEST:
        return f"d={p.q.shape[-1]} or e={v.shape[-1]} is above {WIDEST}"
    lead = p.geometry.lead
    if len(lead) > AXES:
        return f"{len(lead)} leading axes are more than {AXES}"
    if v.ndim - 2 > len(lead):
        return "v has leading axes that the matrix does not have"
    reason = describing.unknown_mask(p.mask, p.geometry)
    reason = reason or describing.unknown_bias(p.bias, p.geometry)
    if reason is not None:
        return reason
    if recording():
        return "a trace or an ONNX export records PyTorch's own operations only"
    if transformed():
        return "torch.func has no rule for it"
    given = (*p.tensors(), v)
    if forward_mode(given):
        return "it has no forward-mode derivative"
    if opaque(given):
        for rule in (p.mask, p.bias):
            if rule is not None and not rule.remade():
                return "the parts of a rule do not make it again"
    return None


_quick = getattr(loaded.module, "quick", None)


def quick(q: Any, k: Any, v: Any, scale: float | None, mask: Tensor | bool | None) -> Tensor | None:
    """The shortest way to the kernel, for calls whose work is less than describing them.

    Y (b, h, t, e) for float32 q (b, h, t, d), k (b, g, s, d) and v (b, g, s, e), a mask (True is
    causal) and a scale. Plain and causal calls with gradients go to PyTorch, whose autograd is C++.
    Everything else is None, and takes the long way.
    """
    if _quick is None or torch.compiler.is_compiling() or torch._C._is_tracing():
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
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _with_gradients(q, k, v, scale, mask)
    try:
        shape, width = q.shape, v.shape[-1]
        y = torch.empty_like(q) if width == shape[3] else q.new_empty((*shape[:3], width))
    except RuntimeError:  # nested, or of MKLDNN
        return None
    scale = 1 / math.sqrt(shape[3]) if scale is None and shape[3] else scale
    return y if _quick(q, k, v, y, scale, mask, torch.get_num_threads()) else None


def _with_gradients(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, mask: Tensor | bool | None
) -> Tensor | None:
    if q.is_nested or k.is_nested or v.is_nested:
        return None
    shape = q.shape
    if isinstance(mask, Tensor) or not (k.shape == v.shape and shape[1] == k.shape[1]):
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
