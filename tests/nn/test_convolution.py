"""A convolution written as attention is the convolution."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import intently as it
from intently.core.masks import Geometry
from intently.core.masks.mask import Mask, seen_exactly
from intently.errors import ArgumentError, KindError
from intently.nn.image.convolution import Taps, convolution_as_attention

from ..combinations import each
from ..messages import raises

KINDS: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3},
    {"kernel_size": 1},
    {"kernel_size": 2, "padding": "same"},
    {"kernel_size": (3, 4), "padding": "same", "dilation": (2, 1)},
    {"kernel_size": 3, "padding": "valid", "stride": 2},
    {"kernel_size": (2, 3), "padding": (1, 2), "stride": (3, 2), "dilation": (2, 1)},
    {"kernel_size": 3, "padding": 1, "groups": 2},
    {"kernel_size": 3, "padding": 1, "groups": 4, "bias": False},
    {"kernel_size": 3, "padding": 2, "padding_mode": "reflect", "stride": 2},
    {"kernel_size": 3, "padding": 2, "padding_mode": "replicate", "dilation": 2},
    {"kernel_size": (3, 2), "padding": (2, 1), "padding_mode": "circular"},
    {"kernel_size": 4, "padding": "same", "padding_mode": "circular"},
    {"kernel_size": 5, "padding": 4, "stride": 4},
]


@each({"kind": KINDS, "dtype": [torch.float32, torch.float64, torch.bfloat16]})
def test_it_equals_the_convolution(kind: dict[str, Any], dtype: torch.dtype) -> None:
    conv = nn.Conv2d(4, 8, **kind).to(dtype)
    layer = convolution_as_attention(conv)
    x = torch.randn(2, 4, 7, 9, dtype=dtype)
    atol = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(layer(x), conv(x), atol=atol, rtol=atol)
    torch.testing.assert_close(layer(x[0]), conv(x[0]), atol=atol, rtol=atol)


@pytest.mark.parametrize("kind", KINDS[3:8], ids=str)
def test_its_gradients_are_those_of_the_convolution(kind: dict[str, Any]) -> None:
    conv = nn.Conv2d(4, 8, **kind).double()
    layer = convolution_as_attention(conv)
    x = torch.randn(2, 4, 7, 9, dtype=torch.float64, requires_grad=True)
    theirs, ours = conv(x), layer(x)
    up = torch.randn_like(theirs)
    assert conv.bias is not None and layer.out_bias is not None
    expected = torch.autograd.grad(theirs, [x, conv.weight, conv.bias], up)
    found = torch.autograd.grad(ours, [x, layer.out_weight, layer.out_bias], up)
    torch.testing.assert_close(found[0], expected[0])
    weight = expected[1].unflatten(0, (conv.groups, -1)).movedim(2, -1).flatten(2)
    torch.testing.assert_close(found[1], weight)
    torch.testing.assert_close(found[2], expected[2])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_heads_are_one_hot_or_empty_where_they_read_padding(kind: dict[str, Any]) -> None:
    layer = convolution_as_attention(nn.Conv2d(4, 8, **kind))
    x = torch.randn(2, 4, 7, 9)
    dense = layer.attend(x).dense()
    sums = dense.sum(-1)
    assert ((dense == 0) | (dense == 1)).all()
    assert ((sums == 0) | (sums == 1)).all()
    padded = layer.mode == "zeros" and max(map(max, layer.padding)) > 0
    assert bool((sums == 0).any()) == padded


def test_each_head_looks_at_its_own_neighbour() -> None:
    A = convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1)).attend(torch.zeros(1, 1, 4, 5))
    middle = 2 * 5 + 2
    looked = [int(A[0, head].argmax()[middle]) for head in range(9)]
    assert looked == [middle + 5 * y + x for y, x in itertools.product((-1, 0, 1), repeat=2)]
    assert A[:, 0].shape == (1, 20, 20)
    assert int(A[0, 0].argmax()[0]) == -1  # the pixel above the first row is padding


def mask_of(kind: dict[str, Any]) -> tuple[Mask, Geometry]:
    A = convolution_as_attention(nn.Conv2d(4, 8, **kind)).attend(torch.zeros(1, 4, 7, 9))
    assert A.mask is not None
    return A.mask, A.problem.geometry


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_closed_forms_of_the_mask(kind: dict[str, Any]) -> None:
    mask, g = mask_of(kind)
    entries = mask.dense(g)
    every = [torch.arange(n) for n in g.shape]
    lead = torch.meshgrid(*every, indexing="ij")
    assert torch.equal(mask.at(g, lead[:2], *lead[2:]), entries.expand(g.shape))
    seen, exact = mask.seen(g), seen_exactly(mask, g)
    assert (seen is None) == (exact is None)
    if seen is not None and exact is not None:
        assert torch.equal(seen.expand(exact.shape), exact)
    for rows, cols in [(1, 1), (4, 8), (16, 5), (100, 100)]:
        exact_states, states = Mask.blocks(mask, g, rows, cols), mask.blocks(g, rows, cols)
        assert (exact_states[states == 0] == 0).all()
        assert not (states == 2).any()


def test_blocks_far_from_the_diagonal_are_empty() -> None:
    layer = convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1))
    mask = layer.attend(torch.zeros(1, 1, 64, 64)).mask
    assert mask is not None
    states = mask.blocks(Geometry((1, 9), 4096, 4096, torch.device("cpu")), 64, 64)
    assert int((states > 0).sum()) == 3 * 64 - 2


def test_a_large_image_builds_no_matrix() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1, stride=2)
    layer = convolution_as_attention(conv)
    x = torch.randn(1, 3, 96, 96)
    plan = layer.attend(x).plan(x.flatten(2).mT[:, None])
    assert plan.kernel == "tiled"
    assert plan.memory < 9 * 48 * 48 * 96 * 96
    torch.testing.assert_close(layer(x), conv(x), atol=1e-5, rtol=1e-5)


def test_pixels_that_no_tap_reads_may_hold_anything() -> None:
    conv = nn.Conv2d(1, 1, 1, stride=2)
    x = torch.randn(1, 1, 4, 4)
    clean = convolution_as_attention(conv)(x)
    x[..., 1::2, :] = float("nan")
    assert torch.equal(convolution_as_attention(conv)(x), clean)


def test_a_mask_draws_itself() -> None:
    taps = Taps(torch.tensor([[2]]), "zeros", *(1, 1, 1, 1, 0, 1), *(3, 3, 3, 1, 1, 1))
    assert taps.draw(3) == "· █ ·\n· · █\n· · ·"
    assert repr(mask_of({"kernel_size": 3})[0]) == "Taps((1, 9), 7×9 → 5×7)"


class Squared(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) ** 2


class Standardized(nn.Conv2d):
    def _conv_forward(self, input: Any, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        return super()._conv_forward(input, weight / weight.std(), bias)


class Named(nn.Conv2d):
    """Computes what its parent does."""


def converted(kind: type[nn.Module] = nn.Conv2d, **options: Any) -> Any:
    return convolution_as_attention(kind(2, 3, 3, **options))  # type: ignore[arg-type]


X = torch.randn(1, 2, 5, 5)
test_what_is_no_plain_convolution = raises(
    {
        KindError: {
            "conv: expected an nn.Conv2d; got Squared, which has a forward of its own. What it "
            "computes is not known.": lambda: converted(Squared),
            "conv: expected an nn.Conv2d; got Standardized, which has a _conv_forward of its own. "
            "What it computes is not known.": lambda: converted(Standardized),
            "conv: expected an nn.Conv2d with weights; got LazyConv2d without. Call it once to set "
            "its channels.": lambda: convolution_as_attention(nn.LazyConv2d(3, 3)),
            "conv: expected an nn.Conv2d; got Conv1d.": lambda: converted(nn.Conv1d),
        }
    }
)
test_images_that_do_not_fit = raises(
    {
        ArgumentError: {
            "x: expected shape (b, c=2, height, width), or (c": lambda: converted()(
                torch.zeros(1, 3, 5, 5)
            ),
            "x: expected an image that a kernel of 3 × 3 fits": lambda: converted()(
                torch.zeros(1, 2, 2, 5)
            ),
            "x: expected an image that a kernel of 3 × 3 fits into; got shape (1, 2, 2, 5). "
            "Padding 2 + 2, mode 'reflect'.": lambda: converted(padding=2, padding_mode="reflect")(
                torch.zeros(1, 2, 2, 5)
            ),
            "mask: expected t, s = (35, 63) pixels; got t=2": lambda: it.attend(
                torch.zeros(1, 9, 2, 1),
                torch.zeros(1, 1, 2, 1),
                mask=mask_of({"kernel_size": 3})[0],
            ),
        },
        KindError: {
            "x: expected floating-point images (b, c, height, width); got dtype "
            "torch.int64.": lambda: converted()(torch.zeros(1, 2, 5, 5, dtype=torch.int64)),
            **{
                f"x: expected torch.float32 on cpu, as the layer's weights; got {dtype} on cpu. "
                "Convert one of them with .to(…).": [
                    lambda dtype=dtype, name=name: getattr(converted(), name)(X.to(dtype))
                    for name in ("forward", "attend")
                ]
                for dtype in (torch.float64, torch.bfloat16)
            },
        },
    }
)


@pytest.mark.parametrize("make", [lambda: Named(2, 3, 3), lambda: nn.LazyConv2d(3, 3)])
def test_what_computes_a_convolution_is_taken(make: Callable[[], nn.Conv2d]) -> None:
    conv = make()
    expected = conv(X)
    torch.testing.assert_close(convolution_as_attention(conv)(X), expected)


def test_what_is_frozen_stays_frozen() -> None:
    conv = nn.Conv2d(2, 3, 3)
    assert conv.bias is not None
    conv.weight.requires_grad_(False)
    layer = convolution_as_attention(conv)
    assert {n: p.requires_grad for n, p in layer.named_parameters()} == {
        "out_weight": False,
        "out_bias": True,
    }
    conv.requires_grad_(False)
    assert not any(p.requires_grad for p in convolution_as_attention(conv).parameters())
