"""The layer hands the kernel a softmax scale of 0.5, whatever the width of a head is. Source: github.com/BobMcDear/attorch/issues/14"""
import torch
from torch import nn
import intently as it

expect = ["other-scale"]
words = "a hardcoded scale of 0.5, right only for heads of width 4"


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim=64, num_heads=2, causal=True, scale=None):
        super().__init__()
        self.num_heads, self.causal, self.scale = num_heads, causal, scale or (embed_dim // num_heads) ** -0.5
        self.in_proj, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def extract_heads(self, x):
        b, t, c = x.shape
        return x.view(b, t, self.num_heads, c // self.num_heads).transpose(1, 2)

    def forward(self, x):
        q, k, v = map(self.extract_heads, self.in_proj(x).chunk(3, dim=-1))
        z = self.scale * (q @ k.transpose(-2, -1))
        if self.causal:
            t = x.shape[1]
            z = z.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        y = torch.softmax(z, dim=-1) @ v
        return self.out_proj(y.transpose(1, 2).reshape(x.shape))


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 6, 64)), mask=it.causal())


def wrong():
    torch.manual_seed(1)
    return MultiheadAttention(scale=0.5).eval()


def right():
    torch.manual_seed(1)
    return MultiheadAttention().eval()


def proof():
    i = asks()["inputs"]
    m = nn.MultiheadAttention(64, 2, batch_first=True).eval()
    r = right()
    with torch.no_grad():
        m.in_proj_weight.copy_(r.in_proj.weight), m.in_proj_bias.copy_(r.in_proj.bias)
        m.out_proj.weight.copy_(r.out_proj.weight), m.out_proj.bias.copy_(r.out_proj.bias)
        y = m(i["x"], i["x"], i["x"], attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(1))[0]
        return ((wrong()(**i) - y).abs().max().item() > 1e-3 and (r(**i) - y).abs().max().item() < 1e-5)
