"""The shortest way to the kernel, for calls whose work is less than describing them.

Four axes, float32, no gradients, nothing beside a causal or a boolean mask and a scale: the tensors
go to the module as they are. Everything else is None, and takes the long way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from intently.kernels.native.loading import loaded

_quick = getattr(loaded.module, "quick", None)


def product(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, mask: Tensor | bool | None
) -> Tensor | None:
    """Y (b, h, t, e) for q (b, h, t, d), k (b, g, s, d) and v (b, g, s, e); mask True is causal."""
    if _quick is None or torch.compiler.is_compiling():
        return None
    if not (type(q) is type(k) is type(v) is Tensor and q.dtype is k.dtype is v.dtype):
        return None
    shape = q.shape
    if q.dtype is not torch.float32 or len(shape) != 4 or q.device.type != "cpu":
        return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return None
    if (
        torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
        or _functorch.maybe_current_level() is not None
    ):
        return None
    width = v.shape[-1]
    y = torch.empty_like(q) if width == shape[3] else q.new_empty((*shape[:3], width))
    scale = 1 / math.sqrt(shape[3]) if scale is None and shape[3] else scale
    return y if _quick(q, k, v, y, scale, mask, torch.get_num_threads()) else None
