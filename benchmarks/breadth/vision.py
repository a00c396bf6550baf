"""Attention modules of vision models as repositories write them, in this benchmark's own words.

A module takes (b, t, 32). The names say whose style it is.
"""

from __future__ import annotations

import torch
from einops import rearrange, repeat
from torch import Tensor, einsum, nn
from torch.nn import functional as F

from benchmarks.breadth.repositories import DEPTH, HEADS, STEPS, WIDTH, merged, split


class OpenAIClip(nn.Module):
    """`nn.MultiheadAttention`, steps first, with a causal mask of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)
        self.mask = torch.full((STEPS, STEPS), float("-inf")).triu_(1)

    def forward(self, x: Tensor) -> Tensor:
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
        self.qkv, self.proj, self.attn_drop = (
            nn.Linear(WIDTH, 96),
            nn.Linear(WIDTH, WIDTH),
            nn.Dropout(0.0),
        )

    def forward(self, x: Tensor) -> Tensor:
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


class DeepViT(nn.Module):
    """Weights mixed between heads and normalised, as lucidrains writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Parameter(torch.randn(HEADS, HEADS))
        self.norm = nn.LayerNorm(HEADS)

    def forward(self, x: Tensor) -> Tensor:
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


class NonLocal(nn.Module):
    """Pixels attend to pixels, channels first, as in SAGAN: the keys are rows after a `permute`."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(WIDTH, n, 1) for n in (8, 8, WIDTH))
        self.gamma, self.softmax = nn.Parameter(torch.ones(1)), nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
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
        image = x.transpose(1, 2).unflatten(2, (2, -1))
        scores = self.score(image)
        weights = scores.flatten(1).softmax(1).view_as(scores)
        return (weights * image).sum((-2, -1))


class GridSoftmax(GridPooling):
    """The same with the softmax over both axes written out."""

    def forward(self, x: Tensor) -> Tensor:
        image = x.transpose(1, 2).unflatten(2, (2, -1))
        e = self.score(image).exp()
        return torch.einsum("bixy,bcxy->bc", e / e.sum(dim=(-2, -1), keepdim=True), image)


class Axial(nn.Module):
    """Rows of a grid, then columns, in one einsum each."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
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
        q, k, v = self.qkv(x.unflatten(1, (2, -1))).chunk(3, -1)
        rows = einsum("bxid,bxjd->bxij", q, k)
        columns = einsum("bixd,bjxd->bixj", q, k)
        weights = torch.cat([rows, columns], -1).softmax(-1)
        y = einsum("bxij,bxjd->bxid", weights[..., :4], v)
        return (y + einsum("bixj,bjxd->bixd", weights[..., 4:], v)).flatten(1, 2)


MODULES: tuple[type[nn.Module], ...] = (
    OpenAIClip,
    ClipPooling,
    Dino,
    Swin,
    DeepViT,
    CaiT,
    LeViT,
    Perceiver,
    NonLocal,
    GlobalContext,
    GridPooling,
    GridSoftmax,
    Axial,
    CrissCross,
)
