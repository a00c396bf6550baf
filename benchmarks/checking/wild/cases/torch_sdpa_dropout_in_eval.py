"""scaled_dot_product_attention drops out whatever the mode: the caller has to ask."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wild.program import Adapter, apart, mended, normal

meta = {
    "package": "torch",
    "url": "https://github.com/pytorch/pytorch/issues/124464",
    "kind": "mistake",
    "name": ("dropout-in-eval",),
    "intent": {},
    "needs": {"affected": (), "mended": ()},
}


class Layer(nn.Module):
    """Self-attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        p = 0.2 if self.training or not mended() else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return y.transpose(1, 2).reshape(b, t, c)


def make() -> Adapter:
    """The layer in evaluation mode."""
    torch.manual_seed(0)
    return Adapter(Layer().eval(), lambda m, x: m(x))


def inputs() -> dict[str, Tensor]:
    """Two sequences."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """Two equal calls differ."""
    attend, given = make(), inputs()
    off = apart(attend(**given), attend(**given))
    return off > 1e-6, off
