"""A diffusion transformer turns additive float masks (0 = keep, lowest = hidden) into booleans that mean keep, so it attends to padding alone. Source: github.com/nishide-dev/unturtle/pull/56"""
import torch
import torch.nn as nn
import torch.nn.functional as F
import intently as it

expect = ["mask-inverted", "padding-attended"]
words = "an additive mask is read as keep where it is not zero: exactly inverted"


def normalise(mask):
    if mask.dim() == 2:
        return mask.bool()[:, None, None]
    return mask.bool()


def normalise_mended(mask):
    if mask.dim() == 2:
        return mask.bool()[:, None, None]
    return mask >= 0 if mask.is_floating_point() else mask.bool()


class DiffusionBlock(nn.Module):
    keep = staticmethod(normalise)

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = nn.Linear(width, 3 * width)

    def forward(self, x, sigma, attention_mask):
        b, t, c = x.shape
        shift, scale, gate = self.modulate(sigma)[:, None].chunk(3, -1)
        h = self.norm(x) * (1 + scale) + shift
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in self.qkv(h).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.keep(attention_mask))
        return x + gate * self.out(y.transpose(1, 2).reshape(b, t, c))


class DiffusionBlockMended(DiffusionBlock):
    keep = staticmethod(normalise_mended)


def asks():
    torch.manual_seed(1)
    lengths = torch.tensor([5, 4])
    hidden = torch.arange(7)[None] >= lengths[:, None]
    additive = torch.zeros(2, 1, 7, 7).masked_fill(hidden[:, None, None], torch.finfo(torch.float32).min)
    return dict(inputs=dict(x=torch.randn(2, 7, 32), sigma=torch.randn(2, 32), attention_mask=additive), mask=it.padding(lengths))


def wrong():
    torch.manual_seed(0)
    return DiffusionBlock().eval()


def right():
    torch.manual_seed(0)
    return DiffusionBlockMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
