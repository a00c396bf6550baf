"""Causal linear attention multiplies by the normaliser in place of dividing by it."""

import torch
from torch import Tensor

from wild.program import Adapter, normal, stand_in

meta = {
    "package": "performer-pytorch",
    "url": "https://github.com/lucidrains/performer-pytorch/issues/40",
    "kind": "mistake",
    "name": ("not-normalised",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("performer-0.11.1",), "mended": ("performer-0.11.2",)},
}


def make() -> Adapter:
    """The function for machines without CUDA; queries and keys are features already."""
    stand_in("local_attention", "axial_positional_embedding", "fast_transformers")
    stand_in("fast_transformers.causal_product")
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda

    return Adapter(None, lambda _, q, k, v: causal_linear_attention_noncuda(q, k, v))


def inputs() -> dict[str, Tensor]:
    """Positive features."""
    q, k, v = (normal(1, 2, 6, 8, seed=n) for n in (1, 2, 3))
    return {"q": q.abs() + 0.1, "k": k.abs() + 0.1, "v": v}


def wrong() -> tuple[bool, float]:
    """Values of 1 do not stay 1."""
    given = inputs()
    off = float((make()(**{**given, "v": torch.ones_like(given["v"])}) - 1).abs().max())
    return off > 1e-3, off
