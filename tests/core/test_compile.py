"""torch.compile(fullgraph=True): the same numbers, and one node for the tiled kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it

from .formula import random

pytestmark = pytest.mark.skipif(
    "INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced"
)

MASKS: dict[str, Callable[[], it.Mask | Tensor | None]] = {
    "none": lambda: None,
    "causal": it.causal,
    "causal & padding": lambda: it.causal() & it.padding(torch.tensor([300, 7])),
    "ragged": lambda: it.causal(torch.tensor([5, 0])),
    "window": lambda: it.window(40, 0),
    "a tensor": lambda: torch.ones(300, 300, dtype=torch.bool).tril(),
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def nodes(f: Callable[..., Any], *args: Any) -> list[str]:
    """Names of the operators in the graph of f."""
    found: list[str] = []

    def keep(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
        found.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    torch.compile(f, fullgraph=True, backend=keep)(*args)
    return found


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"dropout": 0.0, "scale": 0.3}], ids=str)
def test_products_and_gradients(masked: str, options: dict[str, Any]) -> None:
    inputs = [random(2, 2, 300, 4, seed=i).requires_grad_() for i in range(3)]
    mask = MASKS[masked]()

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return it.attention(q, k, v, mask=mask, **options)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    y, expected = compiled(*inputs), f(*inputs)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(
        torch.autograd.grad(y.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
    )


def test_masks_made_inside() -> None:
    """PyTorch 2.13 reads ``&`` and ``|`` of objects, and no ``~``."""

    def f(x: Tensor) -> Tensor:
        mask = it.causal() & it.window(9, 0).inverted() | it.prefix(2) & it.dilated(3)
        return it.attention(x, x, x, mask=mask.inverted())

    x = random(2, 30, 4)
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


SCALE, SINKS = random(3, 1, 1, seed=5).requires_grad_(), random(3, seed=6).requires_grad_()
TABLE, WEIGHT = random(32, 3, seed=7).requires_grad_(), random(4, 4, seed=8).requires_grad_()
FORCED: dict[str, tuple[dict[str, Any], tuple[Tensor, ...]]] = {
    "scale, sinks": ({"scale": SCALE, "sinks": SINKS}, (SCALE, SINKS)),
    "biases": ({"bias": it.relative_buckets(TABLE) + it.alibi(), "softcap": 2.0}, (TABLE,)),
    "general": ({"score": it.General(WEIGHT)}, (WEIGHT,)),
}


@pytest.mark.parametrize("option", FORCED)
def test_tiled_forced(option: str) -> None:
    t, (options, learned) = 300, FORCED[option]
    inputs = [random(2, 3, t, 4, seed=i).requires_grad_() for i in range(3)]

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = it.causal() & it.padding(torch.tensor([t, 7]))
        return it.attention(q, k, v, mask=mask, **options)

    with it.kernels.use("tiled"):
        y, expected = torch.compile(f, fullgraph=True, backend="aot_eager")(*inputs), f(*inputs)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(
            torch.autograd.grad(y.square().sum(), (*inputs, *learned)),
            torch.autograd.grad(expected.square().sum(), (*inputs, *learned)),
        )


def test_the_tiled_kernel_is_one_node() -> None:
    q = random(2, 3, 500, 4)
    added = it.alibi(3) + it.relative_buckets(random(32, 3))

    def f(q: Tensor) -> Tensor:
        return it.attention(q, q, q, mask=it.window(100, 0), bias=added, softcap=2.0)

    found = nodes(f, q)
    assert [name for name in found if "tiled" in name] == ["intently.tiled.default"]
    assert len(found) <= 3


def test_a_mask_made_inside_of_what_comes_in() -> None:
    def f(x: Tensor, lengths: Tensor) -> Tensor:
        return it.attention(x, x, x, mask=it.causal() & it.padding(lengths), softcap=5.0)

    x = random(2, 400, 4)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for lengths in (torch.tensor([400, 3]), torch.tensor([0, 77])):
        torch.testing.assert_close(compiled(x, lengths), f(x, lengths))


def test_other_lengths_need_no_new_graph() -> None:
    count = 0

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
        nonlocal count
        count += 1
        return graph.forward

    def f(x: Tensor) -> Tensor:
        return it.attention(x, x, x, mask=it.causal(), softcap=5.0)

    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=True)
    for n in (400, 500, 600):
        x = random(2, n, 4)
        torch.testing.assert_close(compiled(x), f(x))
    assert count <= 2


def test_inductor() -> None:
    q, k, v = (random(2, 4, 300, 8, seed=i).float() for i in range(3))

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = it.attention(q * 2, k, v, mask=it.causal())
        return it.attention(x, k, v, mask=it.window(30, 0), softcap=4.0, sinks=q[0, :, 0, 0])

    torch.testing.assert_close(torch.compile(f, fullgraph=True)(q, k, v), f(q, k, v))


def test_a_module_of_ours() -> None:
    from intently.nn import MultiHeadAttention

    layer = MultiHeadAttention(16, 4)
    x = random(2, 30, 16).float()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(x, mask=it.causal()), layer(x, mask=it.causal()), atol=1e-6, rtol=1e-5
    )


def test_the_matrix_itself() -> None:
    x = random(2, 30, 8)

    def f(x: Tensor) -> Tensor:
        A = it.attend(x, x, mask=it.causal())
        return A.matmul(x) + A.lse[..., None]

    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"Write A\.matmul\(v\)"):
        torch.compile(lambda x: it.attend(x, x) @ x, fullgraph=True, backend="eager")(x)


def test_a_graph_keeps_the_kernel_it_was_traced_with() -> None:
    x = random(2, 30, 8)
    with it.kernels.use("tiled"):
        found = nodes(lambda x: it.attention(x, x, x), x)
    assert [name for name in found if "tiled" in name] == ["intently.tiled.default"]
