"""A speech separator gives (batch, time, channels) to nn.MultiheadAttention, which takes the first axis for time. Source: github.com/JusperLee/TDANet/issues/3"""
import torch
from torch import nn

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "recordings of a batch attend to each other, frames do not"


class GlobalFrames(nn.Module):
    def __init__(self, fixed, channels=32, heads=4):
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attn = nn.MultiheadAttention(channels, heads, batch_first=fixed)

    def forward(self, frames):
        x = self.norm_in(frames)
        y = self.attn(x, x, x)[0]
        return self.norm_out(y + x)


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(frames=torch.randn(2, 9, 32)))


def _make(fixed):
    torch.manual_seed(0)
    return GlobalFrames(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    x = asks()["inputs"]["frames"]
    alone = [torch.allclose(m(x)[:1], m(x[:1]), atol=1e-5) for m in (wrong(), right())]
    return alone == [False, True]
