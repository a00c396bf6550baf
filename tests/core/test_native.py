"""The native kernel in float32 and half types against the plain formula in float64.

Other tests take the kernels in float64, which it leaves to others.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import intently as it
from intently.core.kernels import native
from intently.core.kernels.native import operator

from ..combinations import each
from .cases import extras, rules
from .formula import first_terms, limit, multiply, random, score_of

pytestmark = pytest.mark.skipif(
    native.loaded.module is None, reason=f"no native kernel: {native.loaded.reason}"
)


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return random(*shape, seed=seed, dtype=dtype).requires_grad_()


def to(x: Any, dtype: torch.dtype) -> Any:
    """The same options with tensors of another dtype that need gradients."""
    if isinstance(x, Tensor):
        return x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x
    if isinstance(x, it.core.biases.Bias):
        return x.replaced(lambda y: to(y, dtype))
    return x


def leaves(options: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for x in options.values():
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, it.core.biases.Bias):
            found.extend(x.tensors())
    return [x for x in found if x.requires_grad]


def agree(
    found: Tensor,
    exact: Tensor,
    rough: Tensor,
    score: float,
    name: str = "y",
    first: Tensor | None = None,
) -> None:
    """Contract 7, where results are finite."""
    first = exact if first is None else first
    where = exact.isfinite()
    assert torch.equal(found.isfinite(), where), name
    mine = float((found.double() - exact)[where].abs().max()) if bool(where.any()) else 0.0
    allowed = limit(exact[where], rough[where], score, first[where])
    assert mine <= allowed, f"{name}: {mine:.2e} > {allowed:.2e}"


def compare(q: Tensor, k: Tensor, v: Tensor, mask: it.Mask | None, options: dict[str, Any]) -> None:
    """Product and every gradient, with the same numbers in three ways, and without second terms."""
    results: list[list[Tensor]] = []
    up = random(*it.attend(q, k, mask=mask).shape[:-1], v.shape[-1], seed=99, dtype=q.dtype)
    score = 0.0
    for kernel, dtype, patched in (
        ("native", q.dtype, nullcontext()),
        ("eager", q.dtype, nullcontext()),
        ("eager", torch.float64, nullcontext()),
        ("eager", torch.float64, first_terms()),
    ):
        x, y, z = (a.detach().to(dtype).requires_grad_() for a in (q, k, v))
        given = {name: to(value, dtype) for name, value in options.items()}
        with patched:
            A = it.attend(x, y, mask=mask, **given)
            product = multiply(A, z, kernel)
            inputs = [x, y, z, *leaves(given)]
            results.append([product, *torch.autograd.grad(product, inputs, up.to(dtype))])
        score = score_of(A)
    for i, (found, rough, exact, first) in enumerate(zip(*results)):
        assert found.dtype is q.dtype and found.shape == exact.shape
        four = (x.detach() for x in (found, exact, rough))
        agree(*four, score, f"result {i}", first.detach())


T, S = 130, 210
MASKS: dict[str, it.Mask | None] = {
    "none": None,
    "causal": it.causal(),
    "window": it.window(30, 3),
    "padding, one row empty": it.causal() & it.padding(torch.tensor([150, 0])),
    "ragged, first rows empty": it.causal(torch.tensor([-5, 100])),
    "segments": it.segments(torch.arange(T) // 40, torch.arange(S) // 40),
    "segments, mixed": it.segments(torch.arange(T) % 3, torch.arange(S) % 4),
    "dilated": it.dilated(3) & it.causal(),
    "a tensor": it.allowed(random(4, T, S, seed=14) > 0.5),
    "a tensor of keys": it.allowed(random(2, 1, 1, S, seed=14) > 0.5),
    "prefix | ~window": it.prefix(9) | ~it.window(100, 60),
    "grid": it.grid(10, 13, 2) if T == S else ~it.prefix(torch.tensor([3, 200])),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": random(4, seed=4)},
    "scale": {"scale": random(4, 1, 1, seed=5), "softcap": 2.0},
    "a negative scale": {"scale": -0.3},
    "scale 0": {"scale": 0.0},
    "bias of keys": {"bias": it.core.biases.TensorBias(random(4, 1, S, seed=6))},
    "bias of queries": {"bias": it.core.biases.TensorBias(random(2, 1, T, 1, seed=6))},
    "biases": {
        "bias": it.alibi(slopes=random(4, seed=9).abs())
        + it.relative_buckets(random(32, 4, seed=8))
        + it.core.biases.TensorBias(random(T, S, seed=7)),
        "sinks": random(4, seed=4),
    },
    "alibi by offset": {"bias": it.alibi(offset=torch.tensor([3, 90]))},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_products_and_gradients(mask: str, option: str) -> None:
    q, k, v = random(2, 4, T, 24), random(2, 2, S, 24, seed=1), random(2, 2, S, 10, seed=2)
    compare(q.float(), k.float(), v.float(), MASKS[mask], OPTIONS[option])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("option", ["plain", "softcap", "sinks", "biases"])
def test_half_types(option: str, dtype: torch.dtype) -> None:
    q, k, v = random(2, 4, T, 24), random(2, 2, S, 24, seed=1), random(2, 2, S, 10, seed=2)
    compare(q.to(dtype), k.to(dtype), v.to(dtype), it.causal(), OPTIONS[option])


@each({"d": [1, 3, 8, 20, 64, 100, 128, 256], "e": [1, 16, 72, 256]}, times=2)
def test_widths(d: int, e: int) -> None:
    q, k, v = random(2, 70, d), random(2, 61, d, seed=1), random(2, 61, e, seed=2)
    compare(q.float(), k.float(), v.float(), it.window(40, 0), {})


SHAPES = {
    "(t, d)": ((70, 8), (90, 8), (90, 5)),
    "one key for all": ((3, 4, 70, 8), (1, 1, 90, 8), (1, 1, 90, 5)),
    "five axes, groups": ((2, 2, 4, 9, 8), (2, 2, 2, 90, 8), (2, 2, 2, 90, 5)),
    "keys without b": ((2, 4, 9, 8), (2, 90, 8), (2, 90, 5)),
    "one value head": ((2, 4, 9, 8), (2, 4, 90, 8), (2, 1, 90, 5)),
    "values of their own": ((2, 4, 9, 8), (2, 2, 90, 8), (2, 4, 90, 5)),
    "one query for all": ((1, 1, 9, 8), (2, 4, 90, 8), (2, 4, 90, 5)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_leading_axes(shape: str) -> None:
    q, k, v = (random(*size, seed=i).float() for i, size in enumerate(SHAPES[shape]))
    if shape == "values of their own":
        with pytest.raises(it.errors.ArgumentError):
            it.attend(q, k) @ v
        return
    compare(q, k, v, it.causal(), {})


@pytest.mark.parametrize("mask", [None, it.causal()], ids=str)
@pytest.mark.parametrize("way", ["heads last", "transposed", "every second", "expanded"])
def test_any_stride(way: str, mask: it.Mask | None) -> None:
    made: list[Tensor] = []
    for i in range(3):
        if way == "heads last":
            made.append(random(2, 70, 4, 8, seed=i).float().transpose(1, 2))
        elif way == "transposed":
            made.append(random(2, 4, 8, 70, seed=i).float().mT)
        elif way == "every second":
            made.append(random(2, 4, 140, 16, seed=i).float()[..., ::2, ::2])
        else:
            made.append(random(2, 1, 70, 8, seed=i).float().expand(2, 4, 70, 8))
    q, k, v = made
    A = it.attend(q, k, mask=mask)
    whole = it.attend(q.contiguous(), k.contiguous(), mask=mask)
    assert torch.equal(multiply(A, v, "native"), multiply(whole, v.contiguous(), "native"))


@given(st.data())
def test_any_matrix(data: st.DataObject) -> None:
    """Shapes, masks joined of two, biases, scales, softcap and sinks, drawn together."""
    draw = data.draw
    lead = draw(st.sampled_from([(), (1,), (3,), (2, 4), (2, 1, 2)]))
    t, s = (draw(st.sampled_from([1, 2, 7, 47, 48, 49, 63, 64, 65, 100])) for _ in range(2))
    d, e = (draw(st.sampled_from([1, 4, 16, 17])) for _ in range(2))
    h = lead[-1] if lead else 1
    g = draw(st.sampled_from([n for n in (1, 2, h) if h % n == 0])) if len(lead) > 1 else h
    shared = (*lead[:-1], g) if lead else ()
    rule = draw(st.none() | rules(lead, t, s))
    options = {
        n: x.float() if isinstance(x, Tensor) else x for n, x in draw(extras(lead, t, s)).items()
    }
    seed = draw(st.integers(0, 2**20))
    q = random(*lead, t, d, seed=seed).float()
    k, v = (
        random(*shared, s, d, seed=seed + 1).float(),
        random(*shared, s, e, seed=seed + 2).float(),
    )
    mask = None if rule is None else rule[0]
    A = it.attend(q, k, mask=mask, **options)
    assert native.unserved(A.problem, v) is None
    exact = {n: x.double() if isinstance(x, Tensor) else x for n, x in options.items()}
    B = it.attend(q.double(), k.double(), mask=mask, **exact)
    truth = multiply(B, v.double(), "eager")
    agree(multiply(A, v, "native"), truth, multiply(A, v, "eager"), score_of(A))
    agree(A.entropy(), B.entropy(), B.entropy().float(), score_of(A), "entropy")
    agree(A.received(), B.received(), B.received().float(), score_of(A), "received")
    agree(A.pool(3, 5), B.pool(3, 5), B.pool(3, 5).float(), score_of(A), "pool")
    torch.testing.assert_close(A.top(3)[0].double(), B.top(3)[0], atol=2e-5, rtol=2e-5)


class TestStatistics:
    @pytest.mark.parametrize("option", ["plain", "softcap", "sinks", "biases", "a negative scale"])
    @pytest.mark.parametrize("mask", MASKS)
    def test_they_are_those_of_the_weights(self, mask: str, option: str) -> None:
        q, k = random(2, 4, T, 16).float(), random(2, 2, S, 16, seed=1).float()
        single = {n: to(x, torch.float32) for n, x in OPTIONS[option].items()}
        double = {n: to(x, torch.float64) for n, x in OPTIONS[option].items()}
        with torch.no_grad():
            A = it.attend(q, k, mask=MASKS[mask], **single)
            B = it.attend(q.double(), k.double(), mask=MASKS[mask], **double)
            assert it.kernels.measures(A.problem) and not it.kernels.measures(B.problem)
            for name, read in {
                "lse": lambda m: m.lse,
                "entropy": lambda m: m.entropy(),
                "distance": lambda m: m.distance(),
                "mass": lambda m: m.mass([1, 5, 77, 200]),
                "received": lambda m: m.received(),
                "received, normalised": lambda m: m.received(normalize=True),
                "pool": lambda m: m.pool(10, 30),
                "largest": lambda m: m.pool(33, 200, "max"),
                "each": lambda m: m.pool(T, S, "sum"),
                "top": lambda m: m.top(7)[0],
                "more than there are": lambda m: m.top(64)[0],
            }.items():
                found, exact = read(A), read(B)
                agree(found, exact, exact.float(), score_of(A), name) if name == "top" else None
                assert torch.equal(found.isfinite(), exact.isfinite()), name
                torch.testing.assert_close(found.double(), exact, atol=3e-5, rtol=3e-5, msg=name)
            (w, key), (_, other) = A.top(7), B.top(7)
            assert bool(((key == other) | (w.diff(dim=-1, prepend=w[..., :1]).abs() < 1e-5)).all())
            clear = B.top(1)[0][..., 0] > 1e-30  # what float32 can tell from 0
            assert float((A.argmax() == B.argmax())[clear].float().mean()) > 0.999

    def test_a_query_of_nan_spoils_its_row_alone(self) -> None:
        q, k = random(2, 70, 8).float(), random(2, 90, 8, seed=1).float()
        q[0, 3] = torch.nan
        A, B = it.attend(q, k), it.attend(q[1], k[1])
        assert bool(A.entropy()[0, 3].isnan()) and int(A.argmax()[0, 3]) == -1
        assert bool(A.top(2)[0][0, 3].isnan().all()) and A.top(2)[1][0, 3].tolist() == [-1, -1]
        assert bool(A.entropy()[0, :3].isfinite().all())
        assert torch.equal(A.received()[1], B.received())
        assert bool(A.received()[0].isnan().all())

    def test_they_are_found_without_a_matrix(self) -> None:
        n = 20_000
        q = random(n, 16).float()
        A = it.attend(q, q, mask=it.window(100, 0))
        assert A.pool(16, 16).shape == (16, 16) and A.received().shape == (n,)
        torch.testing.assert_close(A.received().sum(), torch.tensor(float(n)), rtol=1e-4, atol=0)


def test_dropout_is_that_of_the_other_kernels() -> None:
    q, k, v = leaf(2, 3, T, 16), leaf(2, 3, S, 16, seed=1), leaf(2, 3, S, 8, seed=2)
    up = random(2, 3, T, 8, seed=5).float()
    found: dict[str, list[Tensor]] = {}
    for kernel in ("native", "tiled", "eager"):
        torch.manual_seed(3)
        y = multiply(it.attend(q, k, mask=it.causal(), dropout=0.3), v, kernel)
        found[kernel] = [y, *torch.autograd.grad(y, (q, k, v), up)]
    for a, b, c in zip(*found.values()):
        torch.testing.assert_close(a, c, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(b, c, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    "mask",
    [
        it.causal(10**15),
        it.causal(torch.tensor([10**15, 5])),
        it.window(10**17, 0, offset=-(10**9)),
    ],
    ids=str,
)
def test_positions_beyond_all_keys(mask: it.Mask) -> None:
    q, k = random(2, 4, T, 16).float(), random(2, 4, S, 16, seed=1).float()
    A = it.attend(q, k, mask=mask)
    torch.testing.assert_close(multiply(A, k, "native"), multiply(A, k, "eager"))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf], ids=str)
def test_what_nobody_sees_does_not_matter(poison: float) -> None:
    """Contract 5, to the bit: keys and values behind the padding, and between two prefixes."""
    hidden = torch.zeros(S, dtype=torch.bool)
    hidden[150:], hidden[20:23] = True, True
    mask = it.causal() & it.allowed(~hidden)
    results = []
    for poisoned in (False, True):
        q, k, v = (random(2, n, 16, seed=i).float() for i, n in enumerate((T, S, S)))
        if poisoned:
            k[:, hidden], v[:, hidden] = poison, poison
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        y = multiply(it.attend(q, k, mask=mask), v, "native")
        grads = torch.autograd.grad(y.sum(), (q, k, v))
        A = it.attend(q.detach(), k.detach(), mask=mask)
        results.append([y, *grads, A.entropy(), A.received(), A.pool(7, 9), A.top(3)[0], A.lse])
    for clean, spoiled in zip(*results):
        assert bool(clean.isfinite().all()) and torch.equal(clean, spoiled)


def test_rows_that_see_nothing_are_zero_even_for_a_query_of_nan() -> None:
    q, k, v = (random(2, n, 16, seed=i).float() for i, n in enumerate((T, S, S)))
    q[:, :10] = torch.nan
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    y = multiply(it.attend(q, k, mask=it.causal(-10)), v, "native")
    grads = torch.autograd.grad(y.sum(), (q, k, v))
    assert bool((y[:, :10] == 0).all()) and bool((grads[0][:, :10] == 0).all())
    assert all(bool(x.isfinite().all()) for x in (y, *grads))


def test_gradients_are_the_same_every_time_and_for_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            q, k, v = leaf(300, 16), leaf(300, 16, seed=1), leaf(300, 16, seed=2)
            bias = leaf(1, 300, seed=3)
            A = it.attend(
                q, k, mask=it.causal(), bias=bias + it.core.biases.TensorBias(bias.detach())
            )
            y = multiply(A, v, "native")
            found.append([y, *torch.autograd.grad(y.sum(), (q, k, v, bias))])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


@pytest.mark.parametrize("t", [1, 2, 3])
def test_what_an_earlier_call_left_in_memory_does_not_reach_few_queries(t: int) -> None:
    """Lanes of no query are summed into the gradient of a bias that all queries share."""
    blank = torch.full((1, 2, 64, 16), math.nan)
    q, k, v, bias = leaf(1, 2, t, 16), leaf(1, 2, 127, 16), leaf(1, 2, 127, 16), leaf(2, 1, 127)
    with it.kernels.use("native"):
        it.attention(blank, blank, blank)  # NaN in every lane
        it.attention(q, k, v, bias=bias).sum().backward()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, bias)]
    it.attention(*exact[:3], bias=exact[3]).sum().backward()
    for x, y in zip((q, k, v, bias), exact):
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad.double(), y.grad, atol=1e-5, rtol=1e-4)


def test_few_queries_share_out_the_keys() -> None:
    q, k, v = random(8, 3, 32), random(8, 9000, 32, seed=1), random(8, 9000, 32, seed=2)
    for mask in (None, it.causal(), it.window(5000, 0)):
        compare(q.float(), k.float(), v.float(), mask, {"sinks": random(8, seed=3)})


PLAIN = pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced")


class Passing(TorchDispatchMode):
    """A mode that sees every operation and changes none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class TestOperator:
    @PLAIN
    def test_one_node_in_a_compiled_graph(self) -> None:
        q, k, v = leaf(2, 3, T, 16), leaf(2, 3, S, 16, seed=1), leaf(2, 3, S, 8, seed=2)
        table, sinks, scale = (leaf(32, 3, seed=3), leaf(3, seed=4), leaf(3, 1, 1, seed=5))

        def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            bias = it.relative_buckets(table)
            mask = it.causal() & it.padding(torch.tensor([150, 90]))
            return it.attention(q, k, v, mask=mask, bias=bias, sinks=sinks, scale=scale)

        inputs = (q, k, v, table, sinks, scale)
        once = torch.compile(f, fullgraph=True, backend="aot_eager")
        found = [[y := g(q, k, v), *torch.autograd.grad(y.sum(), inputs)] for g in (f, once)]
        for a, b in zip(*found):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)

    @PLAIN
    def test_export(self) -> None:
        class Model(torch.nn.Module):
            def forward(self, q: Tensor) -> Tensor:
                return it.attention(q, q, q, mask=it.causal(), softcap=5.0)

        q = random(2, 3, 40, 16).float()
        program = torch.export.export(Model(), (q,))
        assert "intently.native" in str(program.graph)
        assert torch.equal(program.module()(q), Model()(q))

    @PLAIN
    def test_opcheck(self) -> None:
        p = it.attend(leaf(2, 40, 16), leaf(2, 50, 16, seed=1), mask=it.causal()).problem
        given = operator.arguments(p, leaf(2, 50, 8, seed=2))
        torch.library.opcheck(torch.ops.intently.native.default, given)

    def test_second_derivatives(self) -> None:
        inputs = leaf(2, 9, 4), leaf(2, 9, 4, seed=1), leaf(2, 9, 4, seed=2), leaf(1, 9, seed=3)
        found = []
        for kernel in ("native", "eager"):
            q, k, v, bias = inputs
            y = multiply(
                it.attend(q, k, mask=it.causal(), bias=bias + it.alibi(2), softcap=4.0), v, kernel
            )
            first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
            found.append(torch.autograd.grad(sum(x.square().sum() for x in first), inputs))
        for a, b in zip(*found):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)

    def test_second_derivatives_where_a_mode_sees_the_operator(self) -> None:
        found = []
        for mode in (Passing(), nullcontext()):
            inputs = leaf(2, 70, 4), leaf(2, 70, 4, seed=1), leaf(2, 70, 4, seed=2)
            with mode:
                y = it.attention(*inputs, mask=it.causal(), softcap=4.0)
                first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
                found.append(torch.autograd.grad(sum(x.square().sum() for x in first), inputs))
        for a, b in zip(*found):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)

    def test_double_backward_after_checkpointing(self) -> None:
        from torch.utils.checkpoint import checkpoint

        q = leaf(2, 70, 16)
        y: Any = checkpoint(
            lambda x: it.attention(x, x, x, mask=it.causal()), q, use_reentrant=False
        )
        z = it.attention(q, q, q, mask=it.causal())
        torch.testing.assert_close(
            torch.autograd.grad(y.sum(), q)[0], torch.autograd.grad(z.sum(), q)[0]
        )


def test_a_scale_of_zero_learns() -> None:
    scale = torch.zeros(3, 1, 1).requires_grad_()
    q, k, v = leaf(3, 20, 8), leaf(3, 20, 8, seed=1), leaf(3, 20, 8, seed=2)
    found = []
    for kernel in ("native", "eager"):
        y = multiply(it.attend(q, k, scale=scale), v, kernel)
        found.append(torch.autograd.grad(y.square().sum(), (q, k, v, scale)))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


ADDITIVE = it.Additive(random(3, 8).float(), random(3, 8).float(), random(3).float())


@pytest.mark.parametrize("mask", MASKS)
def test_the_short_way_is_the_long_one_to_the_bit(mask: str) -> None:
    q, k, v = random(2, 4, T, 24), random(2, 2, S, 24, seed=1), random(2, 2, S, 10, seed=2)
    q, k, v, rule = q.float(), k.float(), v.float(), MASKS[mask]
    y = it.attention(q, k, v, mask=rule, scale=0.4)
    assert torch.equal(y, it.attend(q, k, mask=rule, scale=0.4) @ v)
    with it.kernels.use("torch_fused"), pytest.raises(it.errors.KernelError, match="e=10 differs"):
        it.attention(q, k, v, mask=rule)
    with pytest.raises(it.errors.ArgumentError, match=r"mask: expected t = s = 2·2"):
        it.attention(q, k, v, mask=it.causal() & it.grid(2, 2, 1))


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_the_short_way_refuses_what_the_long_one_does(scale: float) -> None:
    q = random(2, 4, 9, 8).float()
    with pytest.raises(it.errors.ArgumentError, match="scale: expected a finite number"):
        it.attention(q, q, q, scale=scale)


class TestPlan:
    Q = random(2, 4, 70, 8).float()

    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            (lambda q: it.attend(q.double(), q.double()), "dtype is torch.float64"),
            (lambda q: it.attend(q[..., :0, :], q), "a dimension is empty"),
            (
                lambda q: it.attend(q.repeat(1, 1, 1, 40), q.repeat(1, 1, 1, 40)),
                "d=320 or e=320 is",
            ),
            (lambda q: it.attend(q, q, score=ADDITIVE), "score is Additive, not the dot product"),
        ],
    )
    def test_it_says_why_not(self, call: Any, reason: str) -> None:
        A = call(self.Q)
        assert A.plan().refused["native"].startswith(reason)
        with it.kernels.use("native"), pytest.raises(it.errors.KernelError, match=reason):
            A @ A.k

    def test_it_comes_first(self) -> None:
        plan = it.attend(self.Q, self.Q, mask=it.dilated(2) & ~it.window(3, 0)).plan()
        assert plan.kernel == "native" and not plan.refused and plan.writes is None


# --- around it ----------------------------------------------------------------------------------


def in_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


EVERY = """
import torch, intently as it
torch.manual_seed(0)
ids = it.segments(torch.arange(130) // 30, torch.arange(170) // 40)
masks = None, it.causal(), ids, it.dilated(2) | it.prefix(3)
extras = {}, {"softcap": 2.0, "bias": it.alibi()}, {"sinks": torch.randn(4)}
limits = (torch.float32, 2e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)
for d, e, mask, options, (dtype, limit) in (
    (d, e, mask, options, limit) for d, e in ((16, 16), (20, 9), (64, 64))
    for mask in masks for options in extras for limit in limits
):
    shapes = (2, 4, 130, d), (2, 2, 170, d), (2, 2, 170, e)
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
    given = {n: x.to(dtype) if n == "sinks" else x for n, x in options.items()}
    found = []
    for kernel in ("native", "eager"):
        with it.kernels.use(kernel):
            y = it.attend(q, k, mask=mask, **given) @ v
            found.append([y, *torch.autograd.grad(y.float().square().sum(), (q, k, v))])
    for a, b in zip(*found):
        assert (a - b).abs().max() <= limit * b.abs().max(), (d, e, mask, options, dtype)
A = it.attend(q.detach().float(), k.detach().float(), mask=it.causal())
B = it.attend(A.q.double(), A.k.double(), mask=it.causal())
for m, n in ((A.entropy(), B.entropy()), (A.received(), B.received()), (A.pool(9, 9), B.pool(9, 9)),
             (A.top(4)[0], B.top(4)[0]), (A.distance() / 100, B.distance() / 100)):
    assert (m - n).abs().max() < 1e-5
tokens = torch.arange(170) % 50
from intently.core.matrix import patterns
both = [patterns.measure(m, tokens) for m in (A, B)]
for name in both[0]:
    m, n = (found[name].value() for found in both)
    assert (m - n).abs().max() <= 1e-5 * n.abs().max(), name
from intently.core.kernels.native import instructions
print(instructions())
"""


@pytest.mark.parametrize("name", ["portable", "neon", "avx2", "avx512"])
def test_every_instruction_set_of_the_machine(name: str) -> None:
    done = in_python(EVERY, INTENTLY_NATIVE=name)
    if "no such set" in done.stderr or "was not built" in done.stderr:
        pytest.skip(f"this machine or build has no {name}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == name


def test_without_it_everything_works_as_before() -> None:
    code = (
        "import torch, intently as it; q = torch.randn(2, 4, 70, 8); A = it.attend(q, q);"
        "assert 'native' not in it.kernels.available(); print(A.plan());"
        "A @ q; it.attention(q, q, q); A.entropy(); A.top(3); A.received(); A.pool(3, 3); A.lse"
    )
    done = in_python(code, INTENTLY_NATIVE="off")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("torch_fused") and "not native: INTENTLY_NATIVE=off" in done.stdout
    )


def test_python_threads_at_once() -> None:
    q, k, v = (random(4, 200, 16, seed=i).float() for i in range(3))
    expected = multiply(it.attend(q, k, mask=it.causal()), v, "native")
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(30):
            if not torch.equal(multiply(it.attend(q, k, mask=it.causal()), v, "native"), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_after_a_fork() -> None:
    code = """
import os, torch, intently as it
torch.set_num_threads(2)
q = torch.randn(4, 700, 32)
y = it.attention(q, q, q).numpy()
child = os.fork()
if not child:  # PyTorch's own operations on so many numbers would hang here
    same = (it.attention(q, q, q).numpy() == y).all() and it.attend(q, q).argmax().shape == (4, 700)
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0 and (it.attention(q, q, q).numpy() == y).all()
"""
    done = in_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_after_a_fork_of_a_process_that_never_used_the_kernel() -> None:
    code = """
import os, signal, torch, intently as it
torch.set_num_threads(2)
q = torch.randn(4, 700, 32)
expected = ((q @ q.mT) * 32 ** -0.5).softmax(-1) @ q  # on PyTorch's threads, which the child lacks
child = os.fork()
if not child:
    signal.alarm(60)
    with it.kernels.use("native"):
        far = abs(it.attention(q, q, q).numpy() - expected.numpy()).max()
    os._exit(0 if far < 1e-5 else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = in_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("backward", [False, True])
def test_ctrl_c_ends_a_long_call(backward: bool) -> None:
    """A signal after an eighth of the work, in processor time, ends it before the half."""
    code = f"""
import signal, time, torch, intently as it
from intently.core.kernels.native import operator
n = 40_000
q = torch.randn(1, n, 64)

def work(rows):
    x, y = q[:, :rows], torch.randn(1, rows, 64)
    if not {backward}:
        return it.attention(x, q, q)
    o = operator.operands(it.attend(x, q).problem, q, None)
    return operator.gradients(o, y, torch.ones(1, rows, 2), y, [True] * 3)

begin = time.process_time()
work(n // 8)
part = time.process_time() - begin
signal.signal(signal.SIGPROF, signal.default_int_handler)
signal.setitimer(signal.ITIMER_PROF, part)
begin = time.process_time()
try:
    work(n)
except KeyboardInterrupt:
    assert time.process_time() - begin < 4 * part
else:
    raise SystemExit("it was not stopped")
"""
    done = in_python(code)
    assert done.returncode == 0, done.stderr


def test_lists_and_arrays_reach_it() -> None:
    x = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")
    A = it.attend(x, x)
    assert A.plan().kernel == "native"
    torch.testing.assert_close(A @ x, A.dense() @ torch.tensor(x), atol=1e-6, rtol=1e-5)
