"""Multi-head self-attention of an RNA folding model defines an output projection and never applies it. Source: github.com/heqin-zhu/BPfold/issues/4"""
import torch
import torch.nn as nn

expect = ["differs-from-reference", "projection-other", "output-changed"]
words = "the output projection out_w is defined and never applied"


class BiasedAttention(nn.Module):
    def __init__(self, width, heads, use_out):
        super().__init__()
        self.heads, self.d, self.use_out = heads, width // heads, use_out
        self.qkv = nn.Parameter(torch.randn(width, 3 * width) * width ** -0.5)
        self.out_w = nn.Parameter(torch.randn(width, width) * width ** -0.5)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, pair=None):
        b, t, c = x.shape
        q, k, v = (x @ self.qkv).chunk(3, -1)
        q, k, v = (a.view(b, t, self.heads, self.d).transpose(1, 2) for a in (q, k, v))
        z = q @ k.transpose(-1, -2) / self.d ** 0.5
        if pair is not None:
            z = z + pair[:, None]
        y = (self.drop(z.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, c)
        return y @ self.out_w if self.use_out else y


class Block(nn.Module):
    def __init__(self, width, heads, use_out):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = BiasedAttention(width, heads, use_out)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, pair):
        x = x + self.attn(self.n1(x), pair)
        return x + self.ff(self.n2(x))


class Folder(nn.Module):
    def __init__(self, use_out, width=32, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Embedding(6, width)
        self.blocks = nn.ModuleList(Block(width, heads, use_out) for _ in range(depth))
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, seq, pair):
        x = self.embed(seq)
        for block in self.blocks:
            x = block(x, pair)
        return self.left(x) @ self.right(x).transpose(1, 2)


def build(use_out):
    torch.manual_seed(0)
    return Folder(use_out).eval()


def asks():
    torch.manual_seed(1)
    return dict(inputs=dict(seq=torch.randint(0, 6, (2, 8)), pair=torch.randn(2, 8, 8)), like=right())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = asks()["inputs"]
    m = wrong()
    y = m(**a)
    y.sum().backward()
    return m.blocks[0].attn.out_w.grad is None and not torch.allclose(y, right()(**a), atol=1e-3)
