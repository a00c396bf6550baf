"""Angles are remembered by length alone: every step of one token is rotated as position 0."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wild.program import Adapter, apart, normal

meta = {
    "package": "rotary-embedding-torch",
    "url": "https://github.com/lucidrains/rotary-embedding-torch/issues/11",
    "kind": "mistake",
    "name": ("rotation-offset-lost",),
    "intent": {"mask": "causal()", "same": [{"cached": True}]},
    "needs": {
        "affected": ("rotary-embedding-torch-0.2.6",),
        "mended": ("rotary-embedding-torch-0.2.7",),
    },
}


class Layer(nn.Module):
    """Causal self-attention with the rotation of the library, whole or step by step."""

    def __init__(self) -> None:
        super().__init__()
        from rotary_embedding_torch import RotaryEmbedding

        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.rotary = RotaryEmbedding(dim=8)

    def heads(self, x: Tensor, offset: int) -> tuple[Tensor, ...]:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        rotate = self.rotary.rotate_queries_or_keys
        return rotate(q, offset=offset), rotate(k, offset=offset), v

    def forward(self, x: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            y = F.scaled_dot_product_attention(*self.heads(x, 0), is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))
        keys, values, out = [], [], []
        for i in range(x.shape[1]):
            q, k, v = self.heads(x[:, i : i + 1], i)
            keys.append(k)
            values.append(v)
            out.append(F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2)))
        return self.out(torch.cat(out, 2).transpose(1, 2).flatten(2))


def make() -> Adapter:
    """The layer."""
    torch.manual_seed(0)
    return Adapter(Layer().eval(), lambda m, x, cached=False: m(x, cached))


def inputs() -> dict[str, Tensor]:
    """Two sequences."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """Steps differ from the whole pass."""
    attend, x = make(), inputs()["x"]
    off = apart(attend(x=x, cached=True), attend(x=x))
    return off > 1e-3, off
