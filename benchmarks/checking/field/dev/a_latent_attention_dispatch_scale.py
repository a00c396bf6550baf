"""The dispatched attention of DeepSeek-V2 calls the kernel without softmax_scale, so YaRN's factor mscale² is lost. Source: github.com/InternLM/xtuner/pull/873"""
import math
import torch
from torch import nn
import torch.nn.functional as F
import intently as it

expect = ["other-scale"]
words = "scores are scaled by 1/sqrt(d) where the model's scale is mscale²/sqrt(d)"
M = 0.1 * 0.707 * math.log(40) + 1.0
SCALE = 24 ** -0.5 * M * M


def asks():
    torch.manual_seed(3)
    return dict(inputs=dict(hidden=torch.randn(2, 7, 48)), mask=it.causal(), scale=SCALE)


def turn(x, base=10000.0):
    t, d = x.shape[-2:]
    angle = torch.outer(torch.arange(t).float(), base ** (-torch.arange(0, d, 2) / d))
    angle = torch.cat([angle, angle], -1)
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


class LatentAttention(nn.Module):
    def __init__(self, width=48, heads=2, plain=16, rotary=8, value=16, rank=20):
        super().__init__()
        self.heads, self.plain, self.rotary, self.value, self.rank = heads, plain, rotary, value, rank
        self.softmax_scale = SCALE
        self.q_proj = nn.Linear(width, heads * (plain + rotary), bias=False)
        self.kv_a_proj = nn.Linear(width, rank + rotary, bias=False)
        self.kv_a_norm = nn.RMSNorm(rank, eps=1e-6)
        self.kv_b_proj = nn.Linear(rank, heads * (plain + value), bias=False)
        self.o_proj = nn.Linear(heads * value, width, bias=False)

    def kernel(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, hidden):
        b, t, _ = hidden.shape
        q = self.q_proj(hidden).view(b, t, self.heads, -1).transpose(1, 2)
        latent, shared = self.kv_a_proj(hidden).split([self.rank, self.rotary], -1)
        kv = self.kv_b_proj(self.kv_a_norm(latent)).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = kv.split([self.plain, self.value], -1)
        q = torch.cat([q[..., :self.plain], turn(q[..., self.plain:])], -1)
        k = torch.cat([k, turn(shared[:, None]).expand(-1, self.heads, -1, -1)], -1)
        return self.o_proj(self.kernel(q, k, v).transpose(1, 2).flatten(2))


class LatentAttentionMended(LatentAttention):
    def kernel(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale)


def wrong():
    torch.manual_seed(0)
    return LatentAttention().eval()


def right():
    torch.manual_seed(0)
    return LatentAttentionMended().eval()


def proof():
    x = asks()["inputs"]
    return bool((wrong()(**x) - right()(**x)).abs().max() > 1e-3)
