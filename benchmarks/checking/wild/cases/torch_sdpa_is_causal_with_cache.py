"""is_causal with a cache aligns the mask top-left: new queries see only the oldest keys."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wild.program import Adapter, apart, mended, normal

meta = {
    "package": "torch",
    "url": "https://github.com/pytorch/pytorch/issues/144858",
    "kind": "mistake",
    "name": ("mask-top-left",),
    "intent": {"mask": "causal()", "same": [{"cached": False}]},
    "needs": {"affected": (), "mended": ()},
}
Past = tuple[Tensor, Tensor]


class Layer(nn.Module):
    """Causal self-attention with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        if mended():
            from torch.nn.attention.bias import causal_lower_right

            mask = causal_lower_right(t, k.shape[2])
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c)), (k, v)


def make() -> Adapter:
    """Four positions, then two more with their cache."""

    def run(m: Layer, x: Tensor, cached: bool = True) -> Tensor:
        if not cached:
            return m(x)[0]
        first, past = m(x[:, :4])
        return torch.cat([first, m(x[:, 4:], past)[0]], 1)

    torch.manual_seed(0)
    return Adapter(Layer().eval(), run)


def inputs() -> dict[str, Tensor]:
    """Two sequences."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """Two calls with a cache differ from one without."""
    decode, x = make(), inputs()["x"]
    off = apart(decode(x=x), decode(x=x, cached=False))
    return off > 1e-3, off
