"""Fastformer pools queries with a softmax over the last axis of (b, t, h): over heads."""

from typing import Optional

import torch
from torch import Tensor

from wild.program import Adapter, apart, hollow, normal, stand_in

meta = {
    "package": "pytorch-widedeep",
    "url": "https://github.com/jrzaurin/pytorch-widedeep/issues/110",
    "kind": "mistake",
    "name": ("softmax-over-heads",),
    "intent": {},
    "needs": {"affected": ("widedeep-1.2.0",), "mended": ("widedeep-1.2.1",)},
}


def make() -> Adapter:
    """Four heads of 8."""
    root = "pytorch_widedeep"
    inner = ("models", "models.tabular", "models.tabular.transformers")
    hollow(root, *(f"{root}.{x}" for x in inner))
    stand_in(f"{root}.wdtypes", Tensor=Tensor, Optional=Optional)
    stand_in(f"{root}.models._get_activation_fn")
    from pytorch_widedeep.models.tabular.transformers._attention_layers import AdditiveAttention

    torch.manual_seed(0)
    module = AdditiveAttention(32, 4, True, 0.0, False)
    return Adapter(module.eval(), lambda m, x: m(x))


def inputs() -> dict[str, Tensor]:
    """Seven columns of a table."""
    return {"x": normal(2, 7, 32)}


def wrong() -> tuple[bool, float]:
    """The weights of a head do not sum to 1 over positions."""
    attend = make()
    attend(**inputs())
    sums = attend.subject.attn_weights[0].sum(-1)
    off = apart(sums, torch.ones_like(sums))
    return off > 1e-3, off
