"""Positions that are added, and rotary positions: their formulas and what follows from them."""

from __future__ import annotations

import math
import os
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from intently.core.positions import (
    DynamicNTK,
    Learned,
    Linear,
    Llama3,
    LongRope,
    Rotary,
    Scaling,
    YaRN,
    sinusoidal,
)
from intently.errors import ArgumentError, KindError

from ..combinations import each
from ..messages import Refusals, raises
from .formula import random

Layout = Literal["half", "interleaved"]
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")
BY_LENGTH: dict[str, Scaling] = {
    "dynamic": DynamicNTK(2.0, 8),
    "longrope": LongRope([1.0, 1.5, 2.0], [2.0, 3.0, 4.0], factor=4.0, original=8),
}
SCALINGS: dict[str, Scaling | None] = {
    "none": None,
    "linear": Linear(4.0),
    "yarn": YaRN(4.0, 64, beta_fast=8.0),
    "llama3": Llama3(8.0, original=64),
    **BY_LENGTH,
}


def rotary(scaling: Scaling | None = None, **options: Any) -> Rotary:
    return Rotary(8, **{"base": 100.0, "width": 6, "scaling": scaling, **options})


def turned(x: list[float], angles: list[float], layout: Layout) -> list[float]:
    """Each pair times the matrix ((cos, −sin), (sin, cos)), written out."""
    out, n = list(x), len(angles)
    for i, angle in enumerate(angles):
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + n)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out


def test_sinusoidal_is_the_papers_formula() -> None:
    got = sinusoidal(5, 6, base=100.0, offset=7, dtype=torch.float64)
    for p in range(5):
        for i in range(3):
            angle = (7 + p) / 100 ** (2 * i / 6)
            assert got[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-15)
            assert got[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-15)


def test_sinusoidal_offsets_and_dtypes() -> None:
    each = sinusoidal(3, 4, offset=torch.tensor([0, 5]))
    assert torch.equal(each[0], sinusoidal(3, 4)) and each.dtype is torch.get_default_dtype()
    assert torch.equal(each[1], sinusoidal(3, 4, offset=5))
    assert torch.equal(sinusoidal(8, 4)[5:], each[1])
    assert sinusoidal(3, 4, dtype=torch.bfloat16).dtype is torch.bfloat16
    assert sinusoidal(0, 4).shape == (0, 4)


def test_learned() -> None:
    table = random(6, 3)
    learned = Learned(table)
    assert torch.equal(learned(6), table) and torch.equal(learned(2, 3), table[3:5])
    each = learned(2, torch.tensor([4, 0, 1]))
    assert torch.equal(each, torch.stack([table[4:6], table[0:2], table[1:3]]))
    assert torch.equal(learned(2, torch.tensor(4)), table[4:6])
    assert learned(0, 6).shape == (0, 3) and learned(0, torch.tensor([6, 0])).shape == (2, 0, 3)
    assert learned.tensors() == (table,) and repr(learned) == "Learned(6×3 tensor)"


def test_learned_is_differentiable() -> None:
    table = random(6, 3).requires_grad_()
    for offset in (1, torch.tensor([1, 2])):
        assert torch.autograd.gradcheck(lambda x, o=offset: Learned(x)(3, o), [table])
    (grad,) = torch.autograd.grad(Learned(table)(2, torch.tensor([0, 1])).sum(), table)
    assert grad[:, 0].tolist() == [1, 2, 1, 0, 0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_rotary_is_the_papers_formula(layout: Layout, width: int) -> None:
    x = random(3, 8)
    got = Rotary(8, base=100.0, layout=layout, width=width)(x, offset=4)
    for p in range(3):
        angles = [(4 + p) * 100 ** (-2 * i / width) for i in range(width // 2)]
        want = turned(x[p, :width].tolist(), angles, layout) + x[p, width:].tolist()
        assert got[p].tolist() == pytest.approx(want, abs=1e-14)


@given(
    st.sampled_from(sorted(SCALINGS)),
    st.sampled_from(LAYOUTS),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(-40, 40),
)
def test_products_hang_on_the_distance_alone(
    scaling: str, layout: Layout, q_at: int, k_at: int, shift: int
) -> None:
    turn = rotary(SCALINGS[scaling], layout=layout)
    q, k = random(1, 8), random(1, 8, seed=1)

    def product(by: int) -> Tensor:
        return turn(q, q_at + by, length=60) @ turn(k, k_at + by, length=60).mT

    torch.testing.assert_close(product(0), product(shift), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_layouts_are_equal_after_a_permutation(scaling: str) -> None:
    x = random(2, 3, 5, 8)
    order = torch.tensor([0, 2, 4, 1, 3, 5, 6, 7])
    half = rotary(SCALINGS[scaling], layout="half")(x[..., order], 3)
    interleaved = rotary(SCALINGS[scaling], layout="interleaved")(x, 3)
    assert torch.equal(half, interleaved[..., order])
    assert not torch.allclose(rotary(SCALINGS[scaling])(x, 3), interleaved)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_are_the_whole(scaling: str, layout: Layout) -> None:
    turn, x = rotary(SCALINGS[scaling], layout=layout), random(2, 3, 12, 8)
    whole = turn(x)
    steps = [turn(x[..., i : i + 1, :], i, length=12) for i in range(12)]
    chunks = [turn(x[..., a:b, :], a, length=12) for a, b in ((0, 5), (5, 6), (6, 12))]
    assert torch.equal(torch.cat(steps, -2), whole) and torch.equal(torch.cat(chunks, -2), whole)


@each({"scaling": SCALINGS, "lead": [(3,), (3, 2), (3, 1, 2)]})
def test_ragged_offsets_are_each_row_alone(scaling: str, lead: tuple[int, ...]) -> None:
    turn, x = rotary(SCALINGS[scaling]), random(*lead, 4, 8)
    starts = [0, 6, 2]  # the second row grows past the trained length of 8
    alone = torch.stack([turn(row, start) for row, start in zip(x, starts)])
    positions = torch.tensor(starts)[:, None] + torch.arange(4)
    for y in (turn(x, torch.tensor(starts)), turn(x, positions=positions)):
        torch.testing.assert_close(y, alone, rtol=1e-14, atol=1e-14)
    lengths = torch.tensor([9, 9, 9])
    at_once = turn(x, torch.tensor(starts), length=lengths)
    each = torch.stack([turn(row, start, length=9) for row, start in zip(x, starts)])
    torch.testing.assert_close(at_once, each, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("scaling", BY_LENGTH)
def test_scalings_by_length_keep_short_texts(scaling: str) -> None:
    turn, x = rotary(BY_LENGTH[scaling]), random(9, 8)
    short = turn(x[:8])
    assert torch.equal(turn(x[:8], length=8), short)
    assert not torch.allclose(turn(x)[:8], short)
    if scaling == "dynamic":
        assert torch.equal(short, rotary()(x[:8]))


def test_angles() -> None:
    turn = rotary(Linear(2.0))
    want = torch.arange(3, 7).double()[:, None] * torch.tensor([100 ** (-i / 3) for i in range(3)])
    got = turn.angles(4, 3, dtype=torch.float64)
    torch.testing.assert_close(got, want.double() / 2, rtol=1e-7, atol=0)
    assert torch.equal(turn.angles(4, torch.tensor([3, 0]), dtype=torch.float64)[0], got)
    assert turn.angles(4).dtype is torch.float32 and turn.angles(4).shape == (4, 3)
    dynamic = rotary(DynamicNTK(2.0, 8))
    assert torch.equal(dynamic.angles(9)[:4], dynamic.angles(4, length=9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dtypes(dtype: torch.dtype, layout: Layout) -> None:
    """Half types are turned in float32 and rounded once, so the error is half a unit."""
    turn, x = Rotary(8, layout=layout, width=4), random(2, 40, 8, dtype=dtype)
    got, want = turn(x), turn(x.double())
    assert got.dtype is dtype and want.dtype is torch.float64
    unit = torch.finfo(dtype).eps / 2
    slack = 40 * torch.finfo(torch.float32).eps
    assert bool(((got.double() - want).abs() <= unit * want.abs() + slack).all())
    assert torch.equal(got[..., 4:], x[..., 4:])
    rounded = turn(x.float()).to(dtype)
    assert torch.equal(got, rounded)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_gradients(layout: Layout, scaling: str) -> None:
    turn, x = rotary(SCALINGS[scaling], layout=layout), random(2, 3, 8).requires_grad_()
    for offset in (2, torch.tensor([7, 0])):
        assert torch.autograd.gradcheck(lambda y, o=offset: turn(y, o), [x])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout: Layout) -> None:
    turn, x = rotary(layout=layout), random(2, 3, 5, 8)
    want = turn(x)
    wide = torch.zeros(2, 3, 5, 16, dtype=x.dtype)
    wide[..., ::2] = x
    for y in (x.mT.contiguous().mT, x.transpose(1, 2).contiguous().transpose(1, 2), wide[..., ::2]):
        assert not y.is_contiguous() and torch.equal(turn(y), want)
    one = x[:1].expand(4, 3, 5, 8)
    assert torch.equal(turn(one)[3], want[0])
    assert turn(x[:, :, :0]).shape == (2, 3, 0, 8)
    assert turn(x[:, :, :0], positions=torch.zeros(0)).shape == (2, 3, 0, 8)
    assert turn(x[:0], offset=torch.zeros(0).long()).shape == (0, 3, 5, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced")
@pytest.mark.usefixtures("as_users_call")
def test_one_graph(layout: Layout, scaling: str) -> None:
    torch.compiler.reset()
    turn, x = rotary(SCALINGS[scaling], layout=layout), random(2, 3, 5, 8)
    compiled = torch.compile(turn.__call__, fullgraph=True, backend="aot_eager")
    ways: list[dict[str, Any]] = [
        {},
        {"offset": 7},
        {"offset": torch.tensor([2, 7])},
        {"length": 9},
    ]
    for options in ways:
        torch.testing.assert_close(compiled(x, **options), turn(x, **options))
    for step in range(12):  # more than there may be graphs: a step does not compile its own
        torch.testing.assert_close(compiled(x, step), turn(x, step))


@pytest.mark.usefixtures("as_users_call")
def test_learned_in_one_graph() -> None:
    learned = Learned(random(9, 3))
    compiled = torch.compile(lambda o: learned(2, o), fullgraph=True, backend="aot_eager")
    for offset in (3, torch.tensor([1, 2])):
        assert torch.equal(compiled(offset), learned(2, offset))


def test_function_transforms() -> None:
    turn, x = rotary(), random(4, 3, 5, 8)
    assert torch.equal(torch.vmap(turn)(x), turn(x))
    torch.testing.assert_close(torch.func.jvp(turn, (x,), (x,))[1], turn(x))


def test_values_compare_and_show() -> None:
    assert Rotary(8, scaling=Linear(2.0)) == Rotary(8, scaling=Linear(2.0)) != Rotary(8)
    assert hash(YaRN(4.0, 64)) == hash(YaRN(4.0, 64))
    assert repr(Linear(2.0)) == "Linear(factor=2.0)"
    assert repr(Rotary(8, scaling=DynamicNTK(2.0, 64))) == (
        "Rotary(d=8, base=10000.0, layout='half', "
        "scaling=DynamicNTK(factor=2.0, original=64), width=None)"
    )
    stretch = LongRope([1, 2], [3, 4], factor=2.0, original=8)
    assert stretch.long == (3.0, 4.0) and hash(stretch) == hash(stretch)


def x(*shape: int) -> Tensor:
    return torch.ones(*shape)


WORDS: Refusals = {
    KindError: {
        "offset: expected integers; got dtype torch.float32.": lambda: sinusoidal(2, 4, offset=1.5),
        "table: expected a floating-point tensor (n, c); got dtype torch.int64.": lambda: Learned(
            x(6, 3).long()
        ),
        "scaling: expected a scaling such as YaRN(4.0, 4096), or None; got 'yarn'.": lambda: Rotary(
            8, scaling="yarn"
        ),
        "x: expected a floating-point tensor (…, t, d); got dtype torch.int64.": lambda: Rotary(8)(
            x(3, 8).long()
        ),
        "x: expected a floating-point tensor (…, t, d); got list.": lambda: Rotary(8)([[1.0]]),
    },
    ArgumentError: {
        "positions: expected positions in a table of n=6, 0 … 5; got 3 … 6. The longest length it "
        "knows is 6. Shorten the input, or learn a longer table.": lambda: Learned(x(6, 3))(4, 3),
        "positions: expected positions in a table of n=6, 0 … 5; got -1 … -1.": lambda: Learned(
            x(6, 3)
        )(1, -1),
        "positions: expected positions in a table of n=6, 0 … 5; got 0 … 6. The "
        "longest length": lambda: Learned(x(6, 3))(2, torch.tensor([5, 0])),
        "t: expected an int ≥ 0; got -1.": lambda: Learned(x(6, 3))(-1),
        "table: expected shape (n, c); got shape (6,).": lambda: Learned(x(6)),
        'layout: expected "half" or "interleaved"; got \'pairs\'. Half pairs i with i + width/2, '
        "interleaved 2i with 2i + 1.": lambda: Rotary(8, layout="pairs"),
        "d: expected an even number of dimensions ≥ 2; got 7. Dimensions are rotated "
        "in pairs.": lambda: Rotary(7),
        "width: expected an even number of dimensions ≥ 2 and ≤ d=8; got 10.": lambda: Rotary(
            8, width=10
        ),
        "base: expected a number > 1; got 1.0.": lambda: Rotary(8, base=1.0),
        "x: expected shape (…, t, d=8); got shape (3, 6).": lambda: Rotary(8)(x(3, 6)),
        "x: expected shape (…, t, d=8); got shape (8,).": lambda: Rotary(8)(x(8)),
        "offset: expected a shape that matches the leftmost leading axes (2, 3); got "
        "shape (3,).": lambda: Rotary(8)(x(2, 3, 4, 8), torch.tensor([1, 2, 3])),
        "positions: expected shape (t=4,) or (b, t); got shape (3,).": lambda: Rotary(8)(
            x(2, 4, 8), positions=torch.arange(3)
        ),
        "positions: expected a shape that matches the leftmost leading axes (2,); "
        "got shape (3,).": lambda: Rotary(8)(x(2, 4, 8), positions=torch.ones(3, 4)),
        "positions: expected either offset or positions; got both. Positions say where every step "
        "stands. Add the offset to them.": lambda: Rotary(8)(
            x(2, 4, 8), 1, positions=torch.arange(4)
        ),
        "factor: expected a number ≥ 1; got 0.5. It is the new length divided by the "
        "trained one.": lambda: Linear(0.5),
        "original: expected the length that was trained, an int ≥ 1; got 0.": lambda: DynamicNTK(
            2.0, 0
        ),
        "width: expected at least 4 dimensions for DynamicNTK; got 2.": lambda: Rotary(
            2, scaling=DynamicNTK(2.0, 8)
        ),
        "beta_slow: expected a number in (0, beta_fast=1.0]; got 2.0. Fast pairs turn more often "
        "than slow ones.": lambda: YaRN(2.0, 8, beta_fast=1.0, beta_slow=2.0),
        "short: expected one number for each pair, width/2=4; got 1.": lambda: Rotary(
            8, scaling=LongRope([1.0], [1.0], factor=2.0, original=8)
        ),
        "low: expected a number of turns in (0, high=4.0); got 4.0.": lambda: Llama3(
            8.0, low=4.0, high=4.0
        ),
    },
}


test_message = raises(WORDS)
