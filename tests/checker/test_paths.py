"""Other ways to the same numbers: mistakes of one path, and what is right beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.checker import check

CAP, SINK, SLOPE = 2.0, 0.7, 0.5


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    capped: bool = True,
    sunk: bool = True,
    biased: bool = True,
    causal: bool = True,
) -> Tensor:
    t, s = q.shape[-2], k.shape[-2]
    z = q @ k.mT * q.shape[-1] ** -0.5
    if capped:
        z = CAP * torch.tanh(z / CAP)
    distance = torch.arange(t)[:, None] + s - t - torch.arange(s)
    if biased:
        z = z - SLOPE * distance
    if causal:
        z = z.masked_fill(distance < 0, -torch.inf)
    sink = torch.full_like(z[..., :1], SINK if sunk else -torch.inf)
    return torch.cat([z, sink], -1).softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize(
    ("left_out", "name"),
    [
        ("capped", "softcap-in-one-path"),
        ("sunk", "sinks-in-one-path"),
        ("biased", "bias-in-one-path"),
        ("causal", "mask-in-one-path"),
    ],
)
def test_what_a_setting_leaves_out_is_named(left_out: str, name: str) -> None:
    def mine(q: Tensor, k: Tensor, v: Tensor, fast: bool = False) -> Tensor:
        return attention(q, k, v, **({left_out: False} if fast else {}))

    assert check(mine, mask=it.causal()).ok
    report = check(mine, mask=it.causal(), same=[{"fast": True}])
    assert name in [f.name for f in report.mistakes], str(report)
    assert "with fast=True" in str(report)
    assert next(f.example for f in report.mistakes if f.name == name) is not None


def test_settings_that_do_not_matter_are_right() -> None:
    def mine(q: Tensor, k: Tensor, v: Tensor, fast: bool = False) -> Tensor:
        if fast:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attention(q, k, v, capped=False, sunk=False, biased=False)

    report = check(mine, mask=it.causal(), same=[{"fast": True}])
    assert report.ok, str(report)


class Cached(nn.Module):
    """Causal attention with a cache; subclasses slip."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past, new], 2)

    def visible(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s).tril(s - t).bool()

    def bias(self, t: int, s: int) -> Tensor:
        return torch.zeros(t, s)

    def forward(self, x: Tensor, past: Any = None) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = self.joined(past[0], k), self.joined(past[1], v)
        z = q @ k.mT * 8**-0.5 + self.bias(q.shape[2], k.shape[2])
        z = z.masked_fill(~self.visible(q.shape[2], k.shape[2]), -torch.inf)
        y = z.softmax(-1).nan_to_num(0.0) @ v
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


class Prepended(Cached):
    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([new, past], 2)


class Overwritten(Cached):
    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past[:, :, -2:], new], 2)


class Unmasked(Cached):
    def visible(self, t: int, s: int) -> Tensor:
        return super().visible(t, s) if t == s else torch.ones(t, s).bool()


class TopLeft(Cached):
    def visible(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s).tril().bool()


class Sloped(Cached):
    def bias(self, t: int, s: int) -> Tensor:
        return -0.3 * (torch.arange(t)[:, None] + s - t - torch.arange(s)).abs()


class BiasRestarts(Cached):
    def bias(self, t: int, s: int) -> Tensor:
        return -0.3 * (torch.arange(t)[:, None] - torch.arange(s)).abs()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Prepended, "cache-prepended"),
        (Overwritten, "cache-overwritten"),
        (Unmasked, "mask-in-cache"),
        (TopLeft, "mask-top-left"),
        (BiasRestarts, "bias-offset-lost"),
    ],
)
def test_what_a_cache_gets_wrong_is_named(kind: type[Cached], name: str) -> None:
    report = check(kind().eval(), mask=it.causal())
    assert name in [f.name for f in report.mistakes], str(report)
    assert next(f.example for f in report.mistakes if f.name == name) is not None


@pytest.mark.parametrize("kind", [Cached, Sloped])
def test_a_cache_that_is_right_passes(kind: type[Cached]) -> None:
    report = check(kind().eval(), mask=it.causal())
    assert report.ok, str(report)
    held = [p.holds for p in report.properties if "cache" in p.name]
    assert held and all(held)


class Trained(nn.Module):
    """Causal attention that may lose its mask in training."""

    def __init__(self, careless: bool) -> None:
        super().__init__()
        self.careless, self.drop = careless, nn.Dropout(0.2)
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        z = q @ k.mT * 8**-0.5
        if not (self.careless and self.training):
            z = z.masked_fill(~torch.ones(z.shape[-2:]).tril().bool(), -torch.inf)
        return (self.drop(z.softmax(-1)) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("careless", [True, False])
def test_a_mask_that_training_drops(careless: bool) -> None:
    torch.manual_seed(0)
    report = check(Trained(careless).eval(), mask=it.causal())
    assert ("mask-in-one-path" in [f.name for f in report.mistakes]) is careless, str(report)
    assert report.ok is not careless
