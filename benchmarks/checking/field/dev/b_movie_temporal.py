"""A video block gives (batch, frames, width) to nn.MultiheadAttention, whose default is batch_first=False. Source: github.com/kyegomez/movie-gen/issues/8"""
import torch
from torch import nn

expect = ["batch-and-sequence-exchanged", "batch-mixed"]
words = "attention runs over the batch because batch_first is left False"


def asks():
    return dict(inputs=dict(x=torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(5))))


class VideoBlock(nn.Module):
    def __init__(self, dim=32, heads=4, **options):
        super().__init__()
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, **options)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        u = self.before(x)
        y, _ = self.attn(u, u, u)
        x = x + y
        return x + self.mlp(self.after(x))


def _make(**options):
    torch.manual_seed(0)
    return VideoBlock(**options).eval()


def wrong():
    return _make()


def right():
    return _make(batch_first=True)


def proof():
    x = asks()["inputs"]["x"]
    w, r = wrong(), right()
    other = torch.cat([x[:1], x[1:].flip(-1)])
    return (w(x)[0] - w(other)[0]).abs().max().item() > 1e-2 and (r(x)[0] - r(other)[0]).abs().max().item() < 1e-6


if __name__ == "__main__":
    print(proof())
