"""Shared key and value heads are expanded as (0, 1, 0, 1) where (0, 0, 1, 1) is defined."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wild.program import Adapter, apart, normal

meta = {
    "package": "onnx",
    "url": "https://github.com/onnx/onnx/pull/7274",
    "kind": "mistake",
    "name": ("key-heads-tiled",),
    "intent": {},
    "needs": {"affected": ("onnx-1.18.0",), "mended": ("onnx-1.23.2",)},
}


def make() -> Adapter:
    """The reference implementation of the operator, in NumPy."""
    from onnx.reference.ops import op_attention

    def run(_: None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = op_attention._compute_attention(q.numpy(), k.numpy(), v.numpy())
        return torch.from_numpy(np.asarray(made[0]))

    return Adapter(None, run)


def inputs() -> dict[str, Tensor]:
    """Four heads of queries on two of keys."""
    k, v = (normal(1, 2, 5, 8, seed=n) for n in (2, 3))
    return {"q": normal(1, 4, 5, 8), "k": k, "v": v}


def wrong() -> tuple[bool, float]:
    """The output differs from PyTorch's."""
    q, k, v = inputs().values()
    off = apart(make()(q=q, k=k, v=v), F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    return off > 1e-3, off
