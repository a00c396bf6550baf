"""Contract 1: any number of axes, groups, broadcasting, strides and empty dimensions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import intently as it

from ..combinations import each, pairs
from .formula import IN_FLOAT64, plain, random

KERNELS = IN_FLOAT64
SHAPES = {
    "(t, d)": ((5, 8), (7, 8), (7, 8), (5, 8)),
    "(h, t, d)": ((3, 5, 8), (3, 7, 8), (3, 7, 8), (3, 5, 8)),
    "(b, h, t, d)": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 8)),
    "five axes": ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8), (2, 3, 4, 5, 8)),
    "groups": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), (2, 6, 5, 8)),
    "one key head": ((2, 6, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8), (2, 6, 5, 8)),
    "groups, five axes": ((2, 3, 4, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8), (2, 3, 4, 5, 8)),
    "groups, keys without b": ((2, 6, 5, 8), (2, 7, 8), (2, 7, 8), (2, 6, 5, 8)),
    "groups, values without b": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 7, 8), (2, 6, 5, 8)),
    "groups, one value head": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 1, 7, 8), (2, 6, 5, 8)),
    "groups, values (s, e)": ((2, 6, 5, 8), (2, 2, 7, 8), (7, 8), (2, 6, 5, 8)),
    "keys shared by the batch": ((2, 3, 5, 8), (1, 3, 7, 8), (1, 3, 7, 8), (2, 3, 5, 8)),
    "keys (s, d)": ((2, 3, 5, 8), (7, 8), (7, 8), (2, 3, 5, 8)),
    "one query for all": ((5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 8)),
    "queries (h, t, d), keys (b, h, s, d)": ((3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 8)),
    "keys of five axes": ((3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8), (2, 3, 4, 5, 8)),
    "values with a batch": ((3, 5, 8), (3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 8)),
    "e ≠ d": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 3), (2, 3, 5, 3)),
    "one step": ((2, 3, 1, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 1, 8)),
    "width 1": ((2, 3, 5, 1), (2, 3, 7, 1), (2, 3, 7, 1), (2, 3, 5, 1)),
    "t = 0": ((2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 0, 8)),
    "s = 0": ((2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 8), (2, 3, 5, 8)),
    "b = 0": ((0, 3, 5, 8), (0, 3, 7, 8), (0, 3, 7, 8), (0, 3, 5, 8)),
    "d = 0": ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 8), (2, 3, 5, 8)),
    "e = 0": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 0), (2, 3, 5, 0)),
}


def rows_of_masks(lead: tuple[int, ...], t: int, s: int) -> dict[str, it.Mask | None]:
    found = {
        "none": None,
        "causal": it.causal(),
        "tensor": it.allowed(random(*lead, t, s, seed=5) > -0.5),
        "shared": it.allowed(random(t, s, seed=5) > -0.5),
    }
    if lead:
        found["padding"] = it.padding(torch.arange(1, lead[0] + 1))
        found["padding & causal"] = found["padding"] & it.causal()
        found["one row"] = it.allowed(random(*lead[-1:], 1, s, seed=5) > -0.5)
    return found


MASKED = ["none", "causal", "tensor", "shared", "padding", "padding & causal", "one row"]


@each({"shape": SHAPES, "masked": MASKED}, times=3)
def test_shapes_by_every_kernel(shape: str, masked: str) -> None:
    q, k, v = (random(*x, seed=i) for i, x in enumerate(SHAPES[shape][:3]))
    lead, (t, s) = SHAPES[shape][3][:-2], (q.shape[-2], k.shape[-2])
    if shape == "values with a batch":
        lead = lead[1:]
    masks = rows_of_masks(lead, t, s)
    if masked not in masks:
        pytest.skip("no leading axes")
    A = it.attend(q, k, mask=masks[masked])
    mask = masks[masked]
    g = it.core.masks.Geometry(lead, t, s, q.device)
    allow = torch.ones(*lead, t, s, dtype=torch.bool)
    allow = allow if mask is None else mask.dense(g).expand_as(allow)
    expected = plain(q, k, v, allow)
    assert A.shape == (*lead, t, s) and A.ndim == len(A.shape)
    assert (A @ v).shape == SHAPES[shape][3]
    for kernel in KERNELS:
        with it.kernels.use(kernel):
            try:
                y = A @ v
            except it.errors.KernelError as reason:
                known = ("e=", "a dimension is empty", "different leading axes", "no fused kernel")
                assert kernel != "eager" and any(x in str(reason) for x in known)
                continue
        torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)
    assert A.dense().shape == A.shape and A.lse.shape == A.shape[:-1]
    assert A.entropy().shape == A.shape[:-1] and A.received().shape == (*lead, s)
    assert [x.shape for x in A.top(3)] == [(*lead, t, 3)] * 2


NOT_FUSED = ("d = 0", "e ≠ d", "e = 0", "values with a batch")


@pytest.mark.parametrize("shape", [x for x in SHAPES if x not in NOT_FUSED])
def test_the_fused_kernel_takes_what_broadcasts(shape: str) -> None:
    """Broadcasting and groups are no reason to build the matrix; empty dimensions are."""
    q, k, v = (random(*x, seed=i) for i, x in enumerate(SHAPES[shape][:3]))
    kernel = it.attend(q, k).plan(v).kernel
    assert kernel == ("eager" if "= 0" in shape else "torch_fused")


@pairs(
    {
        "kernel": KERNELS,
        "masked": [False, True],
        "how": ["heads last", "transposed", "every second", "expanded"],
    }
)
def test_any_stride(how: str, kernel: str, masked: bool) -> None:
    def strided(seed: int) -> Tensor:
        if how == "heads last":
            return random(2, 6, 3, 8, seed=seed).transpose(1, 2)
        if how == "transposed":
            return random(2, 3, 8, 6, seed=seed).mT
        if how == "every second":
            return random(2, 3, 12, 16, seed=seed)[..., ::2, ::2]
        return random(1, 3, 6, 1, seed=seed).expand(2, 3, 6, 8)

    q, k, v = (strided(i).detach().requires_grad_() for i in range(3))
    mask = it.padding(torch.tensor([4, 6])) if masked else it.causal()
    g = it.core.masks.Geometry((2, 3), 6, 6, q.device)
    with it.kernels.use(kernel):
        y = it.attention(q, k, v, mask=mask)
    same = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    expected = plain(*same, mask.dense(g).expand(2, 3, 6, 6))
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)
    up = random(*y.shape, seed=4)
    torch.testing.assert_close(
        torch.autograd.grad(y, (q, k, v), up),
        torch.autograd.grad(expected, same, up),
        atol=1e-12,
        rtol=1e-12,
    )
