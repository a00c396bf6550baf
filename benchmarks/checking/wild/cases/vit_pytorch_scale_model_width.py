"""The scale is 1/√c of the model, not 1/√d of a head."""

import torch
from torch import Tensor
from torch.nn import functional as F

from wild.program import Adapter, apart, normal

meta = {
    "package": "vit-pytorch",
    "url": "https://github.com/lucidrains/vit-pytorch/issues/65",
    "kind": "mistake",
    "name": ("scale-model-width",),
    "intent": {},
    "needs": {"affected": ("vit-pytorch-0.6.5",), "mended": ("vit-pytorch-0.6.8",)},
}


def make() -> Adapter:
    """Two heads of 8 in a model of 32."""
    from vit_pytorch.vit_pytorch import Attention

    torch.manual_seed(0)
    return Adapter(Attention(32, heads=2, dim_head=8).eval(), lambda m, x: m(x))


def inputs() -> dict[str, Tensor]:
    """Patches of two images."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """The output differs from PyTorch's."""
    attend, x = make(), inputs()["x"]
    module = attend.subject
    q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in module.to_qkv(x).chunk(3, -1))
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    off = apart(attend(x=x), module.to_out(y))
    return off > 1e-4, off
