"""A flash-like function reaches window_size[0] keys back, inclusive, and is given the number of keys of the window. Source: github.com/huggingface/transformers/issues/39408"""
import torch
import torch.nn as nn
import intently as it

expect = ["window-off-by-one"]
words = "a sliding window of 3 reaches 3 keys back and so holds 4"


def flash_like(q, k, v, causal, window_size):
    """q, k, v (b, t, h, d); keys from i - left to i + right are seen, both included."""
    left, right = window_size
    gap = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])[None]
    seen = (gap <= left) & (gap >= -right)
    if causal:
        seen = seen & (gap >= 0)
    z = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhts,bshd->bthd", z.masked_fill(~seen, -torch.inf).softmax(-1), v)


class WindowedAttention(nn.Module):
    def __init__(self, reach, wide=64, heads=4):
        super().__init__()
        self.reach, self.heads = reach, heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(wide, wide) for _ in range(4))

    def forward(self, hidden):
        b, t, c = hidden.shape
        q, k, v = (f(hidden).view(b, t, self.heads, -1) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = flash_like(q, k, v, causal=True, window_size=(self.reach, self.reach))
        return self.o_proj(y.reshape(b, t, c))


SLIDING = 3


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(hidden=torch.randn(2, 8, 64)), mask=it.window(SLIDING - 1, 0))


def make(reach):
    torch.manual_seed(0)
    return WindowedAttention(reach).eval()


def wrong():
    return make(SLIDING)


def right():
    return make(SLIDING - 1)


def proof():
    a = asks()["inputs"]["hidden"]
    b = a.clone()
    b[:, 0] += 1
    bad = (wrong()(a) - wrong()(b)).abs().amax((0, 2)) > 1e-6
    good = (right()(a) - right()(b)).abs().amax((0, 2)) > 1e-6
    return bad.tolist() == [True] * 4 + [False] * 4 and good.tolist() == [True] * 3 + [False] * 5
