"""A total window of W tokens is handed on as (W, 0), whose bounds are inclusive, so W + 1 tokens are seen. Source: github.com/NVIDIA-NeMo/Megatron-Bridge/pull/2656"""
import torch
from torch import nn

import intently as it

expect = ["window-off-by-one"]
words = "one key too far back: (W, 0) in place of (W - 1, 0)"

W = 3


def asks():
    return dict(inputs=dict(x=torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(8))), mask=it.causal() & it.window(W - 1, 0))


def _flash(q, k, v, window):
    left, ahead = window
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]
    seen = (j >= i - left) & (j <= i + ahead)
    z = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
    return z.softmax(-1) @ v


class BridgedAttention(nn.Module):
    def __init__(self, window_size, width=32, heads=4, groups=2):
        super().__init__()
        d = width // heads
        self.heads, self.groups, self.d, self.window_size = heads, groups, d, window_size
        self.linear_qkv, self.linear_proj = nn.Linear(width, (heads + 2 * groups) * d), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        n = self.heads // self.groups
        mixed = self.linear_qkv(x).view(b, t, self.groups, n + 2, self.d)
        q, k, v = mixed.split([n, 1, 1], dim=3)
        q = q.reshape(b, t, self.heads, self.d)
        k, v = (u.squeeze(3).repeat_interleave(n, dim=2) for u in (k, v))
        y = _flash(*(u.transpose(1, 2) for u in (q, k, v)), self.window_size)
        return self.linear_proj(y.transpose(1, 2).reshape(b, t, c))


def _make(window_size):
    torch.manual_seed(0)
    return BridgedAttention(window_size).eval()


def wrong():
    return _make((W, 0))


def right():
    return _make((W - 1, 0))


def proof():
    a = asks()["inputs"]
    d = (wrong()(**a) - right()(**a)).abs()
    return d[:, :W].max().item() < 1e-5 and d[:, W:].max().item() > 1e-2


if __name__ == "__main__":
    print(proof())
