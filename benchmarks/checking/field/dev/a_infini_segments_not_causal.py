"""Attention over segments with a compressive memory applies no causal mask inside a segment. Source: github.com/dingo-actual/infini-transformer/issues/4"""
import torch
import torch.nn as nn
import torch.nn.functional as F

expect = ["mask-missing", "leak-later", "mask-other"]
words = "inside a segment every token sees every other one"


class CompressiveMemory(nn.Module):
    def __init__(self, causal, width=32, heads=4, segment=4):
        super().__init__()
        self.causal, self.heads, self.segment, self.d = causal, heads, segment, width // heads
        self.proj_q, self.proj_k, self.proj_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.betas = nn.Parameter(torch.randn(1, heads, 1, self.d))
        self.proj_out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        memory = torch.zeros(b, self.heads, self.d, self.d)
        z = torch.zeros(b, self.heads, self.d, 1)
        out = []
        for part in x.split(self.segment, 1):
            t = part.shape[1]
            q, k, v = (f(part).view(b, t, self.heads, self.d).transpose(1, 2) for f in (self.proj_q, self.proj_k, self.proj_v))
            sq, sk = F.elu(q) + 1, F.elu(k) + 1
            old = (sq @ memory) / (sq @ z + 1e-6)
            score = q @ k.transpose(2, 3) / self.d ** 0.5
            if self.causal:
                score = score.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
            now = score.softmax(-1) @ v
            memory = memory + sk.transpose(2, 3) @ v
            z = z + sk.sum(2)[..., None]
            gate = torch.sigmoid(self.betas)
            y = gate * old + (1 - gate) * now
            out.append(self.proj_out(y.transpose(1, 2).reshape(b, t, c)))
        return torch.cat(out, 1)


class Infini(nn.Module):
    def __init__(self, causal, width=32):
        super().__init__()
        self.attn = CompressiveMemory(causal, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x):
        y = self.attn(x)
        return self.norm(self.mlp(y) + x)


def build(causal):
    torch.manual_seed(0)
    return Infini(causal).eval()


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(x=torch.randn(2, 8, 32)), mask=it.causal())


def wrong():
    return build(False)


def right():
    return build(True)


def proof():
    a = torch.randn(2, 8, 32)
    b = a.clone()
    b[:, 3] = torch.randn(2, 32)
    return not torch.allclose(wrong()(a)[:, :3], wrong()(b)[:, :3], atol=1e-4) and torch.allclose(right()(a)[:, :3], right()(b)[:, :3], atol=1e-6)
