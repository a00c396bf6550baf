"""A streaming speech encoder that may look w frames ahead sees w - 1 of them. Source: github.com/huggingface/transformers/pull/47162"""
import torch
from torch import nn
import torch.nn.functional as F
import intently as it

expect = ["window-off-by-one"]
words = "strict comparison on the right side of the window"


class StreamingAttention(nn.Module):
    def __init__(self, width, heads, window, slip):
        super().__init__()
        self.heads, self.window, self.slip = heads, window, slip
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def seen(self, t):
        left, ahead = self.window
        distance = torch.arange(t)[:, None] - torch.arange(t)[None]
        past = (distance >= 0) & (distance < left)
        future = (distance < 0) & ((-distance < ahead) if self.slip else (-distance <= ahead))
        return past | future

    def forward(self, frames):
        b, t, c = frames.shape
        q, k, v = self.qkv(frames).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.seen(t))
        return self.o(y.transpose(1, 2).reshape(b, t, c))


def make(slip):
    torch.manual_seed(8)
    return StreamingAttention(32, 2, (4, 2), slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(frames=torch.randn(2, 9, 32)), mask=it.window(3, 2))


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["frames"]
    y = x.clone(); y[:, 5] += 1
    return torch.allclose(wrong()(x)[:, 3], wrong()(y)[:, 3]) and not torch.allclose(right()(x)[:, 3], right()(y)[:, 3])
