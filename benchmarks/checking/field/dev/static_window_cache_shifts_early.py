"""The static cache of a sliding-window layer shifts as soon as the text is as long as the window, while its last slot is still free: the first key is lost and an empty slot stays. Source: github.com/huggingface/transformers/issues/37574"""
import intently as it
import torch
from torch import nn

expect = ["cache-rolled-early", "cache-overwritten", "cached-step-differs"]
words = "from the step that fills the window on, the oldest key of the window is gone and a slot of zeros takes part"

WINDOW, C, HEADS = 4, 32, 2


def asks():
    return dict(inputs=dict(x=torch.randn(2, 8, C)), mask=it.window(WINDOW - 1, 0))


class WindowCache:
    def __init__(self, batch, heads, width, shift_from):
        self.k, self.v = (torch.zeros(batch, heads, WINDOW, width) for _ in range(2))
        self.shift_from = shift_from

    def update(self, k, v, position):
        """Writes one key and value; returns the slots and how many of them are in use."""
        slot = min(position, WINDOW - 1)
        if position >= self.shift_from:
            self.k, self.v = self.k.roll(-1, 2), self.v.roll(-1, 2)
        at = torch.tensor([slot])
        self.k, self.v = self.k.index_copy(2, at, k), self.v.index_copy(2, at, v)
        return self.k, self.v, slot + 1


class WindowLayer(nn.Module):
    """Reads a text as a server does, token by token."""

    def __init__(self, shift_from):
        super().__init__()
        self.shift_from = shift_from
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x):
        b, t, _ = x.shape
        cache = WindowCache(b, HEADS, C // HEADS, self.shift_from)
        rows = []
        for i in range(t):
            q, k, v = self.qkv(x[:, i:i + 1]).view(b, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            keys, values, used = cache.update(k, v, i)
            z = q @ keys.mT / (C // HEADS) ** 0.5
            z = z.masked_fill(torch.arange(WINDOW) >= used, float("-inf"))
            rows.append((z.softmax(-1) @ values).transpose(1, 2).reshape(b, 1, C))
        return self.out(torch.cat(rows, 1))


def make(shift_from):
    torch.manual_seed(5)
    return WindowLayer(shift_from).eval()


def wrong():
    return make(WINDOW - 1)


def right():
    return make(WINDOW)


def proof():
    x = torch.randn(2, 8, C)
    m = right()
    q, k, v = m.qkv(x).view(2, 8, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    seen = torch.ones(8, 8, dtype=torch.bool).tril().triu(1 - WINDOW)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    exact = m.out(y.transpose(1, 2).reshape(2, 8, C))
    off = (wrong()(x) - exact).abs().amax((0, 2))
    return (m(x) - exact).abs().max().item() < 1e-5 and off[:3].max().item() < 1e-5 and off[3].item() > 1e-3
