"""The mask does not reach the softmax: only outputs of padded frames are set to zero afterwards. Source: github.com/vllm-project/vllm-omni/pull/5704"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["padding-attended"]
words = "frames attend to padding; the mask only zeroes rows of the output"


class FrameAttention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.Linear(width, width)

    def shown(self, keep):
        return None

    def forward(self, x, keep):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.shown(keep))
        y = self.to_out(y.transpose(1, 2).reshape(b, t, c))
        return y.masked_fill(~keep.unsqueeze(-1), 0.0)


class MendedAttention(FrameAttention):
    def shown(self, keep):
        return keep[:, None, None, :]


class DiTBlock(nn.Module):
    """A block of a diffusion transformer over mel frames, modulated by the time embedding."""

    def __init__(self, attention, width=32):
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.attention = attention(width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x, time, keep):
        s1, m1, g1, s2, m2, g2 = self.modulation(F.silu(time))[:, None].chunk(6, dim=-1)
        x = x + g1 * self.attention(self.norm_1(x) * (1 + m1) + s1, keep)
        return x + g2 * self.feed(self.norm_2(x) * (1 + m2) + s2)


_keep = torch.arange(8) < torch.tensor([8, 5])[:, None]


def asks():
    import intently as it

    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 8, 32), time=torch.randn(2, 32), keep=_keep.clone()), mask=it.padding(_keep))


def wrong():
    torch.manual_seed(0)
    return DiTBlock(FrameAttention).eval()


def right():
    torch.manual_seed(0)
    return DiTBlock(MendedAttention).eval()


def proof():
    x = asks()["inputs"]
    a, b = wrong()(**x), right()(**x)
    return torch.allclose(a[0], b[0], atol=1e-5) and not torch.allclose(a[1, :5], b[1, :5], atol=1e-3)
