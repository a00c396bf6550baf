"""The attention of a U-Net takes the softmax over axis i of (b, i, j, h): over queries."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wild.program import Adapter, apart, loaded, normal, stand_in

meta = {
    "package": "labml-nn",
    "url": "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",
    "kind": "mistake",
    "name": ("softmax-over-queries",),
    "intent": {},
    "needs": {"affected": ("labml-0.4.126",)},
}


def make() -> Adapter:
    """Two heads over the pixels of an image."""
    stand_in("labml", "labml_helpers", "labml_helpers.module")
    stand_in("labml_helpers.module", Module=nn.Module)
    einsum = torch.einsum
    # newer releases of PyTorch return other strides, which the package's view() refuses
    torch.einsum = lambda *args: einsum(*args).contiguous()
    library = loaded("labml_nn/diffusion/ddpm/unet.py")
    torch.manual_seed(0)
    return Adapter(library.AttentionBlock(32, n_heads=2, d_k=8).eval(), lambda m, x: m(x))


def inputs() -> dict[str, Tensor]:
    """Two images of 2 × 3."""
    return {"x": normal(2, 32, 2, 3)}


def wrong() -> tuple[bool, float]:
    """The block differs from the same with the softmax over keys."""
    attend, x = make(), inputs()["x"]
    block = attend.subject
    rows = x.flatten(2).mT
    q, k, v = block.projection(rows).view(2, -1, 2, 24).transpose(1, 2).chunk(3, -1)
    y = F.scaled_dot_product_attention(q, k, v, scale=block.scale)
    y = block.output(y.transpose(1, 2).reshape(2, -1, 16)).mT.reshape(x.shape)
    off = apart(attend(x=x) - x, y)
    return off > 1e-3, off
