"""A speech encoder's window of 4 frames to the right reaches 3 frames: strictly smaller where smaller or equal is meant. Source: github.com/huggingface/transformers/pull/47010"""
import torch
from torch import nn
from torch.nn import functional as F

expect = ["window-off-by-one"]
words = "the right side of the window is one frame short of the lookahead"


class StreamingAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4, left=3, right=2):
        super().__init__()
        self.fixed, self.heads, self.left, self.right = fixed, heads, left, right
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def _window(self, t):
        back = torch.arange(t)[:, None] - torch.arange(t)[None]
        past = (back >= 0) & (back < self.left)
        future = (back < 0) & ((-back <= self.right) if self.fixed else (-back < self.right))
        return past | future

    def forward(self, frames):
        b, t, c = frames.shape
        q, k, v = (p(frames).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self._window(t))
        return self.o(y.transpose(1, 2).reshape(b, t, c))


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(frames=torch.randn(2, 9, 32)), mask=it.window(2, 2))


def _make(fixed):
    torch.manual_seed(0)
    return StreamingAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    """Changing frame 5 reaches frame 3 (two frames before it) in the mended module only."""
    x = asks()["inputs"]["frames"]
    other = x.clone()
    other[:, 5] += 1
    moved = [not torch.allclose(m(x)[:, 3], m(other)[:, 3]) for m in (wrong(), right())]
    return moved == [False, True]
