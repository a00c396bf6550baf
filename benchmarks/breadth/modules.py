"""Attention modules as repositories write them; the names say whose style it is.

A module takes (b, t, 32). Each is its forward and, in `module`, what it holds; they are written for
this benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, einsum, nn
from torch.nn import functional as F

# ruff: noqa: N802 - the functions become classes

WIDTH, HEADS, STEPS = 32, 4, 8
DEPTH = WIDTH // HEADS
MODULES: dict[str, type[nn.Module]] = {}
Part = Callable[[], Any]


def module(**parts: Part) -> Callable[[Callable[[Any, Tensor], Tensor]], type[nn.Module]]:
    """Make the class of a forward, whose modules hold what ``parts`` build; add it to `MODULES`."""

    def made(forward: Callable[[Any, Tensor], Tensor]) -> type[nn.Module]:
        def filled(self: Any) -> None:
            nn.Module.__init__(self)
            for name, build in parts.items():
                part = build()
                plain = isinstance(part, Tensor) and not isinstance(part, nn.Parameter)
                (self.register_buffer if plain else partial(setattr, self))(name, part)

        name = forward.__name__
        members = {"__init__": filled, "forward": forward, "__module__": __name__}
        MODULES[name] = type(name, (nn.Module,), {**members, "__doc__": forward.__doc__})
        return MODULES[name]

    return made


def linear(out: int = WIDTH, of: int = WIDTH, bias: bool = True) -> Part:
    """What builds a linear map."""
    return lambda: nn.Linear(of, out, bias=bias)


def drawn(*shape: int) -> Part:
    """What draws a parameter."""
    return lambda: nn.Parameter(torch.randn(shape))


QKV = linear(3 * WIDTH)
SOFTMAX: Part = partial(nn.Softmax, dim=-1)
DROPOUT: Part = partial(nn.Dropout, 0.1)


def split(x: Tensor) -> Tensor:
    """(b, t, h · d) to (b, h, t, d)."""
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """(b, h, t, d) to (b, t, h · d)."""
    return x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)


def three(qkv: Tensor) -> Iterator[Tensor]:
    """q, k and v (b, h, t, d) of one projection."""
    return map(split, qkv.chunk(3, -1))


# --- of text ------------------------------------------------------------------------------------


@module(
    c_attn=QKV, c_proj=linear(), attn_dropout=DROPOUT, resid_dropout=DROPOUT,
    bias=lambda: torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64),
)  # fmt: skip
def NanoGPT(self: Any, x: Tensor) -> Tensor:
    """One projection, a buffer as the mask, two dropouts."""
    t = x.shape[1]
    q, k, v = (split(y) for y in self.c_attn(x).split(WIDTH, dim=2))
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
    att = self.attn_dropout(F.softmax(att, dim=-1))
    return self.resid_dropout(self.c_proj(merged(att @ v)))


@module(query=linear(), key=linear(), value=linear(), dropout=DROPOUT)
def Bert(self: Any, x: Tensor) -> Tensor:
    """An additive mask (b, 1, 1, t), the last keys of the second text hidden."""
    hidden = torch.zeros(x.shape[0], 1, 1, x.shape[1])
    hidden[-1, ..., -2:] = torch.finfo(x.dtype).min
    q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(DEPTH) + hidden
    return merged(torch.matmul(self.dropout(nn.functional.softmax(scores, dim=-1)), v))


@module(
    q=linear(bias=False), k=linear(bias=False), v=linear(bias=False),
    relative=partial(nn.Embedding, 4, HEADS),
)  # fmt: skip
def T5(self: Any, x: Tensor) -> Tensor:
    """No scale, a bias for buckets of distances, the softmax in float32."""
    scores = torch.matmul(split(self.q(x)), split(self.k(x)).transpose(3, 2))
    far = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs().clamp(max=3)
    scores += self.relative(far).permute(2, 0, 1).unsqueeze(0)
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return merged(torch.matmul(weights, split(self.v(x))))


@module(qkv=QKV, far=drawn(HEADS, STEPS, DEPTH), u=drawn(HEADS, 1, DEPTH), w=drawn(HEADS, 1, DEPTH))
def TransformerXL(self: Any, x: Tensor) -> Tensor:
    """Positions scored with queries of their own and shifted, as in Music Transformer."""
    q, k, v = three(self.qkv(x))
    near = einsum("bhid,bhjd->bhij", q + self.u, k)
    far = F.pad(einsum("bhid,hjd->bhij", q + self.w, self.far), (1, 0))
    far = far.view(*far.shape[:2], far.shape[3], far.shape[2])[:, :, 1:].view_as(near)
    scores = (near + far).mul_(DEPTH**-0.5)
    later = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
    weights = F.softmax(scores.float().masked_fill(later, -1e30).type_as(scores), dim=3)
    return merged(einsum("bhij,bhjd->bhid", weights, v))


@module(
    qkv=QKV, keys=partial(nn.Embedding, 2 * STEPS, DEPTH),
    values=partial(nn.Embedding, 2 * STEPS, DEPTH),
)  # fmt: skip
def Shaw(self: Any, x: Tensor) -> Tensor:
    """Relative positions in keys and in values."""
    q, k, v = three(self.qkv(x))
    far = torch.arange(STEPS)[:, None] - torch.arange(STEPS) + STEPS
    scores = q @ k.mT + einsum("bhid,ijd->bhij", q, self.keys(far))
    weights = (scores / DEPTH**0.5).softmax(-1)
    return merged(weights @ v + einsum("bhij,ijd->bhid", weights, self.values(far)))


@module(fc_q=linear(), fc_k=linear(), fc_v=linear())
def SetTransformer(self: Any, x: Tensor) -> Tensor:
    """Heads split by `cat(split)` into the batch, divided by the root of the whole width."""
    q, k, v = (torch.cat(f(x).split(DEPTH, 2), 0) for f in (self.fc_q, self.fc_k, self.fc_v))
    a = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(WIDTH), 2)
    return torch.cat((q + a.bmm(v)).split(x.size(0), 0), 2)


@module(left=linear(), right=linear())
def BiDAF(self: Any, x: Tensor) -> Tensor:
    """One matrix of scores, a softmax over each of its axes."""
    a, b = self.left(x), self.right(x)[:, :5]
    scores = a @ b.transpose(1, 2)
    read = F.softmax(scores, dim=-1) @ b
    back = F.softmax(scores, dim=1).transpose(1, 2) @ a
    return read + F.softmax(scores, dim=-1) @ back


@module(hidden=linear(), context=linear(1, bias=False))
def WordAttention(self: Any, x: Tensor) -> Tensor:
    """A context vector scores the words, as in hierarchical attention networks."""
    scores = self.context(torch.tanh(self.hidden(x))).squeeze(2)
    e = torch.exp(scores - scores.max())
    weights = e / torch.sum(e, dim=1, keepdim=True)
    return (x * weights.unsqueeze(2)).sum(dim=1)


@module(keys=linear(), values=linear())
def MemoryNetwork(self: Any, x: Tensor) -> Tensor:
    """Hops over a memory, scores by a product that is summed."""
    u, m, c = x.mean(1), self.keys(x), self.values(x)
    for _ in range(2):
        weights = F.softmax(torch.sum(m * u.unsqueeze(1), 2), dim=1)
        u = u + torch.sum(c * weights.unsqueeze(2), 1)
    return u


@module(
    query=linear(8), memory=linear(8), location=lambda: nn.Conv1d(1, 8, 3, padding=1),
    v=linear(1, 8),
)  # fmt: skip
def LocationSensitive(self: Any, x: Tensor) -> Tensor:
    """Tacotron's: scores depend on the weights of the step before."""
    memory, before, outputs = self.memory(x), torch.zeros(x.shape[0], 1, x.shape[1]), []
    for step in range(3):
        place = self.location(before).transpose(1, 2)
        energies = self.v(torch.tanh(self.query(x[:, step : step + 1]) + memory + place))
        weights = F.softmax(energies.squeeze(-1), dim=1)
        outputs.append(torch.bmm(weights.unsqueeze(1), x).squeeze(1))
        before = weights.unsqueeze(1)
    return torch.stack(outputs, 1)


class Mixer(nn.Module):
    """Weights and values meet in a module of its own, which has parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, weights: Tensor, values: Tensor) -> Tensor:
        """(b, t, s) and (b, s, 32) to (b, t, 32)."""
        return self.out(torch.bmm(weights, values))


@module(q=linear(), parts=lambda: [nn.Softmax(dim=-1)], mixer=Mixer)
def Retrieval(self: Any, x: Tensor) -> Tensor:
    """`nn.Softmax` in a list and the product in a method of another class."""
    return self.mixer(self.parts[0](self.q(x) @ x.mT / 5), x)


@module(qkv=QKV, features=lambda: torch.randn(DEPTH, 12))
def Performer(self: Any, x: Tensor) -> Tensor:
    """Random exponential features; no matrix of weights ever exists."""
    q, k, v = three(self.qkv(x))
    q, k = (torch.exp(y @ self.features - y.square().sum(-1, keepdim=True) / 2) for y in (q, k))
    total = 1.0 / (q @ k.sum(-2).unsqueeze(-1))
    return merged(einsum("bhnm,bhmd->bhnd", q, k.mT @ v) * total)


@module(qkv=QKV)
def LinearAttention(self: Any, x: Tensor) -> Tensor:
    """Features of elu, the keys summed first; no softmax."""
    q, k, v = three(self.qkv(x))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = 1 / (einsum("bhld,bhd->bhl", q, k.sum(2)) + 1e-6)
    return merged(einsum("bhld,bhdm,bhl->bhlm", q, einsum("bhsd,bhsm->bhdm", k, v), total))


@module(qkv=QKV)
def Efficient(self: Any, x: Tensor) -> Tensor:
    """Two softmaxes, of queries over features and of keys over steps, as in efficient attention."""
    q, k, v = three(self.qkv(x))
    return merged(q.softmax(dim=-1) @ (k.softmax(dim=-2).transpose(-2, -1) @ v))


@module(qkv=QKV)
def SigmoidAttention(self: Any, x: Tensor) -> Tensor:
    """Sigmoid of scores with a bias of −log t; no softmax."""
    q, k, v = three(self.qkv(x))
    return merged(torch.sigmoid(q @ k.mT / DEPTH**0.5 - math.log(STEPS)) @ v)


@module(gate=linear(3), experts=lambda: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
def Router(self: Any, x: Tensor) -> Tensor:
    """A mixture of experts beside a sampler: softmaxes that are no attention."""
    weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for n, expert in enumerate(self.experts):
        share = (weights * (chosen == n)).sum(-1, keepdim=True)
        out = out + share * expert(x)
    return out


# --- of images ----------------------------------------------------------------------------------


def image_of(x: Tensor) -> Tensor:
    """(b, t, c) as an image (b, c, 2, t / 2)."""
    return x.transpose(1, 2).unflatten(2, (2, -1))


@module(attn=lambda: nn.MultiheadAttention(WIDTH, HEADS))
def OpenAIClip(self: Any, x: Tensor) -> Tensor:
    """`nn.MultiheadAttention`, steps first, with a causal mask of floats."""
    y, mask = x.transpose(0, 1), torch.full((STEPS, STEPS), float("-inf")).triu_(1)
    return self.attn(y, y, y, need_weights=False, attn_mask=mask)[0].transpose(0, 1)


@module(
    positions=drawn(STEPS + 1, WIDTH), q_proj=linear(), k_proj=linear(), v_proj=linear(),
    c_proj=linear(),
)  # fmt: skip
def ClipPooling(self: Any, x: Tensor) -> Tensor:
    """The mean as the query of a call of PyTorch's functional form."""
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


def with_weights(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the weights."""
    b, n, c = x.shape
    qkv = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
    q, k, v = qkv[0], qkv[1], qkv[2]
    attn = self.attn_drop(((q @ k.transpose(-2, -1)) * DEPTH**-0.5).softmax(dim=-1))
    return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c)), attn


@module(qkv=QKV, proj=linear(), attn_drop=partial(nn.Dropout, 0.0))
def Dino(self: Any, x: Tensor) -> Tensor:
    """A part returns the weights beside the output."""
    y, self.last = with_weights(self, x)
    return y


@module(
    qkv=QKV, table=drawn(7, HEADS), softmax=SOFTMAX,
    index=lambda: torch.arange(4)[:, None] - torch.arange(4) + 3,
)  # fmt: skip
def Swin(self: Any, x: Tensor) -> Tensor:
    """Windows shifted by one, with a table of relative positions."""
    b = x.shape[0]
    x = torch.roll(x, -1, 1)
    x = x.view(b, -1, 4, WIDTH).reshape(-1, 4, WIDTH)
    q, k, v = self.qkv(x).reshape(-1, 4, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
    attn = q * DEPTH**-0.5 @ k.transpose(-2, -1)
    bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1)
    attn = attn + bias.contiguous().unsqueeze(0)
    part = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1]])
    mask = (part[:, None] != part[:, :, None]) * -100.0
    attn = attn.view(b, -1, HEADS, 4, 4) + mask.unsqueeze(1).unsqueeze(0)
    y = self.softmax(attn.view(-1, HEADS, 4, 4)) @ v
    return torch.roll(y.transpose(1, 2).reshape(b, -1, WIDTH), 1, 1)


@module(
    to_qkv=linear(3 * WIDTH, bias=False), mix=drawn(HEADS, HEADS), norm=partial(nn.LayerNorm, HEADS)
)
def DeepViT(self: Any, x: Tensor) -> Tensor:
    """Weights mixed between heads and normalised, as lucidrains writes it."""
    q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=HEADS) for y in self.to_qkv(x).chunk(3, -1))
    attn = (einsum("b h i d, b h j d -> b h i j", q, k) * DEPTH**-0.5).softmax(dim=-1)
    attn = einsum("b h i j, h g -> b g i j", attn, self.mix)
    attn = self.norm(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return rearrange(einsum("b h i j, b h j d -> b h i d", attn, v), "b h n d -> b n (h d)")


@module(qkv=QKV, proj=linear(), proj_l=linear(HEADS, HEADS), proj_w=linear(HEADS, HEADS))
def CaiT(self: Any, x: Tensor) -> Tensor:
    """Linear layers mix heads before and after the softmax, as timm writes it."""
    q, k, v = three(self.qkv(x))
    attn = q * DEPTH**-0.5 @ k.transpose(-2, -1)
    attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(dim=-1)
    attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return self.proj(merged(attn @ v))


@module(
    q=partial(nn.Conv1d, WIDTH, WIDTH, 1), kv=partial(nn.Conv1d, WIDTH, 2 * WIDTH, 3, 2, 1),
    biases=drawn(HEADS, STEPS), act=nn.Hardswish,
)  # fmt: skip
def LeViT(self: Any, x: Tensor) -> Tensor:
    """Keys by convolution, biases by index, an activation after."""
    x = x.transpose(1, 2)
    q = self.q(x).view(x.shape[0], HEADS, DEPTH, -1)
    k, v = self.kv(x).view(x.shape[0], HEADS, 2 * DEPTH, -1).chunk(2, 2)
    far = (torch.arange(STEPS)[:, None] - 2 * torch.arange(STEPS // 2)).abs()
    attn = (q.transpose(-2, -1) @ k * DEPTH**-0.5 + self.biases[:, far]).softmax(dim=-1)
    return self.act((v @ attn.transpose(-2, -1)).flatten(1, 2).transpose(1, 2))


@module(latents=drawn(3, WIDTH), to_q=linear(), to_kv=linear(2 * WIDTH))
def Perceiver(self: Any, x: Tensor) -> Tensor:
    """Learned latents read the input; a mask by `rearrange` and `repeat`."""
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


@module(
    theta=partial(nn.Conv2d, WIDTH, 8, 1), phi=partial(nn.Conv2d, WIDTH, 8, 1),
    g=partial(nn.Conv2d, WIDTH, WIDTH, 1), gamma=drawn(1), softmax=SOFTMAX,
)  # fmt: skip
def NonLocal(self: Any, x: Tensor) -> Tensor:
    """Pixels attend to pixels, channels first, as in SAGAN: the keys are rows after a `permute`."""
    image = image_of(x)
    q = self.theta(image).flatten(2).permute(0, 2, 1)
    energy = torch.bmm(q, self.phi(image).flatten(2))
    out = torch.bmm(self.g(image).flatten(2), self.softmax(energy).permute(0, 2, 1))
    return (self.gamma * out.view_as(image) + image).flatten(2).transpose(1, 2)


@module(mask=partial(nn.Conv2d, WIDTH, 1, 1), softmax=partial(nn.Softmax, dim=2))
def GlobalContext(self: Any, x: Tensor) -> Tensor:
    """One map for the whole image, as in GCNet."""
    image = image_of(x)
    weights = self.softmax(self.mask(image).flatten(2)).unsqueeze(-1)
    context = torch.matmul(image.flatten(2).unsqueeze(1), weights)
    return x + context.flatten(1).unsqueeze(1)


@module(score=partial(nn.Conv2d, WIDTH, 1, 1))
def GridPooling(self: Any, x: Tensor) -> Tensor:
    """A learned score for each place of a grid, and the weighted mean over rows and columns."""
    image = image_of(x)
    scores = self.score(image)
    return (scores.flatten(1).softmax(1).view_as(scores) * image).sum((-2, -1))


@module(score=partial(nn.Conv2d, WIDTH, 1, 1))
def GridSoftmax(self: Any, x: Tensor) -> Tensor:
    """The same with the softmax over both axes written out."""
    image = image_of(x)
    e = self.score(image).exp()
    return torch.einsum("bixy,bcxy->bc", e / e.sum(dim=(-2, -1), keepdim=True), image)


@module(qkv=QKV)
def Axial(self: Any, x: Tensor) -> Tensor:
    """Rows of a grid, then columns, in one einsum each."""
    q, k, v = self.qkv(x.unflatten(1, (2, -1))).unflatten(-1, (3, HEADS, -1)).unbind(3)
    rows = torch.softmax(einsum("bxihd,bxjhd->bxhij", q, k) / DEPTH**0.5, -1)
    columns = torch.softmax(einsum("bixhd,bjxhd->bhxij", q, k) / DEPTH**0.5, -1)
    y = einsum("bxhij,bxjhd->bxihd", rows, v) + einsum("bhxij,bjxhd->bixhd", columns, v)
    return y.flatten(3).flatten(1, 2)


@module(qkv=QKV)
def CrissCross(self: Any, x: Tensor) -> Tensor:
    """A pixel sees its row and its column: scores joined, the weights split, as in CCNet."""
    q, k, v = self.qkv(x.unflatten(1, (2, -1))).chunk(3, -1)
    rows, columns = einsum("bxid,bxjd->bxij", q, k), einsum("bixd,bjxd->bixj", q, k)
    weights = torch.cat([rows, columns], -1).softmax(-1)
    y = einsum("bxij,bxjd->bxid", weights[..., :4], v)
    return (y + einsum("bixj,bjxd->bixd", weights[..., 4:], v)).flatten(1, 2)
