"""What each kernel can differentiate, and how it says what it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap

import intently as it
from intently.errors import KernelError

from ..messages import refused
from .formula import IN_FLOAT64, families, others, random

KERNELS = IN_FLOAT64


def leaf(*shape: int, seed: int = 7) -> Tensor:
    return random(*shape, seed=seed).requires_grad_()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "family",
    [
        "none",
        "causal",
        "causal, first rows empty",
        "padding",
        "segments",
        "allowed",
        "causal & padding",
    ],
)
def test_gradcheck(family: str, kernel: str) -> None:
    mask, _ = families(2, 2, 4, 4)[family]
    inputs = leaf(2, 2, 4, 2), leaf(2, 1, 4, 2), leaf(2, 1, 4, 2 if kernel == "torch_fused" else 3)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with it.kernels.use(kernel):
            return it.attention(q, k, v, mask=mask)

    assert gradcheck(f, inputs)
    assert kernel == "torch_fused" or gradgradcheck(f, inputs)


@pytest.mark.parametrize("what", ["product", "dense", "lse"])
def test_gradcheck_of_everything_a_matrix_is_made_of(what: str) -> None:
    q, k, v = leaf(2, 2, 3, 2), leaf(2, 1, 3, 2), leaf(2, 1, 3, 3)
    bias, sinks = leaf(3, 3), leaf(2)
    mask, _ = families(2, 2, 3, 3)["allowed"]

    def f(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        A = it.attend(q, k, mask=mask, bias=bias, sinks=sinks, softcap=2.0)
        return A @ v if what == "product" else A.dense() if what == "dense" else A.lse

    assert gradcheck(f, (q, k, v, bias, sinks))
    assert gradgradcheck(f, (q, k, v, bias, sinks))


@pytest.mark.parametrize("kernel", ["tiled", "eager"])
def test_every_parameter(kernel: str) -> None:
    q, k, v = leaf(2, 3, 2), leaf(2, 4, 2), leaf(2, 4, 3)
    more = [leaf(2), leaf(2, 1, 1), leaf(3, 4), leaf(8, 2), leaf(2)]
    layer = [leaf(3, 2), leaf(2, 3, 2), leaf(3)]

    def f(*given: Tensor) -> Tensor:
        q, k, v, sinks, scale, bias, table, slopes, *layer = given
        added = it.relative_buckets(table, max_distance=6) + it.alibi(slopes=slopes) + bias
        score = it.Additive(*layer)
        A = it.attend(q, k, score=score, bias=added, scale=scale, softcap=2.0, sinks=sinks)
        with it.kernels.use(kernel):
            return A @ v

    assert gradcheck(f, (q, k, v, *more, *layer))
    assert gradgradcheck(f, (q, k, v, *more, *layer))


def test_the_fused_kernel_says_that_it_cannot_go_twice() -> None:
    q = leaf(2, 4, 8)
    with it.kernels.use("torch_fused"):
        y = it.attention(q, q, q)
    refused(
        lambda: torch.autograd.grad(y.sum(), q, create_graph=True),
        KernelError,
        "create_graph: expected first derivatives of torch_fused; got a gradient that is to be "
        "differentiated again. PyTorch's fused kernels have no second derivatives. "
        'Compute within `with it.kernels.use("tiled"):`.',
        whole=True,
    )
    with it.kernels.use("tiled"):
        y = it.attention(q, q, q)
    (first,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), q)[0].isfinite().all()


def large(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed)


@pytest.mark.parametrize("n", [6, 600])
def test_forward_mode(n: int) -> None:
    q, dq = large(n, 4), large(n, 4, seed=1)
    k, v = large(n, 4, seed=2), large(n, 4, seed=3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, dq)
        A = it.attend(dual, k, mask=it.causal())
        assert A.plan(v).kernel == "eager"
        assert others(A.plan(v).refused) == {
            name: "it has no forward-mode derivative" for name in ("torch_fused", "tiled")
        }
        tangent = forward_ad.unpack_dual(A @ v).tangent
        with it.kernels.use("tiled"), pytest.raises(KernelError, match="no forward-mode"):
            A @ v
        assert it.attend(k, k).plan(v).kernel == "torch_fused", "others are left alone"
    h = 1e-6
    with it.kernels.use("eager"):
        up, down = (it.attention(q + e * dq, k, v, mask=it.causal()) for e in (h, -h))
    assert (tangent - (up - down) / (2 * h)).abs().max() < 1e-7


@pytest.mark.parametrize("n", [6, 400])
def test_torch_func(n: int) -> None:
    q, k, v = large(3, 2, n, 4), large(3, 2, n, 4, seed=1), large(3, 2, n, 4, seed=2)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(q, k, v, mask=it.causal(), softcap=3.0).square().sum()

    leaves = [x[0].clone().requires_grad_() for x in (q, k, v)]
    with it.kernels.use("eager"):
        expected = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(grad(loss, (0, 1, 2))(q[0], k[0], v[0]), expected)
    rows = vmap(lambda q, k, v: it.attention(q, k, v, mask=it.causal()))(q, k, v)
    torch.testing.assert_close(rows, it.attention(q, k, v, mask=it.causal()))
    each = vmap(grad(loss, 0))(q, k, v)
    torch.testing.assert_close(each[0], expected[0])
    _, tangent = jvp(lambda q: it.attention(q, k, v), (q,), (torch.ones_like(q),))
    assert tangent.isfinite().all()


def test_the_fused_kernel_serves_a_single_grad() -> None:
    kernels = []

    def loss(q: Tensor) -> Tensor:
        A = it.attend(q, q)
        kernels.append(A.plan().kernel)
        return (A @ q).sum()

    q = large(2, 5, 4)
    grad(loss)(q)
    grad(lambda q: grad(loss)(q).square().sum())(q)
    vmap(loss)(q)
    assert kernels == ["torch_fused", "eager", "eager"]


def test_forced_kernels_say_what_torch_func_needs() -> None:
    q = large(2, 5, 4)
    for kernel, reason in (
        ("tiled", "torch.func needs operations it knows, as the plain formula has"),
        ("torch_fused", "torch.func has no rule for it"),
    ):
        with it.kernels.use(kernel), pytest.raises(KernelError, match=reason):
            vmap(lambda q: it.attention(q, q, q))(q)


@pytest.mark.parametrize("kind", ["one tensor", "derived", "a bias of the input"])
def test_second_derivatives_of_operands_that_depend_on_one_another(kind: str) -> None:
    x, w = leaf(2, 5, 4), leaf(4, 4, seed=3)

    def f(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = {"derived": (x, x @ w, x * 2)}.get(kind, (x, x, x))
        bias = x @ x.mT if kind == "a bias of the input" else None
        with it.kernels.use("tiled"):
            return it.attention(q, k, v, bias=bias, mask=it.causal()) + w.sum()

    assert gradcheck(f, (x, w)) and gradgradcheck(f, (x, w))
