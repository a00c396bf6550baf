"""Frames lie as (b h w) f c, their context was spread as (h w b) n c: pixels read the context of another row of the batch. Source: github.com/huggingface/diffusers/pull/7268"""
import torch
from torch import nn

expect = ["batch-mixed"]
words = "the temporal layer reads the image embedding of other rows of the batch"


class TimeCrossAttention(nn.Module):
    def __init__(self, width=32, context=24, heads=4):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(context, width, bias=False)
        self.v = nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x, context):
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in (self.q(x), self.k(context), self.v(context)))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class TemporalTransformer(nn.Module):
    """Takes frames one below the other: hidden (b · f, h · w, c)."""

    def __init__(self, batch_first, frames=3):
        super().__init__()
        self.frames, self.batch_first = frames, batch_first
        self.norm = nn.LayerNorm(32)
        self.attend = TimeCrossAttention()

    def forward(self, hidden, context):
        pixels = hidden.shape[1]
        b = hidden.shape[0] // self.frames
        if self.batch_first:
            spread = context[:, None].expand(b, pixels, *context.shape[1:])
        else:
            spread = context[None].expand(pixels, b, *context.shape[1:])
        spread = spread.reshape(b * pixels, *context.shape[1:])
        x = hidden.view(b, self.frames, pixels, -1).transpose(1, 2).reshape(b * pixels, self.frames, -1)
        x = x + self.attend(self.norm(x), spread)
        return x.view(b, pixels, self.frames, -1).transpose(1, 2).reshape(hidden.shape)


def _inputs():
    torch.manual_seed(8)
    return dict(hidden=torch.randn(6, 4, 32), context=torch.randn(2, 5, 24))


def asks():
    return dict(inputs=_inputs())


def _build(batch_first):
    torch.manual_seed(9)
    return TemporalTransformer(batch_first).eval()


def wrong():
    return _build(False)


def right():
    return _build(True)


def proof():
    x = _inputs()
    y = dict(x, context=torch.stack([x["context"][0], torch.randn(5, 24)]))
    moved = lambda m: (m(**x) - m(**y))[:3].abs().max()
    return bool(moved(wrong()) > 1e-3 and moved(right()) < 1e-6)
