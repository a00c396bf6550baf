"""Matrices larger than a tile: the tiled kernel and its gradients against the plain formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.kernels import walk
from intently.core.kernels.eager import Dropping, drawn

from ..combinations import each
from .formula import multiply, random

B, H, G, T, S, D, E = 2, 4, 2, 300, 420, 8, 5


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).requires_grad_()


Q, K, V = leaf(B, H, T, D), leaf(B, G, S, D, seed=1), leaf(B, G, S, E, seed=2)
DY = random(B, H, T, E, seed=3)
SINKS, SCALE = leaf(H, seed=4), leaf(H, 1, 1, seed=5)
ONE_ROW, WHOLE = leaf(H, 1, S, seed=6), leaf(T, S, seed=7)
TABLE, SLOPES = leaf(32, H, seed=8), leaf(H, seed=9)
WEIGHT = leaf(H, D, D, seed=10)
LAYER = (leaf(H, 3, D, seed=11), leaf(3, D, seed=12), leaf(3, seed=13))

MASKS: dict[str, it.Mask | None] = {
    "none": None,
    "causal": it.causal(),
    "window": it.window(60, 3),
    "padding, one row empty": it.causal() & it.padding(torch.tensor([250, 0])),
    "ragged, first rows empty": it.causal(torch.tensor([-5, 100])),
    "segments": it.segments(torch.arange(T) // 90, torch.arange(S) // 90),
    "a tensor": it.allowed(random(H, T, S, seed=14) > 0.5),
    "prefix | ~window": it.prefix(9) | ~it.window(200, 60),
}
OPTIONS: dict[str, tuple[dict[str, Any], tuple[Tensor, ...]]] = {
    "plain": ({}, ()),
    "softcap": ({"softcap": 3.0}, ()),
    "sinks": ({"sinks": SINKS}, (SINKS,)),
    "scale": ({"scale": SCALE, "softcap": 2.0, "sinks": SINKS}, (SCALE, SINKS)),
    "bias of keys": ({"bias": ONE_ROW}, (ONE_ROW,)),
    "biases": (
        {"bias": it.alibi(slopes=SLOPES) + it.relative_buckets(TABLE) + WHOLE},
        (SLOPES, TABLE, WHOLE),
    ),
    "general": ({"score": it.General(WEIGHT)}, (WEIGHT,)),
    "additive": ({"score": it.Additive(*LAYER)}, LAYER),
    "cosine": ({"score": it.Cosine(), "sinks": SINKS}, (SINKS,)),
    "dropout": ({"dropout": 0.3}, ()),
    "dropout, learned": ({"dropout": 0.3, "bias": ONE_ROW, "sinks": SINKS}, (ONE_ROW, SINKS)),
}


def product(kernel: str, mask: it.Mask | None, options: dict[str, Any]) -> Tensor:
    torch.manual_seed(3)
    with it.kernels.use(kernel):
        return it.attention(Q, K, V, mask=mask, **options)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("masked", MASKS)
def test_product_and_every_gradient(masked: str, option: str) -> None:
    options, extra = OPTIONS[option]
    found, expected = (product(kernel, MASKS[masked], options) for kernel in ("tiled", "eager"))
    close(found, expected)
    inputs = (Q, K, V, *extra)
    grads = (torch.autograd.grad(y, inputs, DY) for y in (found, expected))
    for ours, theirs in zip(*grads):
        close(ours, theirs)


@pytest.mark.parametrize("option", ["scale", "biases", "dropout, learned"])
def test_tiles_of_long_rows_are_made_twice(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.core.kernels.gradients.KEPT", 0)
    test_product_and_every_gradient("ragged, first rows empty", option)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    worst, largest = (x.detach().abs().max().item() for x in (found - expected, expected))
    assert worst <= 4e-12 * max(1, largest)


@pytest.mark.parametrize("masked", MASKS)
def test_the_lse_is_differentiable(masked: str) -> None:
    A = it.attend(Q, K, mask=MASKS[masked], sinks=SINKS, bias=ONE_ROW)
    expected = it.kernels.eager.lse(A.problem)
    close(A.lse.nan_to_num(neginf=0), expected.nan_to_num(neginf=0))
    seen = expected.detach().isfinite()
    weights = random(*expected.shape) * seen
    found, plain = (
        torch.autograd.grad((x.masked_fill(~seen, 0) * weights).sum(), (Q, K, SINKS, ONE_ROW))
        for x in (A.lse, expected)
    )
    for ours, theirs in zip(found, plain):
        close(ours, theirs)


@pytest.mark.parametrize("option", ["plain", "sinks", "biases", "additive", "dropout"])
def test_second_derivatives(option: str) -> None:
    options, extra = OPTIONS[option]
    inputs = (Q, K, V, *extra)

    def twice(kernel: str) -> tuple[Tensor, ...]:
        y = product(kernel, MASKS["causal"], options)
        first = torch.autograd.grad(y, inputs, DY, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), inputs)

    for ours, theirs in zip(twice("tiled"), twice("eager")):
        assert (ours - theirs).abs().max() <= 1e-10 * max(1, float(theirs.abs().max()))


@pytest.mark.parametrize("size", ["t = 1", "s = 1", "t = 129", "one grain more"])
def test_edges_of_blocks(size: str) -> None:
    t, s = {"t = 1": (1, 999), "s = 1": (999, 1), "t = 129": (129, 128)}.get(size, (257, 1153))
    q, k, v = random(t, D), random(s, D, seed=1), random(s, E, seed=2)
    for mask in (None, it.causal(), it.window(3, 2), it.causal(0) & it.padding(torch.tensor(s))):
        A = it.attend(q, k, mask=mask)
        close(multiply(A, v, "tiled"), A.dense() @ v)


@pytest.mark.parametrize(
    ("heads", "shape"),
    [(H, (3, B, G, S, E)), (H, (7, 3, B, G, S, E)), (H, (S, E)), (H, (G, S, E)), (1, (3, 2, S, E))],
    ids=str,
)
def test_one_matrix_serves_values_with_axes_of_their_own(
    heads: int, shape: tuple[int, ...]
) -> None:
    """The weights are computed once."""
    q, k = (x.detach()[:heads, :heads] for x in (Q, K))
    A = it.attend(q, k, mask=it.causal(), softcap=2.0)
    v = random(*shape)
    close(multiply(A, v, "tiled"), multiply(A, v, "eager"))


class TestDropping:
    def test_each_weight_stays_with_its_share_and_no_pattern(self) -> None:
        x = torch.zeros(2, 3, 500, 4)
        A = it.attend(x, torch.zeros(2, 3, 600, 4), dropout=0.3)
        factors = Dropping(*drawn(A.problem), 0.3).factors(None, None, torch.float64)
        assert sorted(factors.unique().tolist()) == pytest.approx([0, 1 / 0.7])
        stays = (factors > 0).double()
        deviation = math.sqrt(0.3 * 0.7)
        for axes in ((-1,), (-2,), (-1, -2), (0, 1), (0, 1, 2, 3)):
            mean = stays.mean(axes)
            n = stays.numel() / mean.numel()
            assert (mean - 0.7).abs().max() < 5.5 * deviation / math.sqrt(n)
            assert (mean - 0.7).square().mean() < 1.3 * deviation**2 / n + 1e-5
        centred = stays - 0.7
        for other in (centred.roll(1, -1), centred.roll(1, -2), centred.roll(1, 1)):
            related = (centred * other).mean() / deviation**2
            assert abs(float(related)) < 5 / math.sqrt(stays.numel())

    def test_tiles_agree_with_the_whole(self) -> None:
        A = it.attend(Q, K, dropout=0.5)
        whole = Dropping(*drawn(A.problem), 0.5)
        cut = (slice(1, 2), slice(2, 4))
        part = whole.part(cut).factors(slice(7, 90), slice(100, 300), torch.float64)
        assert torch.equal(part, whole.factors(None, None, torch.float64)[cut][..., 7:90, 100:300])


class TestWalk:
    """Every entry that the mask allows is in one tile, and nothing far from them is."""

    @each({"masked": MASKS, "tile": [2**12, 2**16, 2**19]}, times=2)
    def test_each_allowed_entry_is_in_one_tile(self, masked: str, tile: int) -> None:
        problem = it.attend(Q, K, mask=MASKS[masked]).problem
        visits = torch.zeros(B, H, T, S, dtype=torch.int)
        certain = torch.zeros(B, H, T, S, dtype=torch.bool)
        for cut, blocks in walk.walk(problem, tile, 256):
            for rows in blocks:
                for run in rows.runs:
                    at = (*cut, slice(rows.start, rows.stop), slice(run.start, run.stop))
                    visits[at] += 1
                    certain[at] = run.full
        allow = problem.allow()
        allow = torch.tensor(True) if allow is None else allow
        allow = allow.expand(B, H, T, S)
        assert int(visits.max()) == 1 and bool((visits[allow] == 1).all())
        assert not bool((certain & ~allow).any())

    def test_a_window_visits_little(self) -> None:
        x = torch.zeros(8, 8192, 4)
        problem = it.attend(x, x, mask=it.window(255, 0)).problem
        area = sum(
            (rows.stop - rows.start) * (run.stop - run.start) * (cut[0].stop - cut[0].start)
            for cut, blocks in walk.walk(problem)
            for rows in blocks
            for run in rows.runs
        )
        assert area <= 8 * 8192 * 640

    def test_whole_groups_are_cut(self) -> None:
        x, keys = torch.zeros(3, 12, 2000, 4), torch.zeros(3, 2, 2000, 4)
        problem = it.attend(x, keys).problem
        for cut, _ in walk.walk(problem):
            heads = cut[-1].stop - cut[-1].start
            assert heads % 6 == 0 or 6 % heads == 0
            assert cut[-1].start // 6 == (cut[-1].stop - 1) // 6 or heads % 6 == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("masked", ["none", "causal", "window"])
def test_the_lowest_number_as_a_bias_hides_nothing_by_itself(
    masked: str, dtype: torch.dtype
) -> None:
    """A row of finfo.min everywhere averages the values, as the formula says."""
    mask = {"none": None, "causal": it.causal(), "window": it.window(300, 0)}[masked]
    q, v = random(600, 4, dtype=dtype), random(600, 4, dtype=dtype, seed=1)
    bias = torch.zeros(600, 600, dtype=dtype)
    bias[5], bias[7, :3] = torch.finfo(dtype).min, torch.finfo(dtype).min
    A = it.attend(q, q, mask=mask, bias=bias)
    expected = multiply(A, v, "eager")
    with it.kernels.use("tiled"):
        torch.testing.assert_close(A @ v, expected)
    torch.testing.assert_close(A.lse, it.kernels.eager.lse(A.problem))
    torch.testing.assert_close(
        A.entropy().double(),
        -torch.xlogy(*[A.dense().double()] * 2).sum(-1),
        atol=5e-2 if dtype is torch.bfloat16 else 1e-5,
        rtol=0,
    )


class TestClassesFromOutside:
    def test_two_of_the_same_name(self) -> None:
        def make(n: int) -> it.Mask:
            class First(it.Mask):
                def allow(self, g: it.core.masks.Geometry, rows: Tensor, cols: Tensor) -> Tensor:
                    return (cols < n)[None]

            return First()

        one, three = make(1), make(3)
        q, v = torch.zeros(4, 2), torch.arange(4.0)[:, None]
        with it.kernels.use("tiled"):
            assert it.attention(q, q, v, mask=one).unique().tolist() == [0]
            assert it.attention(q, q, v, mask=three).unique().tolist() == [1]

    def test_attributes_that_the_parts_do_not_make_again(self) -> None:
        class Power(it.Score):
            def __init__(self, p: float = 1.0) -> None:
                self.p = p

            def __call__(self, q: Tensor, k: Tensor) -> Tensor:
                return (q @ k.mT) * self.p

        x = random(600, 4)
        A = it.attend(x, x, score=Power(2.0))
        reason = "the parts of Power do not make it again"
        assert A.plan().kernel == "eager" and A.plan().refused["tiled"] == reason
        torch.testing.assert_close(A @ x, it.attend(x, x, scale=2.0) @ x)

        class Kept(Power):
            def __init__(self, p: float = 1.0) -> None:
                super().__init__(p)
                self.parts = (p,)

        B = it.attend(x, x, score=Kept(2.0))
        assert B.plan().kernel == "tiled"
        torch.testing.assert_close(B @ x, A @ x)
