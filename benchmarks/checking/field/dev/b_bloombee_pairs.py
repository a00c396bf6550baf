"""A distributed server rotates neighbouring numbers of a head where Llama's checkpoints pair halves. Source: github.com/ai-decentralized/BloomBee/pull/15"""
import torch
from torch import nn

expect = ["rotary-pairs"]
words = "pairs (0, 1), (2, 3), … for (0, d/2), (1, d/2 + 1), …"


class LlamaAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4, groups=2):
        super().__init__()
        self.fixed, self.heads, self.groups, self.d = fixed, heads, groups, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, groups * self.d, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(width, width, bias=False)

    def _rotate(self, x):
        half = self.d // 2
        angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
        if self.fixed:
            a, b = x[..., :half], x[..., half:]
        else:
            a, b = x[..., 0::2], x[..., 1::2]
        parts = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
        return torch.cat(parts, -1) if self.fixed else torch.stack(parts, -1).flatten(-2)

    def forward(self, hidden):
        b, t, c = hidden.shape
        q = self._rotate(self.q_proj(hidden).view(b, t, self.heads, self.d).transpose(1, 2))
        k = self._rotate(self.k_proj(hidden).view(b, t, self.groups, self.d).transpose(1, 2))
        v = self.v_proj(hidden).view(b, t, self.groups, self.d).transpose(1, 2)
        k, v = (x.repeat_interleave(self.heads // self.groups, 1) for x in (k, v))
        z = q @ k.transpose(-2, -1) / self.d ** 0.5
        z = z + torch.full((t, t), float("-inf")).triu(1)
        return self.o_proj((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(hidden=torch.randn(2, 7, 32)), mask=it.causal(), like=right())


def _make(fixed):
    torch.manual_seed(0)
    return LlamaAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-2)
