"""Forms of attention by hand whose weights never stand alone, or that are reached on other ways."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .attending import Softmaxes, close, watched

B, H, T, D = 2, 3, 8, 4
PAST = torch.ones(T, T, dtype=torch.bool).tril()


class Attends(nn.Module):
    """A function that attends, behind projections."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.function = nn.Linear(H * D, 3 * H * D), function

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return 2 * q, 2 * k, v

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.function(*self.split(x))
        return y.transpose(1, 2).flatten(2)

    def weights(self, x: Tensor, causal: bool = False) -> Tensor:
        q, k, _ = self.split(x)
        return scores(q, k).masked_fill(~PAST if causal else ~PAST & False, -torch.inf).softmax(-1)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(D)


def inputs() -> Tensor:
    return torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(1))


def moved_before_the_division(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(q, k))
    y = (e @ v).transpose(1, 2) / e.sum(-1).transpose(1, 2).unsqueeze(-1)
    return y.transpose(1, 2)


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(k, q))
    return (v.mT @ e / e.sum(-2, keepdim=True)).mT


def normalised_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    total, y = torch.zeros(()), torch.zeros(())
    for keys, values in zip(k.split(4, -2), v.split(4, -2)):
        e = scores(q, keys).exp()
        grown = total + e.sum(-1, keepdim=True)
        y, total = (y * total + e @ values) / grown, grown
    return y


def causal_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    total, mixed = torch.zeros(()), torch.zeros(())
    for n in range(0, T, 4):
        z = scores(q, k[..., n : n + 4, :]).masked_fill(~PAST[:, n : n + 4], -torch.inf)
        e = z.exp()
        mixed, total = mixed + e @ v[..., n : n + 4, :], total + e.sum(-1, keepdim=True)
    return mixed / total


def of_exponentials(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = scores(k, q).softmax(-2)
    return (v.exp().mT @ w).mT.log()


@torch.jit.script  # type: ignore[untyped-decorator]
def scripted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(torch.matmul(q, k.transpose(-1, -2)) / 2.0)
    return torch.matmul(e / e.sum(-1, keepdim=True), v)


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "form", [moved_before_the_division, keys_first, of_exponentials, scripted, causal_blocks]
)
def test_a_form(form: Any, deep: bool) -> None:
    """`test_breadth` holds the others."""
    layer, x = Attends(form), inputs()
    seen = watched(nn.Sequential(layer), x, deep=deep)
    (entry,) = seen.calls
    assert entry.name == "0" and entry.verified and not seen.coverage().unseen
    close(entry, layer.weights(x, causal=form is causal_blocks))


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
def test_blocks_of_queries_and_keys_are_one_entry_for_each_block_of_queries(deep: bool) -> None:
    def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([normalised_blocks(x, k, v) for x in q.split(4, -2)], -2)

    layer, x = Attends(tiled), inputs()
    seen = watched(nn.Sequential(layer), x, deep=deep)
    first, second = seen.calls
    assert first.verified and second.verified
    close(first, layer.weights(x)[..., :4, :])
    close(second, layer.weights(x)[..., 4:, :])


class Features(nn.Module):
    """Exponential features: linear attention, whose weights are never computed."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(8, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x @ self.w.weight.T)
        return e @ (e.mT @ x) / (e @ e.sum(-2).unsqueeze(-1))


def divided_by_more(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(q, k))
    return (e / (1 + e.sum(-1, keepdim=True))) @ v


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
def test_weights_that_are_never_computed(deep: bool) -> None:
    layer, x = Features(), torch.randn(B, T, 8)
    (entry,) = watched(nn.Sequential(layer), x, deep=deep).calls
    e = torch.exp(x @ layer.w.weight.T)
    weights = e @ e.mT
    close(entry, (weights / weights.sum(-1, keepdim=True))[:, None])


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
def test_weights_that_a_sink_leaves_below_1(deep: bool) -> None:
    layer, x = Attends(divided_by_more), inputs()
    (entry,) = watched(nn.Sequential(layer), x, deep=deep).calls
    e = torch.exp(scores(*layer.split(x)[:2]))
    close(entry, e / (1 + e.sum(-1, keepdim=True)))


class Edges(nn.Module):
    """Nodes of a graph attend to those that an edge joins them with; ``heads`` (h,) or ()."""

    rows, keys = torch.tensor([[1, 2, 3, 4, 5, 0, 0, 1], [0, 1, 2, 3, 4, 5, 0, 1]])

    def __init__(self, *heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(8, 24)

    def weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each edge, and the values."""
        q, k, v = self.qkv(x).unflatten(-1, (3, *self.heads, -1)).unbind(1)
        e = (q[self.rows] * k[self.keys]).sum(-1).exp()
        total = torch.zeros(len(x), *self.heads).index_add(0, self.rows, e)
        return e / total[self.rows], v

    def forward(self, x: Tensor) -> Tensor:
        w, v = self.weights(x)
        return torch.zeros_like(v).index_add(0, self.rows, w[..., None] * v[self.keys])


@torch.no_grad()
@pytest.mark.parametrize("heads", [(), (2,)])
def test_edges_are_places_of_a_matrix(heads: tuple[int, ...]) -> None:
    layer, x = Edges(*heads), torch.randn(6, 8)
    seen = watched(nn.Sequential(layer), x)
    (entry,) = seen.calls
    assert entry.verified, seen.coverage()
    expected = torch.zeros(6, 6, *heads).index_put((layer.rows, layer.keys), layer.weights(x)[0])
    close(entry, expected.movedim(-1, 0) if heads else expected)


class TalkingHeads(Attends):
    """Heads are mixed after the softmax, by a layer of its own."""

    def __init__(self, by: str) -> None:
        super().__init__(None)
        self.by, self.linear = by, nn.Linear(H, H)
        self.convolution = nn.Conv2d(H, H, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return (self.mixed(scores(q, k).softmax(-1)) @ v).transpose(1, 2).flatten(2)

    def mixed(self, w: Tensor) -> Tensor:
        if self.by == "linear":
            return self.linear(w.movedim(1, -1)).movedim(-1, 1)
        return self.convolution(w)


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("by", ["linear", "convolution"])
def test_weights_that_a_layer_mixes_before_they_meet_the_values(by: str, deep: bool) -> None:
    layer, x = TalkingHeads(by), inputs()
    seen = watched(nn.Sequential(layer), x, deep=deep)
    (entry,) = seen.calls
    assert entry.name == "0" and entry.verified
    close(entry, layer.mixed(layer.weights(x)))
    assert "changed its weights before they met the values" in str(seen.coverage())


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_quantised_layers_and_products(whole: bool, deep: bool) -> None:
    """A product of quantised weights and values is named."""

    def rounded(x: Tensor) -> Tensor:
        x = x.contiguous()
        return torch.quantize_per_tensor(x, 0.05, 0, torch.qint8)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z = torch.ops.quantized.matmul(rounded(q), rounded(k.mT), 0.1, 0).dequantize()
        w = torch.softmax(z / math.sqrt(D), -1)
        if not whole:
            return w @ v
        y: Tensor = torch.ops.quantized.matmul(rounded(w), rounded(v), 0.05, 0)
        return y.dequantize()

    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(Attends(attend)), {nn.Linear})
    with Softmaxes() as real:
        model(inputs())
    seen = watched(model, inputs(), deep=deep)
    if whole:
        assert not seen.calls and "a softmax of" in seen.coverage().unseen["0"]
        return
    (entry,) = seen.calls
    assert entry.name == "0" and entry.verified, seen.coverage()
    close(entry, real.found[0])
