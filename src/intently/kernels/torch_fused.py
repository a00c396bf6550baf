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
            return f"bias has dtype {p.bias.dtype}, q has {p.q.dtype}"
        if p.k.shape[:-2] != v.shape[:-2]:
            return "k and v have different leading axes"
        return None if self._fuses(p, v) else "PyTorch has no fused kernel for this call"

    def _fuses(self, p: Problem, v: Tensor) -> bool:
        q, k, v = (_four(x, p, i > 0) for i, x in enumerate((p.q, p.k, v)))
        mask = None
        if not _knows_mask(p):
            mask = q.new_zeros(()).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        choice = torch._fused_sdp_choice(  # pyright: ignore[reportPrivateImportUsage]
            q, k, v, mask, p.dropout, mask is None and p.is_causal(), scale=float(p.scale),
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return choice > 0

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes beside the inputs: the result, its lse, and the mask where it is written out."""
        p = problem
        rows = math.prod(p.geometry.shape[:-1])
        written = 0
        if not _knows_mask(p) and p.mask is not None:
            first = torch.arange(1, device=p.q.device)
            lead = p.mask.allow(p.geometry, first, first).shape[:-2]
            lead = lead if p.bias is None else torch.broadcast_shapes(lead, p.bias.shape[:-2])
            written = math.prod(lead) * p.geometry.t * p.geometry.s * (1 + p.q.element_size())
        return rows * (v.shape[-1] * p.q.element_size() + 4) + written

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """Y (…, t, e) in the dtype of q."""
        p = problem
        q = _four(p.q, p, False)
        k, v = (_four(p.without_unseen(x), p, True) for x in (p.k, v))
        allow = None if _knows_mask(p) else p.allow()
        mask = allow if p.bias is None else _bias(p, allow)
        y = F.scaled_dot_product_attention(
            q, k, v, None if mask is None else _four_mask(mask, p), p.dropout,
            mask is None and p.is_causal(), scale=float(p.scale),
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        if mask is not None and y.device.type != "cpu":
            some = mask if mask.dtype is torch.bool else mask != -math.inf
            y = torch.where(_four_mask(some, p).any(-1, keepdim=True), y, 0)
        g = p.geometry
        return y if len(g.lead) == 2 else y.reshape(*g.lead, g.t, v.shape[-1])


def _knows_mask(p: Problem) -> bool:
    """Whether the kernel needs no written mask: there is none, or plain causal without a bias."""
    return p.bias is None and (p.mask is None or p.is_causal())


def _four(x: Tensor, p: Problem, keys: bool) -> Tensor:
    """View (…, h, t, d) as the 4-D tensor PyTorch fuses; leading axes are flattened into b."""
    lead = p.geometry.lead
    heads = lead[-1] if lead else 1
    if keys and p.groups > 1:
        heads = x.shape[-3]
    if x.ndim != 4 or tuple(x.shape[:2]) != (*lead[:-1], heads):
        x = x.expand(*lead[:-1], heads, *x.shape[-2:])
        x = x.reshape(math.prod(lead[:-1]), heads, *x.shape[-2:])
    return x if x.stride(-1) == 1 else x.contiguous()


def _bias(p: Problem, allow: Tensor | None) -> Tensor:
    assert p.bias is not None
    return p.bias if allow is None else torch.where(allow, p.bias, -math.inf)


def _four_mask(mask: Tensor, p: Problem) -> Tensor:
    """The same view of a mask or bias: (b or 1, h or 1, t, s)."""
    g = p.geometry
    mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    mask = mask.expand(*mask.shape[:-2], g.t, g.s)
    if len(g.lead) > 2 and any(n > 1 for n in mask.shape[:-3]):
        mask = mask.expand(*g.lead[:-1], *mask.shape[-3:])
    return mask.flatten(0, -4)
