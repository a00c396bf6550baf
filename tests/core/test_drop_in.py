"""`scaled_dot_product_attention` beside PyTorch's: same call, same answer, same refusals."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from intently.core.drop_in import scaled_dot_product_attention

from ..combinations import pairs
from .formula import EPS, random

pytestmark = pytest.mark.usefixtures("as_users_call")

T, S, D = 5, 7, 4
LEADS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "2-D": ((), (), ()),
    "3-D": ((3,), (3,), (3,)),
    "4-D": ((2, 3), (2, 3), (2, 3)),
    "5-D": ((2, 1, 3), (2, 1, 3), (2, 1, 3)),
    "one key head": ((2, 3), (2, 1), (2, 1)),
    "one query head": ((2, 1), (2, 3), (2, 3)),
    "one value head": ((2, 3), (2, 3), (2, 1)),
    "more values": ((1, 3), (1, 3), (2, 3)),
    "one batch row of keys": ((2, 3), (1, 3), (1, 3)),
    "keys without a batch": ((2, 3), (3,), (3,)),
    "keys without heads": ((2, 3), (), ()),
    "queries without heads": ((), (2, 3), (2, 3)),
    "every axis from another": ((2, 1, 1), (3, 1), (1, 2)),
}


def tensors(
    leads: tuple[tuple[int, ...], ...], t: int = T, s: int = S, d: int = D, e: int = D
) -> list[Tensor]:
    shapes = zip(leads, ((t, d), (s, d), (s, e)))
    return [random(*lead, *core, seed=i) for i, (lead, core) in enumerate(shapes)]


def twice(
    inputs: list[Tensor], mask: Tensor | None = None, **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Answers and gradients of the call, ours and PyTorch's."""
    answers = []
    learned = mask is not None and mask.is_floating_point()
    for function in (scaled_dot_product_attention, F.scaled_dot_product_attention):
        own = [x.clone().requires_grad_() for x in inputs]
        held = mask.clone().requires_grad_(learned) if mask is not None else None
        y = function(*own, held, **options)
        wanted = [*own, held] if learned and held is not None else own
        up = random(*y.shape, seed=9).to(y.dtype)
        answers.append([y.detach(), *torch.autograd.grad(y, wanted, up)])
    return answers[0], answers[1]


def same(inputs: list[Tensor], mask: Tensor | None = None, **options: Any) -> None:
    for ours, theirs in zip(*twice(inputs, mask, **options)):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("float_mask", [False, True])
@pytest.mark.parametrize("t", [S, T])
def test_a_mask_beside_causal_holds_too(t: int, float_mask: bool) -> None:
    """PyTorch does it where its fused kernel serves, and raises where the plain one does."""
    inputs = tensors(((2, 3), (2, 3), (2, 3)), t)
    mask = random(t, S, seed=8)
    mask = mask if float_mask else mask < 0.7
    triangle = torch.ones(t, S, dtype=torch.bool).tril()
    joined = mask.masked_fill(~triangle, -math.inf) if float_mask else mask & triangle
    for own in (inputs, [x[0] for x in inputs]):
        ours = scaled_dot_product_attention(*own, mask, is_causal=True)
        torch.testing.assert_close(ours, F.scaled_dot_product_attention(*own, joined))
        with suppress(RuntimeError):  # "Explicit attn_mask should not be set"
            theirs = F.scaled_dot_product_attention(*own, mask, is_causal=True)
            torch.testing.assert_close(ours, theirs)


def test_a_row_without_keys_is_zero() -> None:
    inputs = tensors(LEADS["4-D"])
    allow = torch.ones(T, S, dtype=torch.bool)
    allow[1] = False
    for mask in (allow, torch.zeros(T, S, dtype=torch.float64).masked_fill(~allow, -math.inf)):
        ours, theirs = twice(inputs, mask)
        assert ours[0][..., 1, :].abs().max() == 0 == theirs[0][..., 1, :].abs().max()
        assert ours[1][..., 1, :].abs().max() == 0
        assert all(bool(x.isfinite().all()) for x in ours)


@pytest.mark.parametrize("scale", [None, 0.0, -0.7, 2, 1e-30, 100.0, torch.tensor(0.5)])
@pytest.mark.parametrize("masked", [False, True])
def test_scale(scale: Any, masked: bool) -> None:
    same(tensors(LEADS["4-D"]), random(T, S) > 0 if masked else None, scale=scale)


@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_a_scale_below_zero_under_causal_gives_no_nan(scale: float) -> None:
    """PyTorch's fused kernel multiplies its −∞ by the scale: NaN. Written as a mask it does not."""
    inputs = tensors(LEADS["4-D"], S)
    triangle = torch.ones(S, S, dtype=torch.bool).tril()
    torch.testing.assert_close(
        scaled_dot_product_attention(*inputs, is_causal=True, scale=scale),
        F.scaled_dot_product_attention(*inputs, triangle, scale=scale),
    )


@pytest.mark.parametrize("empty", ["t", "s", "d", "e", "b", "h"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_empty_axes(empty: str, is_causal: bool) -> None:
    b, h, t, s, d, e = (0 if axis == empty else n for axis, n in zip("bhtsde", (2, 3, 5, 5, 4, 4)))
    inputs = [torch.ones(b, h, t, d), torch.ones(b, h, s, d), random(b, h, s, e).float()]
    ours = scaled_dot_product_attention(*inputs, is_causal=is_causal)
    mask = torch.ones(t, s, dtype=torch.bool).tril() if is_causal else None
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(*inputs, mask))


# --- dtypes ---------------------------------------------------------------------------------------


@pairs(
    {
        "masked": ["none", "causal", "bool", "float", "float32"],
        "dtype": EPS,
        "e": [D, 6],
        "name": ["3-D", "4-D", "one key head"],
    }
)
def test_dtypes(name: str, dtype: torch.dtype, masked: str, e: int) -> None:
    inputs = [x.to(dtype) for x in tensors(LEADS[name], e=e)]
    bias = random(T, S, seed=8)
    mask = {"bool": bias > 0, "float": bias.to(dtype), "float32": bias.float()}.get(masked)
    exact = None if mask is None or mask.dtype is torch.bool else mask.double()
    exact = mask if exact is None else exact
    options = {"is_causal": masked == "causal"}
    ours, theirs = twice(inputs, mask, **options)
    truth, _ = twice([x.double() for x in inputs], exact, **options)
    for x, y, z in zip(ours, theirs, truth):
        assert x.dtype == y.dtype
        error, plain = ((i.double() - z).abs().max() for i in (x, y))
        assert error <= 2 * plain + 8 * EPS[dtype] * max(float(z.abs().max()), 0.1)


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float16),
        (torch.float64, torch.float64, torch.float64),
    ],
    ids=str,
)
def test_autocast(dtypes: tuple[torch.dtype, ...]) -> None:
    inputs = [x.to(dtype) for x, dtype in zip(tensors(LEADS["4-D"]), dtypes)]
    masks = [None, random(T, S) > 0]
    if torch.float64 not in dtypes:  # PyTorch casts the mask and not the queries, then refuses it
        masks += [random(T, S).to(dtype) for dtype in EPS if dtype is not torch.float64]
    with torch.autocast("cpu", torch.bfloat16):
        for mask in masks:
            ours = scaled_dot_product_attention(*inputs, mask)
            theirs = F.scaled_dot_product_attention(*inputs, mask)
            assert ours.dtype is theirs.dtype
            torch.testing.assert_close(ours, theirs, atol=0.03, rtol=0.02)


# --- dropout --------------------------------------------------------------------------------------


def test_dropout_always_acts_and_keeps_the_mean() -> None:
    q, k, _ = tensors(((1, 1), (1, 1), (1, 1)))
    weights = F.scaled_dot_product_attention(q, k, torch.eye(S, dtype=q.dtype)[None, None])
    v = torch.eye(S, dtype=q.dtype)[None, None]
    draws = torch.stack([scaled_dot_product_attention(q, k, v, None, 0.25) for _ in range(400)])
    kept = draws != 0
    torch.testing.assert_close(draws, torch.where(kept, weights / 0.75, 0).expand_as(draws))
    assert float(kept.double().mean()) == pytest.approx(0.75, abs=0.02)


def test_dropout_of_everything_is_zero_with_zero_gradients() -> None:
    for ours, theirs in zip(*twice(tensors(LEADS["4-D"], e=6), None, dropout_p=1.0)):
        assert ours.abs().max() == 0 == theirs.abs().max()


# --- any call -------------------------------------------------------------------------------------


@st.composite
def calls(draw: Any) -> tuple[list[Tensor], Tensor | None, dict[str, Any]]:
    """Shapes that broadcast, any strides, any mask, any flag."""
    size = st.integers(1, 3)
    lead = draw(st.lists(size, max_size=3))
    t, s, d, e = (draw(st.integers(1, 5)) for _ in range(4))
    gqa = len(lead) > 0 and draw(st.booleans())

    def shared(width: int) -> list[int]:
        own = [n if draw(st.booleans()) else 1 for n in lead]
        return own if gqa else own[draw(st.integers(0, len(own))) :]

    shapes = [[*shared(0), t, d], [*shared(0), s, d], [*shared(0), s, e]]
    if gqa:
        g, n = draw(size), draw(size)
        shapes[0][-3], shapes[1][-3], shapes[2][-3] = g * n, g, g
    inputs = [strided(draw, shape, i) for i, shape in enumerate(shapes)]
    lead = list(torch.broadcast_shapes(shapes[0][:-2], *([] if gqa else [shapes[1][:-2]])))
    if gqa:
        lead = [*torch.broadcast_shapes(shapes[0][:-3], shapes[1][:-3]), shapes[0][-3]]
    options: dict[str, Any] = {"enable_gqa": gqa}
    kind = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    mask = None
    if kind in ("bool", "float"):
        own = [n if draw(st.booleans()) else 1 for n in (*lead, t, s)]
        mask = strided(draw, own[draw(st.integers(0, len(lead))) :], 5)
        mask = mask > 0 if kind == "bool" else mask.masked_fill(mask > 1, -math.inf)
    options["is_causal"] = kind == "causal"
    options["scale"] = draw(st.sampled_from([None, 0.5, 1.0, 3.0]))
    return inputs, mask, options


def strided(draw: Any, shape: list[int], seed: int) -> Tensor:
    """Numbers of a shape: contiguous, transposed, every second, or expanded along an axis."""
    x = random(*shape, seed=seed)
    how = draw(st.sampled_from(["plain", "transposed", "second", "expanded"]))
    if how == "transposed":
        return x.mT.contiguous().mT
    if how == "second":
        return torch.stack([x, -x], -1).flatten(-2)[..., ::2]
    if how == "expanded":
        return x[..., :1].expand(x.shape)
    return x


@settings(max_examples=300)
@given(calls())
def test_any_call(call: tuple[list[Tensor], Tensor | None, dict[str, Any]]) -> None:
    inputs, mask, options = call
    ours = scaled_dot_product_attention(*inputs, mask, **options)
    theirs = F.scaled_dot_product_attention(*inputs, mask, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    same(inputs, mask, **options)
