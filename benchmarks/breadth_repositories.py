"""Attention modules as repositories write them, each in a few lines of this benchmark's own.

A module takes (b, t, 32). The names say whose style it is.
"""

from __future__ import annotations

import math

import torch
from einops import rearrange, repeat
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
        """(b, t, 32) to the same."""
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
        """(b, t, 32) to the same."""
        hidden = torch.zeros(x.shape[0], 1, 1, x.shape[1])
        hidden[-1, ..., -2:] = torch.finfo(x.dtype).min
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(DEPTH) + hidden
        return merged(torch.matmul(self.dropout(nn.functional.softmax(scores, dim=-1)), v))


class OpenAIClip(nn.Module):
    """`nn.MultiheadAttention`, steps first, with a causal mask of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)
        self.mask = torch.full((STEPS, STEPS), float("-inf")).triu_(1)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        y = x.transpose(0, 1)
        return self.attn(y, y, y, need_weights=False, attn_mask=self.mask)[0].transpose(0, 1)


class ClipPooling(nn.Module):
    """The mean as the query of a call of PyTorch's functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(STEPS + 1, WIDTH))
        self.q_proj, self.k_proj, self.v_proj, self.c_proj = (
            nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to (b, 32)."""
        x = x.transpose(0, 1)
        x = torch.cat([x.mean(0, keepdim=True), x], 0) + self.positions[:, None]
        y, _ = F.multi_head_attention_forward(
            query=x[:1], key=x, value=x, embed_dim_to_check=WIDTH, num_heads=HEADS,
            q_proj_weight=self.q_proj.weight, k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight, in_proj_weight=None,
            in_proj_bias=torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]),
            bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0,
            out_proj_weight=self.c_proj.weight, out_proj_bias=self.c_proj.bias,
            use_separate_proj_weight=True, training=False, need_weights=False,
        )  # fmt: skip
        return y[0]


class Dino(nn.Module):
    """Returns the weights beside the output."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.attn_drop = nn.Linear(WIDTH, 96), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        y, self.last = self.attend(x)
        return y

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output and the weights."""
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * DEPTH**-0.5
        attn = self.attn_drop(attn.softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c)), attn


class Swin(nn.Module):
    """Shifted windows with a table of relative positions."""

    def __init__(self, shift: int = 1) -> None:
        super().__init__()
        self.qkv, self.shift = nn.Linear(WIDTH, 3 * WIDTH), shift
        self.table, self.softmax = nn.Parameter(torch.randn(7, HEADS)), nn.Softmax(dim=-1)
        self.register_buffer("index", torch.arange(4)[:, None] - torch.arange(4) + 3)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        b = x.shape[0]
        x = torch.roll(x, -self.shift, 1)
        x = x.view(b, -1, 4, WIDTH).reshape(-1, 4, WIDTH)
        q, k, v = self.qkv(x).reshape(-1, 4, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
        attn = q * DEPTH**-0.5 @ k.transpose(-2, -1)
        bias = self.table[self.get_buffer("index").view(-1)].view(4, 4, -1).permute(2, 0, 1)
        attn = attn + bias.contiguous().unsqueeze(0)
        part = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1]])
        mask = (part[:, None] != part[:, :, None]) * -100.0
        attn = attn.view(b, -1, HEADS, 4, 4) + mask.unsqueeze(1).unsqueeze(0)
        y = self.softmax(attn.view(-1, HEADS, 4, 4)) @ v
        return torch.roll(y.transpose(1, 2).reshape(b, -1, WIDTH), self.shift, 1)


class T5(nn.Module):
    """No scale, a bias for buckets of distances, the softmax in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.relative = nn.Embedding(4, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        scores = torch.matmul(split(self.q(x)), split(self.k(x)).transpose(3, 2))
        far = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs().clamp(max=3)
        scores += self.relative(far).permute(2, 0, 1).unsqueeze(0)
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return merged(torch.matmul(weights, split(self.v(x))))


class TransformerXL(nn.Module):
    """Positions scored with queries of their own and shifted, as in Music Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.far = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.randn(HEADS, STEPS, DEPTH))
        self.u, self.w = (nn.Parameter(torch.randn(HEADS, 1, DEPTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
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
        """(b, t, 32) to the same."""
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        far = torch.arange(STEPS)[:, None] - torch.arange(STEPS) + STEPS
        scores = q @ k.mT + einsum("bhid,ijd->bhij", q, self.keys(far))
        weights = (scores / DEPTH**0.5).softmax(-1)
        return merged(weights @ v + einsum("bhij,ijd->bhid", weights, self.values(far)))


class DeepViT(nn.Module):
    """Weights mixed between heads and normalised, as lucidrains writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Parameter(torch.randn(HEADS, HEADS))
        self.norm = nn.LayerNorm(HEADS)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        q, k, v = (
            rearrange(y, "b n (h d) -> b h n d", h=HEADS) for y in self.to_qkv(x).chunk(3, dim=-1)
        )
        attn = (einsum("b h i d, b h j d -> b h i j", q, k) * DEPTH**-0.5).softmax(dim=-1)
        attn = einsum("b h i j, h g -> b g i j", attn, self.mix)
        attn = self.norm(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return rearrange(einsum("b h i j, b h j d -> b h i d", attn, v), "b h n d -> b n (h d)")


class CaiT(nn.Module):
    """Linear layers mix heads before and after the softmax, as timm writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.proj_l, self.proj_w = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        attn = q * DEPTH**-0.5 @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj(merged(attn @ v))


class LeViT(nn.Module):
    """Keys by convolution, biases by index, an activation after."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, 2 * WIDTH, 3, 2, 1)
        self.biases = nn.Parameter(torch.randn(HEADS, STEPS))
        self.act = nn.Hardswish()

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        x = x.transpose(1, 2)
        q = self.q(x).view(x.shape[0], HEADS, DEPTH, -1)
        k, v = self.kv(x).view(x.shape[0], HEADS, 2 * DEPTH, -1).chunk(2, 2)
        far = (torch.arange(STEPS)[:, None] - 2 * torch.arange(STEPS // 2)).abs()
        attn = (q.transpose(-2, -1) @ k * DEPTH**-0.5 + self.biases[:, far]).softmax(dim=-1)
        return self.act((v @ attn.transpose(-2, -1)).flatten(1, 2).transpose(1, 2))


class Perceiver(nn.Module):
    """Learned latents read the input; a mask by `rearrange` and `repeat`."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.to_q, self.to_kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to (b, 3, 32)."""
        b, h = x.shape[0], HEADS
        q, (k, v) = self.to_q(repeat(self.latents, "n d -> b n d", b=b)), self.to_kv(x).chunk(2, -1)
        q, k, v = (rearrange(y, "b n (h d) -> (b h) n d", h=h) for y in (q, k, v))
        sim = einsum("b i d, b j d -> b i j", q, k) * DEPTH**-0.5
        mask = torch.ones(b, x.shape[1], dtype=torch.bool)
        mask[0, -1] = False
        mask = repeat(mask, "b j -> (b h) () j", h=h)
        sim.masked_fill_(~mask, -torch.finfo(sim.dtype).max)
        out = einsum("b i j, b j d -> b i d", sim.softmax(dim=-1), v)
        return rearrange(out, "(b h) n d -> b n (h d)", h=h)


class SetTransformer(nn.Module):
    """Heads split by `cat(split)` into the batch, divided by the root of the whole width."""

    def __init__(self) -> None:
        super().__init__()
        self.fc_q, self.fc_k, self.fc_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        q, k, v = (
            torch.cat(f(x).split(DEPTH, 2), 0) for f in (self.fc_q, self.fc_k, self.fc_v)
        )
        a = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(WIDTH), 2)
        return torch.cat((q + a.bmm(v)).split(x.size(0), 0), 2)


class NonLocal(nn.Module):
    """Pixels attend to pixels, channels first, as in SAGAN: the keys are rows after a `permute`."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(WIDTH, n, 1) for n in (8, 8, WIDTH))
        self.gamma, self.softmax = nn.Parameter(torch.ones(1)), nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        image = x.transpose(1, 2).unflatten(2, (2, -1))
        q = self.theta(image).flatten(2).permute(0, 2, 1)
        energy = torch.bmm(q, self.phi(image).flatten(2))
        out = torch.bmm(self.g(image).flatten(2), self.softmax(energy).permute(0, 2, 1))
        return (self.gamma * out.view_as(image) + image).flatten(2).transpose(1, 2)


class GlobalContext(nn.Module):
    """One map for the whole image, as in GCNet."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.softmax = nn.Conv2d(WIDTH, 1, 1), nn.Softmax(dim=2)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        image = x.transpose(1, 2).unflatten(2, (2, -1))
        weights = self.softmax(self.mask(image).flatten(2)).unsqueeze(-1)
        context = torch.matmul(image.flatten(2).unsqueeze(1), weights)
        return x + context.flatten(1).unsqueeze(1)


class GridPooling(nn.Module):
    """A learned score for each place of a grid, and the weighted mean over rows and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to (b, 32)."""
        image = x.transpose(1, 2).unflatten(2, (2, -1))
        scores = self.score(image)
        weights = scores.flatten(1).softmax(1).view_as(scores)
        return (weights * image).sum((-2, -1))


class GridSoftmax(GridPooling):
    """The same with the softmax over both axes written out."""

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to (b, 32)."""
        image = x.transpose(1, 2).unflatten(2, (2, -1))
        e = self.score(image).exp()
        return torch.einsum("bixy,bcxy->bc", e / e.sum(dim=(-2, -1), keepdim=True), image)


class Axial(nn.Module):
    """Rows of a grid, then columns, in one einsum each."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        q, k, v = self.qkv(x.unflatten(1, (2, -1))).unflatten(-1, (3, HEADS, -1)).unbind(3)
        rows = torch.softmax(einsum("bxihd,bxjhd->bxhij", q, k) / DEPTH**0.5, -1)
        columns = torch.softmax(einsum("bixhd,bjxhd->bhxij", q, k) / DEPTH**0.5, -1)
        y = einsum("bxhij,bxjhd->bxihd", rows, v) + einsum("bhxij,bjxhd->bixhd", columns, v)
        return y.flatten(3).flatten(1, 2)


class CrissCross(nn.Module):
    """A pixel sees its row and its column: scores joined, the weights split, as in CCNet."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        q, k, v = self.qkv(x.unflatten(1, (2, -1))).chunk(3, -1)
        rows = einsum("bxid,bxjd->bxij", q, k)
        columns = einsum("bixd,bjxd->bixj", q, k)
        weights = torch.cat([rows, columns], -1).softmax(-1)
        y = einsum("bxij,bxjd->bxid", weights[..., :4], v)
        return (y + einsum("bixj,bjxd->bixd", weights[..., 4:], v)).flatten(1, 2)


class BiDAF(nn.Module):
    """One matrix of scores, a softmax over each of its axes."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
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
        """(b, t, 32) to (b, 32)."""
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
        """(b, t, 32) to (b, 32)."""
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
        """(b, t, 32) to (b, 3, 32)."""
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
        """(b, t, 32) to the same."""
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
        """(b, t, 32) to the same."""
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
        """(b, t, 32) to the same."""
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
        """(b, t, 32) to the same."""
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        context = k.softmax(dim=-2).transpose(-2, -1) @ v
        return merged(q.softmax(dim=-1) @ context)


class SigmoidAttention(nn.Module):
    """Sigmoid of scores with a bias of −log t; no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        return merged(torch.sigmoid(q @ k.mT / DEPTH**0.5 - math.log(STEPS)) @ v)


class Router(nn.Module):
    """A mixture of experts beside a sampler: softmaxes that are no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, 32) to the same."""
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            share = (weights * (chosen == n)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return out


MODULES: tuple[type[nn.Module], ...] = (
    NanoGPT, Bert, OpenAIClip, ClipPooling, Dino, Swin, T5, TransformerXL, Shaw, DeepViT, CaiT,
    LeViT, Perceiver, SetTransformer, NonLocal, GlobalContext, GridPooling, GridSoftmax,
    Axial, CrissCross, BiDAF,
    WordAttention, MemoryNetwork, LocationSensitive, Retrieval, Performer, LinearAttention,
    Efficient, SigmoidAttention, Router,
)  # fmt: skip
