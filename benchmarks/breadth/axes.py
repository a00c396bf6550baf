"""More forms of attention by hand: over several axes, between heads, with gathered keys.

Functions of queries, keys and values (b, h, t, d), as in `styles`, written for this
benchmark.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, einsum
from torch.nn import functional as F

from benchmarks.breadth.forms import Function, past, scores


def two_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys on a grid; the softmax over rows and columns at once."""
    q, k, v = (x.unflatten(-2, (2, 4)) for x in (q, k, v))
    s = einsum("bhijd,bhxyd->bhijxy", q, k) / math.sqrt(q.shape[-1])
    w = s.flatten(-2).softmax(-1).view_as(s)
    return einsum("bhijxy,bhxyd->bhijd", w, v).flatten(-3, -2)


def two_axes_biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with a bias for each axis, and the exponentials divided by a sum over both."""
    q, k, v = (x.unflatten(-2, (2, 4)) for x in (q, k, v))
    s = einsum("bhijd,bhxyd->bhijxy", q, k) / math.sqrt(q.shape[-1])
    s = s + torch.linspace(-1, 1, 4).view(2, 1, 2, 1) + torch.linspace(0, 2, 16).view(4, 1, 4)
    e = torch.exp(s - s.amax((-2, -1), keepdim=True))
    return einsum("bhijxy,bhxyd->bhijd", e / e.sum((-2, -1), keepdim=True), v).flatten(-3, -2)


def talking_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores mixed between heads."""
    mix = torch.eye(q.shape[1]) * 0.7 + 0.075
    return einsum("bhts,hg->bgts", scores(q, k), mix).softmax(-1) @ v


def talking_both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads mixed before and after by a convolution, as in CaiT."""
    mix = (torch.eye(q.shape[1]) * 0.7 + 0.075)[..., None, None]
    return F.conv2d(F.conv2d(scores(q, k), mix).softmax(-1), mix) @ v


def channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Channels attend to channels, as in XCiT."""
    q, k = (F.normalize(x.mT, dim=-1) for x in (q, k))
    return ((q @ k.mT).softmax(-1) @ v.mT).mT


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Slots compete for keys, then their weights are divided again, as in slot attention."""
    w = scores(q, k).softmax(-2) + 1e-8
    return (w / w.sum(-1, keepdim=True)) @ v


def difference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One softmax less a part of another, as in the differential transformer."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    return (scores(q1, k1).softmax(-1) - 0.3 * scores(q2, k2).softmax(-1)) @ v


def nystrom(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Three softmaxes, two of them of landmarks, as in Nyströmformer."""
    a, b = (x.unflatten(-2, (4, -1)).mean(-2) for x in (q, k))
    first, middle, last = (scores(x, y).softmax(-1) for x, y in ((q, b), (a, b), (a, k)))
    return first @ torch.linalg.pinv(middle) @ (last @ v)


def linformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys and values projected to fewer."""
    down = torch.linspace(-1, 1, 3 * k.shape[-2]).view(3, -1).softmax(-1)
    return scores(q, down @ k).softmax(-1) @ (down @ v)


def latent_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of content and of rotated parts added, as in DeepSeek."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    s = (q1 @ k1.mT + q2 @ k2[:, :1].mT) / math.sqrt(q.shape[-1])
    return s.masked_fill(~past(q), -torch.inf).softmax(-1) @ v


def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Neighbours only, gathered by index, as in local attention."""
    t = q.shape[-2]
    near = (torch.arange(t)[:, None] + torch.arange(-1, 2)).clamp(0, t - 1)
    s = einsum("bhtd,bhtnd->bhtn", q, k[:, :, near]) / math.sqrt(q.shape[-1])
    return einsum("bhtn,bhtnd->bhtd", s.softmax(-1), v[:, :, near])


def bucketed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Steps sorted by a hash, attended in chunks, and sorted back, as in Reformer."""
    order = q[..., 0].argsort(-1)[..., None]
    q, k, v = (x.gather(-2, order.expand_as(x)).unflatten(-2, (-1, 4)) for x in (q, k, v))
    s = einsum("bhnid,bhnjd->bhnij", q, k) / math.sqrt(q.shape[-1])
    made = einsum("bhnij,bhnjd->bhnid", torch.exp(s - s.logsumexp(-1, keepdim=True)), v)
    return made.flatten(-3, -2).gather(-2, order.argsort(-2).expand(*q.shape[:2], -1, q.shape[-1]))


def graph(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores of edges, hidden where there are none, as in graph attention networks."""
    s = F.leaky_relu(q.sum(-1, keepdim=True) + k.sum(-1).unsqueeze(-2), 0.2)
    return torch.where(past(q), s, -9e15).softmax(-1) @ v


FUNCTIONS: tuple[Function, ...] = (
    two_axes, two_axes_biased, talking_before, talking_both, channels, over_queries, difference,
    nystrom, linformer, latent_parts, gathered, bucketed, graph,
)  # fmt: skip
