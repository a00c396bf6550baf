"""Attentional pooling of video frames: a learned query also attends to the zero frames that fill up a batch. Source: github.com/LAION-AI/temporal-embedding-aggregation/pull/14"""
import torch
from torch import nn

expect = ["padding-attended"]
words = "no mask for zero frames: they take weight, and their keys and values are the biases"


class FramePooling(nn.Module):
    def __init__(self, fixed, width=32, heads=4, queries=1):
        super().__init__()
        self.fixed, self.heads = fixed, heads
        self.query = nn.Parameter(torch.randn(queries, width))
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, frames, lengths):
        b, t, _ = frames.shape
        q = self.to_q(self.query).expand(b, -1, -1)
        k, v = self.to_kv(self.norm(frames)).chunk(2, -1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        z = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k)
        if self.fixed:
            empty = torch.arange(t, device=frames.device) >= lengths[:, None]
            z = z.masked_fill(empty[:, None, None], torch.finfo(z.dtype).min)
        y = torch.einsum("bhij,bhjd->bhid", z.softmax(-1), v)
        return self.to_out(y.transpose(1, 2).flatten(2))


def asks():
    import intently as it
    torch.manual_seed(1)
    lengths = torch.tensor([8, 5])
    frames = torch.randn(2, 8, 32)
    frames[1, 5:] = 0
    return dict(inputs=dict(frames=frames, lengths=lengths), mask=it.padding(lengths))


def _make(fixed):
    torch.manual_seed(0)
    return FramePooling(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    """A clip alone and beside a longer one."""
    a = asks()["inputs"]
    short = dict(frames=a["frames"][1:, :5], lengths=a["lengths"][1:])
    same = [torch.allclose(m(**a)[1:], m(**short), atol=1e-5) for m in (wrong(), right())]
    return same == [False, True]
