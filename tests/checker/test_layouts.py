"""Heads, values and masks that lie otherwise: each mistake beside a neighbour that is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intently as it
from intently.checker import check

from .reports import names


class Layer(nn.Module):
    """Causal attention, right; mistakes replace its parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (4, 8)).transpose(1, 2)

    def future(self, t: int) -> Tensor:
        return torch.ones(t, t).triu(1).bool()

    def values(self, v: Tensor) -> Tensor:
        return v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(y) for y in self.qkv(x).split(32, -1))
        scores = (q @ k.mT * 8**-0.5).masked_fill(self.future(x.shape[1]), -torch.inf)
        return self.out((scores.softmax(-1) @ self.values(v)).transpose(1, 2).flatten(2))


class Viewed(Layer):
    def split(self, x: Tensor) -> Tensor:
        return x.view(len(x), 4, -1, 8)


class ViewedAfter(Layer):
    def split(self, x: Tensor) -> Tensor:
        return (
            x.unflatten(-1, (4, 8))
            .transpose(1, 2)
            .view(len(x), 4, -1)[..., None]
            .unflatten(2, (-1, 8))[..., 0]
        )


class Interleaved(Layer):
    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (8, 4)).permute(0, 3, 1, 2)


class NothingButLater(Layer):
    def future(self, t: int) -> Tensor:
        return torch.ones(t, t).tril().bool()


class RotatedValues(Layer):
    def values(self, v: Tensor) -> Tensor:
        return it.Rotary(8, base=300.0)(v)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Layer, []),
        (Viewed, ["view-raises", "split-by-reshape"]),
        (ViewedAfter, ["view-raises"]),
        (Interleaved, ["heads-interleaved"]),
        (NothingButLater, ["mask-inverted"]),
        (RotatedValues, ["values-rotated"]),
    ],
)
def test_a_layer(kind: type[Layer], expected: list[str]) -> None:
    report = check(kind(), inputs={"x": torch.randn(2, 7, 32)}, mask=it.causal())
    assert names(report) == expected, str(report)


def grouped(q: Tensor, k: Tensor, v: Tensor, *, keys: bool, values: bool) -> Tensor:
    n = q.shape[1] // k.shape[1]
    k = k.repeat(1, n, 1, 1) if keys else k.repeat_interleave(n, 1)
    v = v.repeat(1, n, 1, 1) if values else v.repeat_interleave(n, 1)
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("values", [False, True])
def test_key_heads_and_value_heads_are_shared_alike(keys: bool, values: bool) -> None:
    draw = torch.randn(3, 2, 6, 7, 8)
    inputs = {"q": draw[0], "k": draw[1, :, :2], "v": draw[2, :, :2]}
    report = check(lambda q, k, v: grouped(q, k, v, keys=keys, values=values), inputs=inputs)
    assert names(report) == ["key-heads-tiled"] * (keys or values), str(report)


@pytest.mark.parametrize(("merged", "right"), [("bthd", True), ("bhtd", False)])
def test_a_function_joins_heads(merged: str, right: bool) -> None:
    def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = (torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        return torch.einsum(f"bhts,bshd->{merged}", w, v).reshape(q.shape)

    q, k, v = torch.randn(3, 2, 7, 4, 6)
    report = check(biased, inputs={"q": q, "k": k, "v": v})
    assert names(report) == [] if right else ["merged-by-reshape"], str(report)


def padded(order: list[int] | None, dim: int = -1, fill: float = -torch.inf) -> Any:
    def attend(q: Tensor, k: Tensor, v: Tensor, pad: Tensor) -> Tensor:
        hidden = pad[:, None, None] if order is None else pad[order][:, None, None]
        hidden = hidden if dim == -1 else hidden.mT
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(hidden, fill).softmax(-1) @ v

    return attend


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (padded(None), []),
        (padded([2, 1, 0]), ["mask-of-other-rows"]),
        (padded([1, 2, 0]), ["mask-of-other-rows"]),
        (padded(None, -2), ["mask-on-queries"]),
    ],
)
def test_padding_lies_on_the_keys_of_its_row(subject: Any, expected: list[str]) -> None:
    q, k, v = torch.randn(3, 3, 4, 7, 8)
    pad = torch.arange(7) >= torch.tensor([7, 5, 4])[:, None]
    report = check(
        subject, inputs={"q": q, "k": k, "v": v, "pad": pad}, arguments={"pad": "ignore"}
    )
    assert [x for x in names(report) if x != "nan-without-keys"] == expected, str(report)


@pytest.mark.parametrize("turned", [False, True])
def test_a_causal_window_as_a_whole(turned: bool) -> None:
    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(q.shape[-2])
        far = i - i[:, None] if turned else i[:, None] - i
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(far >= 0) & (far < 3))

    report = check(windowed, mask=it.causal() & it.window(2, 0))
    assert names(report) == ["mask-transposed"] * turned
