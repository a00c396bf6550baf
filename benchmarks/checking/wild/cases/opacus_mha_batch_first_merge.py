"""With batch_first, heads are merged by a view: their pieces land on other positions."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, normal

meta = {
    "package": "opacus",
    "url": "https://github.com/meta-pytorch/opacus/pull/825",
    "kind": "mistake",
    "name": ("merged-by-reshape",),
    "intent": {},
    "needs": {"affected": ("opacus-1.5.4",)},
}


def make() -> Adapter:
    """Self-attention of four heads."""
    from opacus.layers import DPMultiheadAttention

    torch.manual_seed(0)
    module = DPMultiheadAttention(16, 4, batch_first=True).eval()
    return Adapter(module, lambda m, x: m(x, x, x, need_weights=False)[0])


def inputs() -> dict[str, Tensor]:
    """Three sequences."""
    return {"x": normal(3, 6, 16)}


def wrong() -> tuple[bool, float]:
    """Self-attention without positions is not equivariant."""
    attend, x, order = make(), inputs()["x"], [3, 1, 5, 0, 2, 4]
    off = apart(attend(x=x[:, order]), attend(x=x)[:, order])
    return off > 1e-3, off
