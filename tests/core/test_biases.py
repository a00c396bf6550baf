"""Biases against the formulas of their papers, entry by entry, and against other libraries."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from intently.core.biases import Bias, TensorBias, alibi, as_bias, relative_buckets
from intently.core.masks import indexed
from intently.core.masks.geometry import Geometry
from intently.foundation.values import freeze, thaw

from ..combinations import each
from .formula import random

CPU = torch.device("cpu")
SIZES = [(5, 5), (3, 7), (7, 3), (1, 9), (4, 1)]


def geometry(*shape: int) -> Geometry:
    return Geometry(shape[:-2], shape[-2], shape[-1], CPU)


def whole(bias: Bias, g: Geometry, dtype: torch.dtype | None = torch.float64) -> Tensor:
    return bias.tile(g, torch.arange(g.t), torch.arange(g.s), dtype).expand(g.shape)


def pointwise(bias: Bias, g: Geometry) -> Tensor:
    at = torch.meshgrid(*(torch.arange(n) for n in g.shape), indexing="ij")
    return bias.at(g, at[:-2], at[-2], at[-1]).double().expand(g.shape)


def table(buckets: int, h: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return random(buckets, h, dtype=dtype)


def slope(i: int, n: int) -> float:
    """Slope of head i of n, as the paper's appendix says it for any n."""
    power = 2 ** math.floor(math.log2(n))
    if i < power:
        return 2 ** (-8 * (i + 1) / power)
    return 2 ** (-8 * (2 * (i - power) + 1) / (2 * power))


def by_hand(g: Geometry, entry: Callable[[int, int, int], float], starts: list[int]) -> Tensor:
    """``entry(head, position of the query, key)`` for every entry of a matrix (b, h, t, s)."""
    b, h = g.lead
    return torch.tensor(
        [
            [
                [[entry(n, starts[r] + i, j) for j in range(g.s)] for i in range(g.t)]
                for n in range(h)
            ]
            for r in range(b)
        ],
        dtype=torch.float64,
    ).reshape(g.shape)


def biases(b: int, h: int, t: int, s: int) -> dict[str, Bias]:
    """One of each kind for a matrix (b=2, h, t, s), float64."""
    offset = torch.tensor([1, s - t])
    return {
        "given": TensorBias(random(b, h, t, s)),
        "given, 2-D": TensorBias(random(t, s)),
        "given, per key": TensorBias(random(b, 1, 1, s)),
        "given, per query": TensorBias(random(h, t, 1)),
        "given, 1-D": TensorBias(random(s)),
        "given, scalar": TensorBias(torch.tensor(0.5, dtype=torch.float64)),
        "alibi": alibi(),
        "alibi, heads": alibi(h),
        "alibi, offset": alibi(offset=2),
        "alibi, offset of each row": alibi(offset=offset),
        "alibi, slopes": alibi(slopes=random(h).abs()),
        "alibi, one slope": alibi(slopes=torch.tensor(0.25, dtype=torch.float64)),
        "buckets": relative_buckets(table(8, h), max_distance=6),
        "buckets, one for all heads": relative_buckets(table(8, 1)),
        "buckets, past": relative_buckets(table(5, h), max_distance=4, bidirectional=False),
        "buckets, offset": relative_buckets(table(8, h), max_distance=6, offset=-1),
        "buckets, offset of each row": relative_buckets(table(8, h), offset=offset),
        "sum": alibi(offset=offset) + relative_buckets(table(8, h)) + random(b, 1, t, s),
    }


KINDS = list(biases(2, 3, 4, 6))


@each({"h": [1, 2, 3, 6, 8, 12, 20], "t, s": SIZES}, times=2)
def test_alibi_is_the_papers_formula(h: int, t: int, s: int) -> None:
    g = geometry(2, h, t, s)
    want = by_hand(g, lambda n, p, j: -slope(n, h) * abs(j - p), [s - t, s - t])
    for bias in (alibi(), alibi(h)):
        torch.testing.assert_close(whole(bias, g), want, rtol=1e-14, atol=0)


def test_alibi_with_offsets_and_slopes() -> None:
    g = geometry(2, 2, 3, 5)
    slopes = [0.5, 2.0]
    for offset, starts in ((0, [0, 0]), (torch.tensor([4, 1]), [4, 1])):
        want = by_hand(g, lambda n, p, j: -slopes[n] * abs(j - p), starts)
        got = whole(alibi(slopes=slopes, offset=offset), g)
        assert torch.equal(got, want)


def bucket(distance: int, buckets: int, far: int, both: bool) -> int:
    """The rule of T5 in whole numbers: away ≥ m · (far / m)^(k / (n − m)) without a logarithm."""
    n = buckets // 2 if both else buckets
    m = n // 2
    away = abs(distance) if both else max(0, -distance)
    steps = range(1, n - m)
    reached = sum(away ** (n - m) * m**k >= m ** (n - m) * far**k for k in steps)
    return (away if away < m else m + reached) + (n if both and distance > 0 else 0)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(4, 5), (8, 6), (8, 16), (32, 128)])
def test_buckets_are_the_papers(buckets: int, far: int, both: bool) -> None:
    g = geometry(1, 1, 1, 600)
    numbers = torch.arange(float(buckets), dtype=torch.float64)[:, None]
    bias = relative_buckets(numbers, max_distance=far, bidirectional=both, offset=300)
    want = [bucket(j - 300, buckets, far, both) for j in range(600)]
    assert whole(bias, g).flatten().tolist() == want


def t5(buckets: int, h: int, far: int, both: bool) -> Any:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=8,
        d_kv=4,
        num_heads=h,
        is_decoder=not both,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=far,
    )
    return T5Attention(config, has_relative_attention_bias=True, layer_idx=0)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (20, 33)])
def test_buckets_are_those_of_transformers(buckets: int, far: int, both: bool) -> None:
    layer = t5(buckets, 3, far, both)
    weight = layer.relative_attention_bias.weight
    bias = relative_buckets(weight, max_distance=far, bidirectional=both)
    for t, s in [(1, 1), (5, 5), (40, 40), (170, 300), (300, 170)]:
        theirs = layer.compute_bias(t, s)
        ours = relative_buckets(weight, max_distance=far, bidirectional=both, offset=0)
        assert torch.equal(whole(ours, geometry(1, 3, t, s), None), theirs)
    for past in (0, 3, 150):
        theirs = layer.compute_bias(2, past + 2, past_seen_tokens=past)
        assert torch.equal(whole(bias, geometry(1, 3, 2, past + 2), None), theirs)


@each({"t, s": SIZES, "kind": KINDS}, times=2)
def test_tiles_are_pieces_of_the_whole(kind: str, t: int, s: int) -> None:
    g = geometry(2, 3, t, s)
    bias = biases(*g.shape)[kind]
    full = whole(bias, g)
    every = torch.arange(t), torch.arange(s)
    for rows in (every[0][1:], every[0][:2], every[0].flip(0), every[0][::2], every[0][:0]):
        for cols in (every[1][1:3], every[1].flip(0), every[1][::2], every[1][:0]):
            tile = bias.tile(g, rows, cols, torch.float64)
            got = tile.expand(2, 3, len(rows), len(cols))
            assert torch.equal(got, full[:, :, rows][..., cols])


@pytest.mark.parametrize("kind", KINDS)
def test_pointwise_under_vmap(kind: str) -> None:
    """As FlexAttention asks: 0-dimensional indices, one vmap an axis."""
    g = geometry(2, 3, 4, 6)
    bias = biases(*g.shape)[kind]

    def entry(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return bias.at(g, (b, h), i, j) + 0.0 * i

    asked = entry
    for axis in reversed(range(4)):
        asked = torch.vmap(asked, in_dims=tuple(0 if n == axis else None for n in range(4)))
    got = asked(*(torch.arange(n) for n in g.shape)).double()
    torch.testing.assert_close(got, whole(bias, g), rtol=1e-6, atol=1e-6)


def part_of(bias: Bias, g: Geometry, cut: Any) -> Bias:
    return bias.part(cut, g)


CUTS: list[tuple[Any, ...]] = [
    (slice(None), slice(None)),
    (slice(1, 2), slice(None)),
    (slice(0, 2), slice(1, 3)),
    (slice(0, 1), slice(2, 3)),
    (slice(0, 1), slice(0, 3)),
    (1, slice(0, 2)),
    (0, 2),
    (slice(0, 2), 1),
]
INDICES: list[tuple[Any, ...]] = [
    (1,),
    (slice(0, 1),),
    ([1, 0, 1],),
    (slice(None), [2, 0]),
    ([0, 1], [2, 1]),
    (None, 1),
    (torch.tensor([[0, 1], [1, 1]]), slice(1, 3)),
    (torch.tensor([True, False]),),
]


@each(
    {
        "kind": KINDS,
        "take, index": [
            *((part_of, cut) for cut in CUTS),
            *((indexed, index) for index in INDICES),
        ],
    },
    times=3,
)
def test_a_part_is_the_piece(kind: str, take: Any, index: tuple[Any, ...]) -> None:
    g = geometry(2, 3, 4, 6)
    bias = biases(*g.shape)[kind]
    want = whole(bias, g)[index]
    part, smaller = take(bias, g, index), geometry(*want.shape)
    torch.testing.assert_close(whole(part, smaller), want, rtol=1e-14, atol=0)
    torch.testing.assert_close(pointwise(part, smaller), want, rtol=1e-6, atol=1e-6)
    again = thaw(*freeze(part))[0]
    assert isinstance(again, Bias) and torch.equal(whole(again, smaller), whole(part, smaller))


@pytest.mark.parametrize("kind", KINDS)
def test_made_again_from_its_parts(kind: str) -> None:
    g = geometry(2, 3, 4, 6)
    bias = biases(*g.shape)[kind]
    again = thaw(*freeze(bias))[0]
    assert isinstance(again, Bias) and repr(again) == repr(bias)
    assert ast.literal_eval(repr(bias.frozen())) == bias.frozen()
    assert torch.equal(whole(again, g), whole(bias, g))
    moved = bias.replaced(lambda x: x + 1)
    assert all(torch.equal(a, b + 1) for a, b in zip(moved.tensors(), bias.tensors()))


def test_matrices_without_heads() -> None:
    g = geometry(3, 4)
    apart = (torch.arange(4) - torch.arange(3)[:, None] - 1).abs()
    assert torch.equal(whole(alibi(), g), -apart * 2.0**-8)
    assert torch.equal(whole(alibi(slopes=[2.0]), g), -apart * 2.0)
    numbers = torch.arange(8.0)[:, None]
    assert whole(relative_buckets(numbers, max_distance=8), g)[0].tolist() == [1, 0, 5, 6]
    for bias in (alibi(1), relative_buckets(numbers)):
        bias.check(g)
        assert bias.tile(g, torch.arange(3), torch.arange(4)).shape == (3, 4)


def test_dtypes() -> None:
    g = geometry(2, 3, 4, 6)
    half = torch.bfloat16
    assert whole(alibi(), g, None).dtype is torch.float64
    assert whole(alibi(slopes=torch.ones(3, dtype=half)), g, None).dtype is torch.float32
    assert whole(relative_buckets(table(8, 3, half)), g, None).dtype is half
    for bias in (
        alibi(),
        relative_buckets(table(8, 3)),
        TensorBias(random(4, 6)),
        alibi() + alibi(),
    ):
        for dtype in (torch.float32, torch.float64):
            assert whole(bias, g, dtype).dtype is dtype


def test_far_positions_are_exact() -> None:
    """Distances are whole numbers before they become floats: 2^24 + 1 exists."""
    far = 2**30
    g = Geometry((1, 1), far, far, CPU)
    rows, near = torch.tensor([far - 1]), torch.arange(far - 3, far)
    for cols, want in ((near, [-2, -1, 0]), (near - 99_999, [-100_001, -100_000, -99_999])):
        got = alibi(slopes=[1.0]).tile(g, rows, cols, torch.float32)
        assert got.flatten().tolist() == want
        assert alibi(slopes=[1.0]).at(g, (), rows, cols).tolist() == want


@pytest.mark.parametrize("rows", [torch.arange(3), torch.tensor([2, 0, 3])], ids=["run", "picked"])
def test_gradcheck(rows: Tensor) -> None:
    g, cols = geometry(2, 3, 4, 6), torch.arange(1, 6)

    def tile(*tensors: Tensor) -> Tensor:
        numbers, slopes, free = tensors
        bias = relative_buckets(numbers, max_distance=4) + alibi(slopes=slopes) + free
        return bias.tile(g, rows, cols)

    held = tuple(x.requires_grad_() for x in (table(6 + 2, 3), random(3), random(2, 1, 4, 6)))
    assert torch.autograd.gradcheck(tile, held)
    assert torch.autograd.gradgradcheck(tile, held)


def test_small_tiles_hold_nothing_of_the_whole() -> None:
    """A tile of a matrix with 10^12 entries: anything of size t × s could not be built."""
    g = geometry(1, 8, 10**6, 10**6)
    rows, cols = torch.arange(500_000, 500_064), torch.arange(999_000, 999_128)
    shared = TensorBias(torch.zeros(1, 1).expand(10**6, 10**6))
    for bias in (alibi(), relative_buckets(table(32, 8)), shared):
        assert bias.tile(g, rows, cols).expand(1, 8, 64, 128).shape == (1, 8, 64, 128)
    assert shared.tile(g, rows, cols).storage_offset() == 0


@pytest.mark.parametrize(
    ("bias", "text"),
    [
        (alibi(), "alibi()"),
        (alibi(8), "alibi(8)"),
        (alibi(8, offset=3), "alibi(8, offset=3)"),
        (alibi(offset=torch.tensor([1, 2])), "alibi(offset=[1, 2])"),
        (alibi(slopes=[0.5, 0.25]), "alibi(slopes=[0.5, 0.25])"),
        (alibi(slopes=torch.ones(100)), "alibi(slopes=100 tensor)"),
        (relative_buckets(torch.ones(32, 8)), "relative_buckets(32×8 tensor)"),
        (
            relative_buckets(torch.ones(9, 8), max_distance=64, bidirectional=False, offset=2),
            "relative_buckets(9×8 tensor, max_distance=64, bidirectional=False, offset=2)",
        ),
        (TensorBias(torch.ones(2, 1, 3)), "TensorBias(2×1×3 tensor)"),
        (TensorBias(torch.tensor(1.0)), "TensorBias(scalar tensor)"),
        (alibi(8) + torch.ones(2, 3), "alibi(8) + TensorBias(2×3 tensor)"),
        (torch.ones(2, 3) + alibi(8), "TensorBias(2×3 tensor) + alibi(8)"),
        (alibi(8) + (alibi(4) + alibi(2)), "alibi(8) + (alibi(4) + alibi(2))"),
        (alibi(8) + alibi(4) + alibi(2), "alibi(8) + alibi(4) + alibi(2)"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_repr_is_as_it_was_written(bias: Bias, text: str) -> None:
    assert repr(bias) == text


def test_as_bias() -> None:
    bias = alibi()
    assert as_bias(bias) is bias
    held = as_bias(torch.ones(2))
    assert isinstance(held, TensorBias) and torch.equal(held.tensor, torch.ones(2))
