"""Forms of attention by hand whose weights never stand alone, or that are reached on other ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attending import Softmaxes, close, watched

B, H, T, D = 2, 3, 8, 4
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
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


def divided_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = scores(q, k)
    e = (z - z.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def causal_times_reciprocal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(q, k)) * PAST
    return torch.matmul(e, v) * e.sum(-1, keepdim=True).reciprocal()


def moved_before_the_division(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(q, k))
    y = (e @ v).transpose(1, 2) / e.sum(-1).transpose(1, 2).unsqueeze(-1)
    return y.transpose(1, 2)


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(k, q))
    return (v.mT @ e / e.sum(-2, keepdim=True)).mT


def powers_of_two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp2(scores(q, k) * math.log2(math.e))
    return (e / e.sum(-1, keepdim=True)) @ v


def in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    best, total, mixed = torch.tensor(-torch.inf), torch.zeros(()), torch.zeros(())
    for keys, values in zip(k.split(3, -2), v.split(3, -2)):
        z = scores(q, keys)
        new = torch.maximum(best, z.amax(-1, keepdim=True))
        e, shrink = (z - new).exp(), (best - new).exp()
        total = shrink * total + e.sum(-1, keepdim=True)
        mixed, best = shrink * mixed + e @ values, new
    return mixed / total


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


def less_their_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = scores(q, k)
    return torch.exp(z - z.logsumexp(-1, keepdim=True)) @ v


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = scores(q, k).exp_()
    return z.div_(z.sum(-1, keepdim=True)) @ v


def normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.normalize(scores(q, k).exp(), p=1.0, dim=-1) @ v


def of_exponentials(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = scores(k, q).softmax(-2)
    return (v.exp().mT @ w).mT.log()


def on_a_grid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.unflatten(-2, (2, 4)) for x in (q, k, v))
    z = torch.einsum("bhijd,bhxyd->bhijxy", q, k) / math.sqrt(D)
    w = z.flatten(-2).softmax(-1).view_as(z)
    return torch.einsum("bhijxy,bhxyd->bhijd", w, v).flatten(-3, -2)


def on_a_grid_in_steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.unflatten(-2, (2, 4)) for x in (q, k, v))
    z = torch.einsum("bhijd,bhxyd->bhijxy", q, k) / math.sqrt(D)
    z = z.masked_fill(~PAST.view(2, 4, 2, 4), -torch.inf)
    e = torch.exp(z - z.amax((-2, -1), keepdim=True))
    w = e / e.sum((-2, -1), keepdim=True)
    return torch.einsum("bhijxy,bhxyd->bhijd", w, v).flatten(-3, -2)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(q, k))
    return (e / e.sum(-1, keepdim=True)) @ v


def closed(function: Attend) -> Attend:
    return lambda *given: function(*given)


def checkpointed(q: Tensor, k: Tensor, v: Tensor) -> Any:
    def run(*given: Tensor) -> Tensor:
        e = torch.exp(scores(*given[:2]))
        return (e / e.sum(-1, keepdim=True)) @ given[2]

    return checkpoint(run, q, k, v, use_reentrant=False)


class Helper:
    """Attends, and is no module."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.weights(q, k) @ v

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        e = torch.exp(scores(q, k))
        return e / e.sum(-1, keepdim=True)


class Differentiated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return written_out(q, k, v)


def in_autograd(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return Differentiated.apply(q, k, v)  # type: ignore[no-untyped-call]


@torch.jit.script  # type: ignore[untyped-decorator]
def scripted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(torch.matmul(q, k.transpose(-1, -2)) / 2.0)
    return torch.matmul(e / e.sum(-1, keepdim=True), v)


FORMS: dict[str, Any] = {
    **{f.__name__: f for f in (divided_last, moved_before_the_division, keys_first)},
    **{f.__name__: f for f in (powers_of_two, in_blocks, normalised_blocks, in_place, normalised)},
    **{
        f.__name__: f
        for f in (less_their_logsumexp, on_a_grid, checkpointed, in_autograd, of_exponentials)
    },
    "closure": closed(written_out),
    "partial": partial(written_out),
    "in a list": [written_out],
    "object": Helper(),
    "scripted": scripted,
}
CAUSAL: dict[str, Any] = {
    f.__name__: f for f in (causal_times_reciprocal, causal_blocks, on_a_grid_in_steps)
}


class FromList(Attends):
    def forward(self, x: Tensor) -> Tensor:
        return self.function[0](*self.split(x)).transpose(1, 2).flatten(2)


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", [*FORMS, *CAUSAL])
def test_a_form(name: str, deep: bool) -> None:
    kind = FromList if name == "in a list" else Attends
    layer, x = kind((FORMS | CAUSAL)[name]), inputs()
    seen = watched(nn.Sequential(layer), x, deep=deep)
    (entry,) = seen.calls
    assert entry.name == "0" and entry.verified and not seen.coverage().unseen
    weights = layer.weights(x, causal=name in CAUSAL)
    close(entry, weights.view(entry.shape))


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
    """Random exponential features, of which no softmax is made."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(8, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x @ self.w.weight.T)
        return e @ (e.mT @ x) / (e @ e.sum(-2).unsqueeze(-1))


def divided_by_more(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(scores(q, k))
    return (e / (1 + e.sum(-1, keepdim=True))) @ v


SAID: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "features": (Features, (B, T, 8), "meet values before they are divided by their sum"),
    "divided by more": (
        lambda: Attends(divided_by_more), (B, T, H * D), "divided by something that is not their"
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", SAID)
def test_exponentials_without_a_softmax_are_said(name: str, deep: bool) -> None:
    made, shape, why = SAID[name]
    seen = watched(nn.Sequential(made()), torch.randn(shape), deep=deep)
    assert not seen.calls and why in seen.coverage().unseen["0"]


class TalkingHeads(Attends):
    """Heads are mixed after the softmax, by a layer of its own."""

    def __init__(self, by: str) -> None:
        super().__init__(None)
        self.by, self.linear = by, nn.Linear(H, H)
        self.convolution = nn.Conv2d(H, H, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        w = scores(q, k).softmax(-1)
        if self.by == "linear":
            w = self.linear(w.movedim(1, -1)).movedim(-1, 1)
        else:
            w = self.convolution(w)
        return (w @ v).transpose(1, 2).flatten(2)


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("by", ["linear", "convolution"])
def test_weights_that_a_layer_mixes_are_those_of_the_softmax(by: str, deep: bool) -> None:
    layer, x = TalkingHeads(by), inputs()
    seen = watched(nn.Sequential(layer), x, deep=deep)
    (entry,) = seen.calls
    assert entry.name == "0" and entry.verified
    close(entry, layer.weights(x))
    assert "0: the weights are those of the softmax; afterwards" in str(seen.coverage())


class Mixer(nn.Module):
    """Mixes values with weights that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, weights: Tensor, values: Tensor) -> Tensor:
        return self.out(weights @ values)


class Apart(nn.Module):
    """The softmax is the last layer of a part; the product is in another."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(8, 5), nn.Softmax(-1))
        self.mixer, self.values = Mixer(), nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(self.score(x), self.values)


@torch.no_grad()
def test_a_softmax_and_a_product_in_parts_of_a_module() -> None:
    model = nn.Sequential(Apart())
    x = torch.randn(B, T, 8)
    seen = watched(model, x)
    (entry,) = seen.calls
    assert entry.name == "0" and entry.verified
    close(entry, model[0].score(x).view(entry.shape))


class Pools(nn.Module):
    """One weight for each place of an image, and the mean over rows and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.score(x)
        return (z.flatten(1).softmax(1).view_as(z) * x).sum((-2, -1))


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
def test_pooling_over_two_axes(deep: bool) -> None:
    x = torch.randn(B, 6, 3, 4)
    model = nn.Sequential(Pools())
    with Softmaxes() as real:
        model(x)
    (entry,) = watched(model, x, deep=deep).calls
    assert entry.verified
    close(entry, real.found[0].view(entry.shape))


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
def test_a_sparse_softmax(deep: bool) -> None:
    def sparse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z = scores(q[0, 0], k[0, 0]).masked_fill(~PAST, 0).to_sparse()
        y = torch.sparse.mm(torch.sparse.softmax(z, 1), v[0, 0])
        return y.expand(B, H, T, D)

    layer, x = Attends(sparse), inputs()
    (entry,) = watched(nn.Sequential(layer), x, deep=deep).calls
    assert entry.verified
    close(entry, layer.weights(x, causal=True)[0, 0])


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_quantised_layers_and_products(whole: bool, deep: bool) -> None:
    """Weights that are quantised before they meet values are those of the softmax."""

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
    (entry,) = seen.calls
    assert entry.name == "0" and entry.verified, seen.coverage()
    close(entry, real.found[0])
    assert ("quantize_per_tensor" in str(seen.coverage())) == whole
