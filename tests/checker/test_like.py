"""Two attentions that should be the same: where they part, by name; and near neighbours."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.checker import check
from intently.errors import ArgumentError


def turned(x: Tensor, base: float = 10_000.0, sign: float = 1.0, pairs: bool = False) -> Tensor:
    d = x.shape[-1]
    rates = base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angle = sign * torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates
    cos, sin = angle.cos(), angle.sin()
    if pairs:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    """Causal rotary attention, fused as (3, h, d); what differs from it is overridden."""

    heads = 4

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def split(self, x: Tensor) -> Any:
        return self.qkv(x).unflatten(-1, (3, self.heads, 8)).permute(2, 0, 3, 1, 4)

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return turned(q), turned(k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def project(self, y: Tensor) -> Tensor:
        return self.out(y)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        q, k = self.rotate(q, k)
        return self.project(self.attend(q, k, v).transpose(1, 2).flatten(2))


class OtherRows(Layer):
    def split(self, x: Tensor) -> Any:
        return self.qkv(x).unflatten(-1, (self.heads, 3, 8)).permute(3, 0, 2, 1, 4)


class Interleaved(Layer):
    def split(self, x: Tensor) -> Any:
        return self.qkv(x).unflatten(-1, (3, 8, self.heads)).permute(2, 0, 4, 1, 3)


class Exchanged(Layer):
    def split(self, x: Tensor) -> Any:
        q, k, v = super().split(x)
        return q, v, k


class Pairs(Layer):
    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return turned(q, pairs=True), turned(k, pairs=True)


class Base(Layer):
    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return turned(q, 77.0), turned(k, 77.0)


class Backwards(Layer):
    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return turned(q, sign=-1.0), turned(k, sign=-1.0)


class KeysPlain(Layer):
    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return turned(q), k


class Unturned(Layer):
    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


class Scaled(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)


class NoMask(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Transposed(Layer):
    def project(self, y: Tensor) -> Tensor:
        return F.linear(y, self.out.weight.T, self.out.bias)


class NoBias(Layer):
    def project(self, y: Tensor) -> Tensor:
        return F.linear(y, self.out.weight)


def alike(kind: type[Layer]) -> tuple[Layer, Layer]:
    """A layer of a kind, and the reference with the same weights."""
    torch.manual_seed(0)
    reference = Layer().eval()
    mine = kind().eval()
    mine.load_state_dict(reference.state_dict())
    return mine, reference


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (OtherRows, "layout-of-fused-rows"),
        (Interleaved, "heads-interleaved"),
        (Exchanged, "projections-exchanged"),
        (Pairs, "rotary-pairs"),
        (Base, "rotary-base"),
        (Backwards, "rotary-direction"),
        (KeysPlain, "keys-not-rotated"),
        (Unturned, "rotation-missing"),
        (Scaled, "other-scale"),
        (NoMask, "mask-missing"),
        (Transposed, "weight-transposed"),
        (NoBias, "projection-bias-missing"),
    ],
)
def test_the_difference_is_named(kind: type[Layer], name: str) -> None:
    mine, reference = alike(kind)
    report = check(mine, mask=it.causal(), like=reference)
    assert name in [f.name for f in report.mistakes], str(report)
    assert not report.ok
    shown = next(f.example for f in report.mistakes if f.name == name)
    assert (shown is None) is (kind in (Transposed, NoBias)), "weights differ, but for the output's"


def test_both_matrices_are_those_of_the_two() -> None:
    mine, reference = alike(Scaled)
    found = check(mine, mask=it.causal(), like=reference).mistakes[0]
    assert found.example is not None
    right, wrong = (torch.tensor(x) for x in (found.example.expected, found.example.found))
    assert all(torch.allclose(x.sum(-1), torch.ones(6)) for x in (right, wrong))
    seen = torch.ones(6, 6).tril().bool()
    z = [x.log().masked_fill(~seen, 0.0) for x in (right, wrong)]
    z = [(x - x[:, :1])[seen] for x in z]  # scores, up to a number a row
    assert torch.allclose(z[1], 0.2 * 8**0.5 * z[0], atol=1e-3)


@pytest.mark.parametrize(
    ("other", "name"),
    [({"softcap": 3.0}, "softcap-other"), ({"sinks": torch.full((4,), 0.9)}, "sinks-other")],
)
def test_another_softcap_or_sink_is_named(other: dict[str, Any], name: str) -> None:
    options: dict[str, Any] = {"softcap": 2.0, "sinks": torch.full((4,), 0.3)}
    theirs, mine = (partial(it.attention, **x) for x in (options, {**options, **other}))
    assert [f.name for f in check(mine, like=theirs).mistakes] == [name]
    assert check(theirs, like=theirs).ok


def test_the_same_is_the_same() -> None:
    mine, reference = alike(Layer)
    report = check(mine, mask=it.causal(), like=reference)
    assert report.ok, str(report)
    assert [p.holds for p in report.properties if p.name == "like the reference"] == [True]


def test_the_difference_comes_with_its_place() -> None:
    mine, reference = alike(Scaled)
    report = check(mine, like=reference)
    said = next(f.said for f in report.mistakes if f.name == "other-scale")
    assert "first at query 1 of head" in said  # query 0 sees one key: no scale matters


def test_what_both_do_is_no_mistake() -> None:
    unscaled = partial(it.attention, scale=1.0)
    assert not check(unscaled).ok
    assert check(unscaled, like=unscaled).ok


def test_weights_of_the_same_names_are_aligned() -> None:
    torch.manual_seed(0)
    one, two = Layer().eval(), Layer().eval()
    before = copy.deepcopy(two.state_dict())
    report = check(one, mask=it.causal(), like=two)
    assert report.ok, str(report)
    assert all(torch.equal(x, before[n]) for n, x in two.state_dict().items())


def test_weights_that_cannot_be_aligned_are_refused() -> None:
    mine = alike(Layer)[0]
    with pytest.raises(ArgumentError, match="like: expected a reference with the same weights"):
        check(mine, inputs={"x": torch.randn(2, 6, 32)}, like=nn.Linear(32, 32))


def test_a_reference_that_takes_q_k_v() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(32, 4, batch_first=True).eval()

    def mine(x: Tensor) -> Tensor:
        w, b = theirs.in_proj_weight.to(x.dtype), theirs.in_proj_bias.to(x.dtype)
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in F.linear(x, w, b).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2)
        out = theirs.out_proj
        return F.linear(y, out.weight.to(x.dtype), out.bias.to(x.dtype))

    report = check(mine, inputs={"x": torch.randn(2, 6, 32)}, like=theirs)
    assert [f.name for f in report.mistakes] == ["no-scale"], str(report)
