"""Learned queries resample an image; their keys are position embeddings alone, without the image. Source: github.com/gordonhu608/MQT-LLaVA/pull/4"""
import torch
from torch import nn

expect = []
words = "where a query looks does not depend on the image: keys are W_k pos in place of W_k (x + pos)"

def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 9, 24)))

class Resampler(nn.Module):
    def __init__(self, width, image, heads, queries, patches, content):
        super().__init__()
        self.query = nn.Parameter(torch.randn(queries, width))
        self.pos = nn.Parameter(torch.randn(patches, width), requires_grad=False)
        self.kv_proj = nn.Linear(image, width, bias=False)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_q, self.ln_kv = nn.LayerNorm(width), nn.LayerNorm(width)
        self.content = content

    def forward(self, x):
        x = self.ln_kv(self.kv_proj(x))
        q = self.ln_q(self.query).expand(len(x), -1, -1)
        k = x + self.pos if self.content else self.pos.expand_as(x)
        return self.attn(q, k, x, need_weights=False)[0]

def wrong():
    torch.manual_seed(1)
    return Resampler(32, 24, 4, 5, 9, False).eval()

def right():
    torch.manual_seed(1)
    return Resampler(32, 24, 4, 5, 9, True).eval()

def proof():
    i = asks()["inputs"]
    return bool((wrong()(**i) - right()(**i)).abs().max() > .02)
