"""Additive attention with coverage adds the coverage to the encoder's states in place and squashes them, so the caller's memory changes and the context is made of other values. Source: github.com/OpenNMT/OpenNMT-py/issues/867"""
import torch
from torch import nn

expect = ["input-changed", "output-changed", "scores-other"]
words = "memory_bank += linear_cover(coverage) writes into the encoder's states; coverage belongs into the score only"


class GlobalAttention(nn.Module):
    """One step of a decoder: source (b, d), memory_bank (b, s, d)."""

    def __init__(self, dim=24):
        super().__init__()
        self.linear_context = nn.Linear(dim, dim, bias=False)
        self.linear_query = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)
        self.linear_out = nn.Linear(2 * dim, dim)
        self.linear_cover = nn.Linear(1, dim, bias=False)

    def energy(self, source, memory_bank, extra=0.0):
        return self.v(torch.tanh(self.linear_query(source)[:, None] + self.linear_context(memory_bank) + extra)).squeeze(-1)

    def cover(self, source, memory_bank, coverage):
        return self.energy(source, memory_bank, self.linear_cover(coverage[..., None])), memory_bank

    def forward(self, source, memory_bank, memory_lengths, coverage):
        energy, values = self.cover(source, memory_bank, coverage)
        hidden = torch.arange(memory_bank.shape[1], device=source.device)[None] >= memory_lengths[:, None]
        align = energy.masked_fill(hidden, float("-inf")).softmax(-1)
        context = (align[:, None] @ values).squeeze(1)
        return torch.tanh(self.linear_out(torch.cat([context, source], 1))), align


class Reported(GlobalAttention):
    def cover(self, source, memory_bank, coverage):
        rows = coverage.reshape(-1).unsqueeze(1)
        memory_bank += self.linear_cover(rows).view_as(memory_bank)
        memory_bank = torch.tanh(memory_bank)
        return self.energy(source, memory_bank), memory_bank


def asks():
    lengths = torch.tensor([7, 5])
    real = (torch.arange(7)[None] < lengths[:, None]).float()
    coverage = torch.rand(2, 7) * real
    return dict(inputs=dict(source=torch.randn(2, 24), memory_bank=torch.randn(2, 7, 24), memory_lengths=lengths, coverage=coverage))


def _make(cls):
    torch.manual_seed(0)
    return cls().eval()


def wrong():
    return _make(Reported)


def right():
    return _make(GlobalAttention)


def proof():
    x = asks()["inputs"]
    kept = x["memory_bank"].clone()
    with torch.no_grad():
        good = right()(**x)
        untouched = torch.equal(kept, x["memory_bank"])
        bad = wrong()(**x)
    return untouched and not torch.equal(kept, x["memory_bank"]) and not torch.allclose(good[0], bad[0], atol=1e-4)
