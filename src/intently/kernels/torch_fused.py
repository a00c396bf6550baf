"""PyTorch's scaled_dot_product_attention, used only where it really runs a fused kernel.

PyTorch falls back to the t·s formula without a word (dropout on CPU, e ≠ d, 3-D inputs, a mask that
needs a gradient, a last stride other than 1). Here those calls are refused with the reason, so that
another kernel takes them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.kernels.problem import Problem
from intently.scores import Dot


class TorchFused:
    """y = scaled_dot_product_attention(q, k, v): memory grows with t, never with t·s."""

    name = "torch_fused"
    note = "first derivatives; no second derivatives on CPU"

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Why PyTorch's fused kernel cannot serve this call; None where it can."""
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
        if p.bias is not None and p.bias.requires_grad and torch.is_grad_enabled():
            return "bias needs a gradient"
        if p.bias is not None and p.bias.dtype != p.q.dtype:
            return f"bias has dtype {p.bias.dtype}"
        if p.k.shape[:-2] != v.shape[:-2]:
            return "k and v have different leading axes"
        return None if self._fuses(p, v) else "PyTorch has no fused kernel for this call"

    def _fuses(self, p: Problem, v: Tensor) -> bool:
        q, k, v = (_four(x, p, i > 0) for i, x in enumerate((p.q, p.k, v)))
        mask = None
        if not p.is_causal() and (p.mask is not None or p.bias is not None):
            mask = q.new_zeros(()).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        choice = torch._fused_sdp_choice(
            q, k, v, mask, p.dropout, p.is_causal(), scale=float(p.scale),
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return choice != 0

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes beside the inputs: the result, its lse, and the mask where it must be written out."""
        size = problem.q.element_size()
        rows = math.prod(problem.geometry.shape[:-1])
        mask = 0
        if not problem.is_causal() and problem.mask is not None:
            g = problem.geometry
            per_head = problem.mask.allow(g, *(torch.arange(1, device=g.device),) * 2).numel()
            mask = per_head * g.t * g.s * (1 + size)
        return rows * (v.shape[-1] * size + 4) + mask

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """Y (…, t, e) in the dtype of q."""
        p = problem
        q = _four(p.q, p, False)
        k, v = (_four(p.without_unseen(x), p, True) for x in (p.k, v))
        causal = p.is_causal()
        allow = None if causal else p.allow()
        mask = allow if p.bias is None else _bias(p, allow)
        if mask is not None:
            mask = _four_mask(mask, p)
        y = F.scaled_dot_product_attention(
            q, k, v, mask, p.dropout, causal, scale=float(p.scale),
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        if allow is not None and y.device.type != "cpu":
            y = torch.where(_four_mask(allow, p).any(-1, keepdim=True), y, 0)
        g = p.geometry
        return y if p.q.ndim == 4 else y.reshape(*g.lead, g.t, v.shape[-1])


def _four(x: Tensor, p: Problem, keys: bool) -> Tensor:
    """View (…, h, t, d) as the 4-D tensor PyTorch fuses; leading axes are flattened into b."""
    lead = p.geometry.lead
    if x.ndim == 4 and x.shape[0] == lead[0] and (keys or x.shape[1] == lead[1]):
        if not keys or x.shape[1] != 1 or lead[1] == 1 or p.groups > 1:
            return x if x.stride(-1) == 1 else x.contiguous()
    heads = lead[-1] if lead else 1
    if keys and p.groups > 1:
        heads = x.shape[-3]
    shape = (*lead[:-1], heads, *x.shape[-2:]) if lead else (1, *x.shape[-2:])
    x = x.expand(shape)
    batch = math.prod(lead[:-1])
    x = x.reshape(batch, heads, *x.shape[-2:])
    return x if x.stride(-1) == 1 else x.contiguous()


def _bias(p: Problem, allow: Tensor | None) -> Tensor:
    assert p.bias is not None
    bias = p.bias.reshape((1,) * max(0, 2 - p.bias.ndim) + tuple(p.bias.shape))
    return bias if allow is None else torch.where(allow, bias, -math.inf)


def _four_mask(mask: Tensor, p: Problem) -> Tensor:
    g = p.geometry
    if mask.ndim < 4:
        mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    if mask.ndim > 4:
        mask = mask.expand(*g.lead[:-1], *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
    return mask.expand(mask.shape[0], mask.shape[1], g.t, g.s)
