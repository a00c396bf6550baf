"""A block-diagonal causal mask object inherits to() from the block-diagonal one, which returns an object of the parent class, so moving it to a device drops causality. Source: github.com/facebookresearch/xformers/issues/1185"""
import torch
import torch.nn as nn

expect = ["mask-missing", "mask-other"]
words = "after .to() documents are kept apart and tokens see later ones"


class BlockDiagonal:
    def __init__(self, starts):
        self.starts = starts

    @classmethod
    def from_seqlens(cls, lengths):
        return cls(torch.tensor([0, *lengths]).cumsum(0))

    def block(self, n):
        return torch.zeros(n, n)

    def materialize(self, t):
        out = torch.full((t, t), float("-inf"))
        edges = self.starts.tolist()
        for a, b in zip(edges, edges[1:]):
            out[a:b, a:b] = self.block(b - a)
        return out

    def to(self, device):
        return BlockDiagonal(self.starts.to(device))


class BlockDiagonalCausal(BlockDiagonal):
    def block(self, n):
        return torch.full((n, n), float("-inf")).triu(1)


class BlockDiagonalCausalMended(BlockDiagonalCausal):
    def to(self, device):
        return type(self)(self.starts.to(device))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        z = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + mask.materialize(t)
        return self.wo((z.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Packed(nn.Module):
    def __init__(self, kind, words=40, width=32, heads=4, depth=2):
        super().__init__()
        self.kind = kind
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(depth))
        self.output = nn.Linear(width, words, bias=False)

    def forward(self, tokens, seqlens=(4, 3, 2)):
        mask = self.kind.from_seqlens(list(seqlens)).to(tokens.device)
        x = self.embed(tokens) + self.place(torch.cat([torch.arange(n) for n in seqlens]))
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x), mask)
        return self.output(x)


def build(kind):
    torch.manual_seed(0)
    return Packed(kind).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(tokens=torch.randint(0, 40, (1, 9))), mask=it.causal() & it.segments(torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])))


def wrong():
    return build(BlockDiagonalCausal)


def right():
    return build(BlockDiagonalCausalMended)


def proof():
    a = asks()["inputs"]["tokens"]
    b = a.clone()
    b[:, 3] = (b[:, 3] + 1) % 40
    return not torch.allclose(wrong()(a)[:, 0], wrong()(b)[:, 0], atol=1e-4) and torch.allclose(right()(a)[:, 0], right()(b)[:, 0], atol=1e-6)
