"""A tutorial GPT repeats each rotary frequency for neighbours (a, a, b, b) and rotates halves, so the two members of a pair turn by different angles. Source: github.com/raiyanyahya/how-to-train-your-gpt/issues/6"""
import math
import torch
from torch import nn

expect = ["rotary-pairs", "rotation-other"]
words = "angles belong to pairs (0, 1), (2, 3), …, the rotation to pairs (0, d/2), …: scores no longer depend on relative positions"


class Rotation(nn.Module):
    def __init__(self, size, longest=32, base=10000.0):
        super().__init__()
        rate = 1.0 / base ** (torch.arange(0, size, 2).float() / size)
        angle = torch.outer(torch.arange(longest).float(), rate).repeat_interleave(2, dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def turned(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)

    def forward(self, x):
        n = x.shape[-2]
        return x * self.cos[:n] + self.turned(x) * self.sin[:n]


class RotationMended(Rotation):
    def turned(self, x):
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gain


class Attention(nn.Module):
    def __init__(self, rotation, width, heads, p):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rope = rotation(self.size)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        q, k = self.rope(q), self.rope(k)
        z = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        z = z.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        y = self.drop(z.softmax(-1)) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, rotation, width, heads, p):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(rotation, width, heads, p)
        self.up, self.gate, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class SmallGPT(nn.Module):
    def __init__(self, rotation, words=24, width=32, heads=2, depth=2, p=0.1):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(rotation, width, heads, p) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def asks():
    import intently as it
    return dict(inputs=dict(ids=torch.randint(0, 24, (2, 8))), mask=it.causal())


def wrong():
    torch.manual_seed(0)
    return SmallGPT(Rotation).eval()


def right():
    torch.manual_seed(0)
    return SmallGPT(RotationMended).eval()


def proof():
    def score(rotation, i, j):
        torch.manual_seed(1)
        q, k = torch.randn(1, 16), torch.randn(1, 16)
        rope = rotation(16)
        place = lambda x, n: rope(x.expand(n + 1, 16))[n]
        return float(place(q, i) @ place(k, j))
    relative = lambda r: abs(score(r, 3, 1) - score(r, 9, 7)) < 1e-4
    return relative(RotationMended) and not relative(Rotation)


if __name__ == "__main__":
    print(proof())
