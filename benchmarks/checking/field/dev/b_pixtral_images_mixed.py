"""The block-diagonal mask over the patches of several images is built, but the transformer block does not pass it on to its attention. Source: github.com/mistralai/mistral-inference/pull/218"""
import torch
from torch import nn
from torch.nn import functional as F

import intently as it

expect = ["mask-missing", "mask-other"]
words = "patches of one image attend to those of the other, the block drops mask="

IDS = torch.tensor([[0] * 5 + [1] * 4])


def asks():
    return dict(inputs=dict(patches=torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(4)), image_ids=IDS), mask=it.segments(IDS))


class Attention(nn.Module):
    def __init__(self, c, h):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(c, c, bias=False) for _ in range(4))
        self.h = h

    def forward(self, x, mask=None):
        q, k, v = (w(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, c, h, passes):
        super().__init__()
        self.attention, self.passes = Attention(c, h), passes
        self.n1, self.n2 = nn.RMSNorm(c), nn.RMSNorm(c)
        self.up, self.gate, self.down = nn.Linear(c, 2 * c), nn.Linear(c, 2 * c), nn.Linear(2 * c, c)

    def forward(self, x, mask=None):
        r = self.attention(self.n1(x), mask=mask) if self.passes else self.attention(self.n1(x))
        x = x + r
        u = self.n2(x)
        return x + self.down(F.silu(self.gate(u)) * self.up(u))


class VisionEncoder(nn.Module):
    def __init__(self, c=32, h=2, depth=2, passes=False):
        super().__init__()
        self.ln_pre = nn.RMSNorm(c)
        self.layers = nn.ModuleList(Block(c, h, passes) for _ in range(depth))

    def forward(self, patches, image_ids):
        mask = (image_ids[:, :, None] == image_ids[:, None, :])[:, None]
        x = self.ln_pre(patches)
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


def _make(passes):
    torch.manual_seed(0)
    return VisionEncoder(passes=passes).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return (wrong()(**a) - right()(**a)).abs().max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
