"""Rotary embedding reads the length from axis -2 of (b, t, h, d) and turns each head by its own number. Source: github.com/NVIDIA/audio-flamingo/issues/27"""
import torch
from torch import nn

expect = ["rotary-over-heads"]
words = "the rotation runs before the transpose, so heads take the place of positions"


def turn_half(x):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-b, a), -1).flatten(-2)


def rotate(freqs, t):
    length = t.shape[-2]
    f = freqs[:length]
    return t * f.cos() + turn_half(t) * f.sin()


class AudioAttention(nn.Module):
    def __init__(self, width, heads, slip):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.w_q, self.w_k, self.w_v, self.fc = (nn.Linear(width, width, bias=False) for _ in range(4))
        d = width // heads
        steps = torch.arange(64).float()[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("freqs", steps.repeat_interleave(2, -1))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.w_q, self.w_k, self.w_v))
        if self.slip:
            q, k = rotate(self.freqs, q), rotate(self.freqs, k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if not self.slip:
            q, k = rotate(self.freqs, q), rotate(self.freqs, k)
        w = torch.softmax(torch.matmul(q / q.shape[-1] ** 0.5, k.transpose(2, 3)), -1)
        return self.fc(torch.matmul(w, v).transpose(1, 2).flatten(2))


def make(slip):
    torch.manual_seed(12)
    return AudioAttention(48, 3, slip).eval()


def asks():
    torch.manual_seed(0)
    return dict(inputs=dict(x=torch.randn(2, 8, 48)), like=right())


def wrong(): return make(True)
def right(): return make(False)


def proof():
    x = asks()["inputs"]["x"]
    order = torch.randperm(8)
    w, r = wrong(), right()
    return torch.allclose(w(x[:, order]), w(x)[:, order], atol=1e-5) and not torch.allclose(r(x[:, order]), r(x)[:, order], atol=1e-3)
