"""The shortest way to the kernel, for calls whose work is less than describing them.

Four axes, float32, nothing beside a mask and a scale: the tensors go to the module as they are.
With gradients, plain and causal calls go to PyTorch, whose autograd is C++. Everything else is
None, and takes the long way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from intently.kernels.native.loading import loaded
from intently.kernels.torch_fused import once

_quick = getattr(loaded.module, "quick", None)

SMALL = 2**20
"""Multiplications of q and k below which plain and causal calls with gradients go to PyTorch."""


def product(
    q: Any, k: Any, v: Any, scale: float | None, mask: Tensor | bool | None
) -> Tensor | None:
    """Y (b, h, t, e) for q (b, h, t, d), k (b, g, s, d) and v (b, g, s, e); mask True is causal."""
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
