"""Absorbed latent attention scales by the width of what is multiplied (latent + rope), not by that of the heads it stands for (nope + rope). Source: github.com/ollama/ollama/pull/13893"""
import torch
from torch import nn

expect = ["other-scale"]
words = "1/sqrt(latent + rope) for 1/sqrt(nope + rope)"


class AbsorbedAttention(nn.Module):
    def __init__(self, fixed, width=32, heads=4, nope=12, rope=4, latent=24, v=8):
        super().__init__()
        self.heads, self.nope, self.rope, self.latent = heads, nope, rope, latent
        self.q = nn.Linear(width, heads * (nope + rope), bias=False)
        self.down = nn.Linear(width, latent + rope, bias=False)
        self.k_up = nn.Parameter(torch.randn(heads, nope, latent) * latent ** -0.5)
        self.v_up = nn.Parameter(torch.randn(heads, latent, v) * latent ** -0.5)
        self.out = nn.Linear(heads * v, width, bias=False)
        self.scale = (nope + rope if fixed else latent + rope) ** -0.5

    def _rotate(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)

    def forward(self, hidden):
        b, t, _ = hidden.shape
        q = self.q(hidden).view(b, t, self.heads, -1).transpose(1, 2)
        plain, turned = q.split((self.nope, self.rope), -1)
        low, shared = self.down(hidden).split((self.latent, self.rope), -1)
        q = torch.cat((torch.einsum("bhtn,hnl->bhtl", plain, self.k_up), self._rotate(turned)), -1)
        k = torch.cat((low, self._rotate(shared)), -1).unsqueeze(1)
        z = q @ k.transpose(-2, -1) * self.scale
        z = z.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        y = torch.einsum("bhts,bsl,hlv->bthv", z.softmax(-1), low, self.v_up)
        return self.out(y.flatten(2))


def asks():
    import intently as it
    torch.manual_seed(1)
    return dict(inputs=dict(hidden=torch.randn(2, 7, 32)), mask=it.causal(), scale=16 ** -0.5)


def _make(fixed):
    torch.manual_seed(0)
    return AbsorbedAttention(fixed).eval()


def wrong():
    return _make(False)


def right():
    return _make(True)


def proof():
    a = asks()["inputs"]
    return not torch.allclose(wrong()(**a), right()(**a), atol=1e-3)
