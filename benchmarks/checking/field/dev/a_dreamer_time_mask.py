"""Attention over time in a video tokenizer should be causal, and causal=True is never passed on to the function that attends. Source: github.com/lucidrains/dreamer4/issues/2"""
import torch
import torch.nn as nn
from einops import rearrange
import intently as it

expect = ["mask-missing"]
words = "frames attend to later frames"


def attend(q, k, v, causal=False):
    z = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
    if causal:
        i, j = z.shape[-2:]
        z = z.masked_fill(torch.ones(i, j, dtype=torch.bool).triu(j - i + 1), -torch.finfo(z.dtype).max)
    return torch.einsum("b h i j, b h j d -> b h i d", z.softmax(-1), v)


class TimeAttention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def mix(self, q, k, v):
        return attend(q, k, v)

    def forward(self, video):
        """video (b, time, places, width)"""
        b = len(video)
        x = rearrange(video, "b t n d -> (b n) t d")
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (rearrange(a, "b t (h d) -> b h t d", h=self.heads) for a in (q, k, v))
        y = rearrange(self.mix(q, k, v), "b h t d -> b t (h d)")
        return video + rearrange(self.to_out(y), "(b n) t d -> b t n d", b=b)


class TimeAttentionMended(TimeAttention):
    def mix(self, q, k, v):
        return attend(q, k, v, causal=True)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(video=torch.randn(2, 6, 3, 32)), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return TimeAttention().eval()


def right():
    torch.manual_seed(0)
    return TimeAttentionMended().eval()


def proof():
    i = asks()["inputs"]
    return not torch.allclose(wrong()(**i), right()(**i), atol=1e-5)
