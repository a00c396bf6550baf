"""The styles of attention by hand: projections around a function, and whole modules.

`STYLES` maps a name to what builds a module that takes (b, t, 32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, einsum, nn
from torch.nn import functional as F

from benchmarks.breadth.functions import (
    FUNCTIONS,
    Function,
    online,
    online_normalised,
    past,
    scores,
    style,
    tiled,
)
from benchmarks.breadth.modules import (
    DEPTH,
    HEADS,
    MODULES,
    QKV,
    SOFTMAX,
    STEPS,
    WIDTH,
    linear,
    module,
)

# --- other axes, several softmaxes, gathered keys -----------------------------------------------


@style
def two_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys on a grid; the softmax over rows and columns at once."""
    q, k, v = (x.unflatten(-2, (2, 4)) for x in (q, k, v))
    s = einsum("bhijd,bhxyd->bhijxy", q, k) / math.sqrt(q.shape[-1])
    w = s.flatten(-2).softmax(-1).view_as(s)
    return einsum("bhijxy,bhxyd->bhijd", w, v).flatten(-3, -2)


@style
def two_axes_biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with a bias for each axis, and the exponentials divided by a sum over both."""
    q, k, v = (x.unflatten(-2, (2, 4)) for x in (q, k, v))
    s = einsum("bhijd,bhxyd->bhijxy", q, k) / math.sqrt(q.shape[-1])
    s = s + torch.linspace(-1, 1, 4).view(2, 1, 2, 1) + torch.linspace(0, 2, 16).view(4, 1, 4)
    e = torch.exp(s - s.amax((-2, -1), keepdim=True))
    return einsum("bhijxy,bhxyd->bhijd", e / e.sum((-2, -1), keepdim=True), v).flatten(-3, -2)


@style
def channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Channels attend to channels, as in XCiT."""
    q, k = (F.normalize(x.mT, dim=-1) for x in (q, k))
    return ((q @ k.mT).softmax(-1) @ v.mT).mT


@style
def difference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One softmax less a part of another, as in the differential transformer."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    return (scores(q1, k1).softmax(-1) - 0.3 * scores(q2, k2).softmax(-1)) @ v


@style
def nystrom(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Three softmaxes, two of them of landmarks, as in Nyströmformer."""
    a, b = (x.unflatten(-2, (4, -1)).mean(-2) for x in (q, k))
    first, middle, last = (scores(x, y).softmax(-1) for x, y in ((q, b), (a, b), (a, k)))
    return first @ torch.linalg.pinv(middle) @ (last @ v)


@style
def linformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys and values projected to fewer."""
    down = torch.linspace(-1, 1, 3 * k.shape[-2]).view(3, -1).softmax(-1)
    return scores(q, down @ k).softmax(-1) @ (down @ v)


@style
def latent_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of content and of rotated parts added, as in DeepSeek."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    s = (q1 @ k1.mT + q2 @ k2[:, :1].mT) / math.sqrt(q.shape[-1])
    return s.masked_fill(~past(q), -torch.inf).softmax(-1) @ v


@style
def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Neighbours only, gathered by index, as in local attention."""
    t = q.shape[-2]
    near = (torch.arange(t)[:, None] + torch.arange(-1, 2)).clamp(0, t - 1)
    s = einsum("bhtd,bhtnd->bhtn", q, k[:, :, near]) / math.sqrt(q.shape[-1])
    return einsum("bhtn,bhtnd->bhtd", s.softmax(-1), v[:, :, near])


@style
def bucketed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Steps sorted by a hash, attended in chunks, and sorted back, as in Reformer."""
    order = q[..., 0].argsort(-1)[..., None]
    q, k, v = (x.gather(-2, order.expand_as(x)).unflatten(-2, (-1, 4)) for x in (q, k, v))
    s = einsum("bhnid,bhnjd->bhnij", q, k) / math.sqrt(q.shape[-1])
    y = einsum("bhnij,bhnjd->bhnid", torch.exp(s - s.logsumexp(-1, keepdim=True)), v)
    return y.flatten(-3, -2).gather(-2, order.argsort(-2).expand(*q.shape[:2], -1, q.shape[-1]))


@style
def graph(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of edges, hidden where there are none, as in graph attention networks."""
    s = F.leaky_relu(q.sum(-1, keepdim=True) + k.sum(-1).unsqueeze(-2), 0.2)
    return torch.where(past(q), s, -9e15).softmax(-1) @ v


# --- modules ------------------------------------------------------------------------------------


@module(to_qkv=linear(3 * WIDTH, bias=False), attend=SOFTMAX)
def softmax_module(self: Any, x: Tensor) -> Tensor:
    """`nn.Softmax` as a part of the module."""
    q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=HEADS) for y in self.to_qkv(x).chunk(3, -1))
    weights = self.attend(torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5)
    return rearrange(torch.matmul(weights, v), "b h n d -> b n (h d)")


@module(score=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)))
def pooling(self: Any, x: Tensor) -> Tensor:
    """One learned score for each position, and the weighted mean."""
    return (self.score(x).softmax(dim=1) * x).sum(dim=1)


@module(
    encoder=partial(nn.GRU, WIDTH, WIDTH, batch_first=True), cell=partial(nn.GRUCell, WIDTH, WIDTH),
    general=linear(bias=False),
)  # fmt: skip
def luong_recurrent(self: Any, x: Tensor) -> Tensor:
    """Luong's attention of a decoder's states to an encoder's, step by step."""
    keys, state = self.encoder(x)
    state, outputs = state[0], []
    for step in range(3):
        state = self.cell(x[:, step], state)
        weights = F.softmax(torch.bmm(self.general(keys), state.unsqueeze(2)).squeeze(2), dim=1)
        outputs.append(torch.bmm(weights.unsqueeze(1), keys).squeeze(1) + state)
    return torch.stack(outputs, 1)


@module(qkv=QKV)
def cached_by_hand(self: Any, x: Tensor) -> Tensor:
    """A cache grown by hand: three calls, each with one query more."""
    outputs, keys, values = [], [], []
    for token in x.unbind(1):
        q, k, v = self.qkv(token).view(-1, 3, HEADS, DEPTH).unbind(1)
        keys.append(k)
        values.append(v)
        scores = einsum("bhd,bhsd->bhs", q, torch.stack(keys, 2)) / math.sqrt(q.shape[-1])
        outputs.append(einsum("bhs,bhsd->bhd", scores.softmax(-1), torch.stack(values, 2)))
    return torch.stack(outputs, 1).flatten(2)


class Attends(nn.Module):
    """Projections around a function that attends."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.qkv(x), "b t (n h d) -> n b h t d", n=3, h=HEADS)
        return self.out(rearrange(self.function(q, k, v), "b h t d -> b t (h d)"))


class InBlocks(Attends):
    """A softmax that never exists as a whole: what it is, for `truth`."""

    def declared_weights(self, x: Tensor) -> Tensor:
        """The weights (b, h, t, t)."""
        q, k, _ = rearrange(self.qkv(x), "b t (n h d) -> n b h t d", n=3, d=DEPTH)
        return scores(q, k).softmax(-1)


STYLES: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(Attends, f) for name, f in FUNCTIONS.items()},
    **{f.__name__: partial(InBlocks, f) for f in (online, online_normalised, tiled)},
    **MODULES,
}


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a style, two layers where its output allows, and its input."""
    x = torch.randn(2, STEPS, WIDTH, generator=torch.Generator().manual_seed(1))
    first = STYLES[name]()
    with torch.no_grad():
        more = [STYLES[name]()] if first(x).shape == x.shape else []
    return nn.Sequential(first, *more), {"input": x}
