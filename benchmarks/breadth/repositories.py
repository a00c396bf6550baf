"""Attention modules as repositories write them, each in a few lines of this benchmark's own.

A module takes (b, t, 32). The names say whose style it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, einsum, nn
from torch.nn import functional as F

WIDTH, HEADS, STEPS = 32, 4, 8
DEPTH = WIDTH // HEADS


def split(x: Tensor) -> Tensor:
    """(b, t, h · d) to (b, h, t, d)."""
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """(b, h, t, d) to (b, t, h · d)."""
    return x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)


class NanoGPT(nn.Module):
    """One projection, a buffer as the mask, two dropouts."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        q, k, v = (split(y) for y in self.c_attn(x).split(WIDTH, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.get_buffer("bias")[:, :, :t, :t] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        return self.resid_dropout(self.c_proj(merged(att @ v)))


class Bert(nn.Module):
    """An additive mask (b, 1, 1, t), the last keys of the second text hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(x.shape[0], 1, 1, x.shape[1])
        hidden[-1, ..., -2:] = torch.finfo(x.dtype).min
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(DEPTH) + hidden
        return merged(torch.matmul(self.dropout(nn.functional.softmax(scores, dim=-1)), v))


class T5(nn.Module):
    """No scale, a bias for buckets of distances, the softmax in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.relative = nn.Embedding(4, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.matmul(split(self.q(x)), split(self.k(x)).transpose(3, 2))
        far = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs().clamp(max=3)
        scores += self.relative(far).permute(2, 0, 1).unsqueeze(0)
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return merged(torch.matmul(weights, split(self.v(x))))


class TransformerXL(nn.Module):
    """Positions scored with queries of their own and shifted, as in Music Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.far = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Parameter(torch.randn(HEADS, STEPS, DEPTH)),
        )
        self.u, self.w = (nn.Parameter(torch.randn(HEADS, 1, DEPTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        near = einsum("bhid,bhjd->bhij", q + self.u, k)
        far = F.pad(einsum("bhid,hjd->bhij", q + self.w, self.far), (1, 0))
        far = far.view(*far.shape[:2], far.shape[3], far.shape[2])[:, :, 1:].view_as(near)
        scores = (near + far).mul_(DEPTH**-0.5)
        later = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
        weights = F.softmax(scores.float().masked_fill(later, -1e30).type_as(scores), dim=3)
        return merged(einsum("bhij,bhjd->bhid", weights, v))


class Shaw(nn.Module):
    """Relative positions in keys and in values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.keys, self.values = nn.Embedding(2 * STEPS, DEPTH), nn.Embedding(2 * STEPS, DEPTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        far = torch.arange(STEPS)[:, None] - torch.arange(STEPS) + STEPS
        scores = q @ k.mT + einsum("bhid,ijd->bhij", q, self.keys(far))
        weights = (scores / DEPTH**0.5).softmax(-1)
        return merged(weights @ v + einsum("bhij,ijd->bhid", weights, self.values(far)))


class SetTransformer(nn.Module):
    """Heads split by `cat(split)` into the batch, divided by the root of the whole width."""

    def __init__(self) -> None:
        super().__init__()
        self.fc_q, self.fc_k, self.fc_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.cat(f(x).split(DEPTH, 2), 0) for f in (self.fc_q, self.fc_k, self.fc_v))
        a = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(WIDTH), 2)
        return torch.cat((q + a.bmm(v)).split(x.size(0), 0), 2)


class BiDAF(nn.Module):
    """One matrix of scores, a softmax over each of its axes."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.left(x), self.right(x)[:, :5]
        scores = a @ b.transpose(1, 2)
        read = F.softmax(scores, dim=-1) @ b
        back = F.softmax(scores, dim=1).transpose(1, 2) @ a
        return read + F.softmax(scores, dim=-1) @ back


class WordAttention(nn.Module):
    """A context vector scores the words, as in hierarchical attention networks."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.context = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.context(torch.tanh(self.hidden(x))).squeeze(2)
        e = torch.exp(scores - scores.max())
        weights = e / torch.sum(e, dim=1, keepdim=True)
        return (x * weights.unsqueeze(2)).sum(dim=1)


class MemoryNetwork(nn.Module):
    """Hops over a memory, scores by a product that is summed."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        u, m, c = x.mean(1), self.keys(x), self.values(x)
        for _ in range(2):
            weights = F.softmax(torch.sum(m * u.unsqueeze(1), 2), dim=1)
            u = u + torch.sum(c * weights.unsqueeze(2), 1)
        return u


class LocationSensitive(nn.Module):
    """Tacotron's: scores depend on the weights of the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.memory = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.location, self.v = nn.Conv1d(1, 8, 3, padding=1), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        memory, before, outputs = self.memory(x), torch.zeros(x.shape[0], 1, x.shape[1]), []
        for step in range(3):
            place = self.location(before).transpose(1, 2)
            energies = self.v(torch.tanh(self.query(x[:, step : step + 1]) + memory + place))
            weights = F.softmax(energies.squeeze(-1), dim=1)
            outputs.append(torch.bmm(weights.unsqueeze(1), x).squeeze(1))
            before = weights.unsqueeze(1)
        return torch.stack(outputs, 1)


class Retrieval(nn.Module):
    """`nn.Softmax` in a list and the product in a method of another class."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.parts = nn.Linear(WIDTH, WIDTH), [nn.Softmax(dim=-1)]
        self.mixer = Mixer()

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(self.parts[0](self.q(x) @ x.mT / 5), x)


class Mixer(nn.Module):
    """Weights and values meet in a module of its own, which has parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, weights: Tensor, values: Tensor) -> Tensor:
        """(b, t, s) and (b, s, 32) to (b, t, 32)."""
        return self.out(torch.bmm(weights, values))


class Performer(nn.Module):
    """Random exponential features; no matrix of weights ever exists."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("features", torch.randn(DEPTH, 12))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        q, k = (
            torch.exp(y @ self.get_buffer("features") - y.square().sum(-1, keepdim=True) / 2)
            for y in (q, k)
        )
        total = 1.0 / (q @ k.sum(-2).unsqueeze(-1))
        return merged(einsum("bhnm,bhmd->bhnd", q, k.mT @ v) * total)


class LinearAttention(nn.Module):
    """Features of elu, the keys summed first; no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        total = 1 / (einsum("bhld,bhd->bhl", q, k.sum(2)) + 1e-6)
        return merged(einsum("bhld,bhdm,bhl->bhlm", q, einsum("bhsd,bhsm->bhdm", k, v), total))


class Efficient(nn.Module):
    """Two softmaxes, of queries over features and of keys over steps, as in efficient attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        context = k.softmax(dim=-2).transpose(-2, -1) @ v
        return merged(q.softmax(dim=-1) @ context)


class SigmoidAttention(nn.Module):
    """Sigmoid of scores with a bias of −log t; no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        return merged(torch.sigmoid(q @ k.mT / DEPTH**0.5 - math.log(STEPS)) @ v)


class Router(nn.Module):
    """A mixture of experts beside a sampler: softmaxes that are no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = (
            nn.Linear(WIDTH, 3),
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            share = (weights * (chosen == n)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return out


MODULES: tuple[type[nn.Module], ...] = (
    NanoGPT,
    Bert,
    T5,
    TransformerXL,
    Shaw,
    SetTransformer,
    BiDAF,
    WordAttention,
    MemoryNetwork,
    LocationSensitive,
    Retrieval,
    Performer,
    LinearAttention,
    Efficient,
    SigmoidAttention,
    Router,
)
