"""Tensors whose numbers nobody may look at yet: fake, on the meta device, one of many, in a graph.

And PyTorch's defaults, which are not those of the operands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import intently as it
from intently.nn import EncoderLayer, MultiHeadAttention
from intently.nn.models import Transformer

from ..combinations import pairs
from .formula import random as drawn
from .test_hidden_storage import TINY

pytestmark = pytest.mark.skipif(
    "INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced"
)

MASKS: dict[str, Callable[[int], Any]] = {
    "causal": lambda t: it.causal(),
    "offsets": lambda t: it.causal(torch.full((2,), 2)),
    "padding": lambda t: it.padding(torch.full((2,), 3)),
    "a list": lambda t: it.padding([3, 4]),
    "segments": lambda t: it.segments(torch.zeros(2, t, dtype=torch.long)),
    "booleans": lambda t: torch.ones(t, t, dtype=torch.bool),
    "joined": lambda t: it.causal() & ~it.dilated(2) | it.prefix(torch.full((2,), 2)),
}
STATISTICS: dict[str, Callable[[Any], Tensor]] = {
    "dense": lambda a: a.dense(),
    "lse": lambda a: a.lse,
    "entropy": lambda a: a.entropy(),
    "received": lambda a: a.received(normalize=True),
    "distance": lambda a: a.distance(),
    "argmax": lambda a: a.argmax(),
    "mass": lambda a: a.mass([0, 3]),
    "top": lambda a: a.top(3)[0],
    "pool": lambda a: a.pool(4, 4),
    "rows": lambda a: a[..., [1, 5], :],
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return drawn(*shape, dtype=torch.float32, seed=seed)


@pairs({"where": ["fake", "meta"], "t": [12, 600], "name": MASKS})
def test_shapes_without_numbers(name: str, t: int, where: str) -> None:
    shape = (2, 2, t, 8)
    with FakeTensorMode() if where == "fake" else torch.device("meta"):
        for dtype in (torch.float32, torch.float64):
            q, k, v = (torch.empty(shape, dtype=dtype, requires_grad=True) for _ in range(3))
            y = it.attention(q, k, v, mask=MASKS[name](t))
            y.sum().backward()
            assert y.shape == shape and q.grad is not None and q.grad.shape == shape
        q, k = torch.empty(shape), torch.empty(shape)
        found = {n: f(it.attend(q, k, mask=MASKS[name](t))).shape for n, f in STATISTICS.items()}
    real = torch.zeros(shape)
    assert found == {
        n: f(it.attend(real, real, mask=MASKS[name](t))).shape for n, f in STATISTICS.items()
    }


def test_fake_calls_change_no_later_choice() -> None:
    q = random(1, 2, 30, 24).double()
    kernel = it.attend(q, q).plan().kernel
    wide = random(1, 2, 30, 26).double()
    with FakeTensorMode():
        x = torch.empty(1, 2, 30, 26, dtype=torch.float64)
        it.attention(x, x, x)
    assert it.attend(wide, wide).plan().kernel == kernel


def models() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    ids = torch.randint(4, 11, (3, 9)), torch.randint(4, 11, (3, 7))
    found: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "attention": (MultiHeadAttention(16, 2), (random(3, 40, 16),)),
        "layer": (EncoderLayer(16, 2, 32), (random(3, 40, 16),)),
        "translator": (Transformer(TINY), ids),
    }
    return {name: (model.eval(), given) for name, (model, given) in found.items()}


@pytest.mark.parametrize("name", models())
def test_gradients_of_each_example(name: str) -> None:
    model, given = models()[name]
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], *example: Tensor) -> Tensor:
        batch = tuple(x[None] for x in example)
        return torch.func.functional_call(model, weights, batch).square().mean()

    over = (None, *(0 for _ in given))
    together = torch.func.vmap(torch.func.grad(loss), over)(weights, *given)
    for i, example in enumerate(zip(*given)):
        each = torch.autograd.grad(loss(weights, *example), list(weights.values()))
        for name, grad in zip(weights, each):
            torch.testing.assert_close(together[name][i], grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", models())
def test_gradients_of_compiled_models(name: str, dynamic: bool | None) -> None:
    model, given = models()[name]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    weights = list(model.parameters())
    for batch in (given, tuple(x[:2, :5] for x in given)):
        got = torch.autograd.grad(compiled(*batch).square().mean(), weights)
        expected = torch.autograd.grad(model(*batch).square().mean(), weights)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    torch._dynamo.reset()


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "vmap": lambda f, k: torch.func.vmap(f),
    "grad": lambda f, k: torch.func.grad(lambda x: f(x).square().sum()),
    "jvp": lambda f, k: lambda x: torch.func.jvp(f, (x,), (k,))[1],
    "each grad": lambda f, k: torch.func.vmap(torch.func.grad(lambda x: f(x).square().sum())),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("t", [12, 300])
def test_compiled_transforms(transform: str, t: int) -> None:
    q, k, v = (random(2, 2, t, 8, seed=n) for n in range(3))

    def product(x: Tensor) -> Tensor:
        return it.attention(x, k[0], v[0], mask=it.causal())

    f = TRANSFORMS[transform](product, k)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q), f(q), atol=1e-5, rtol=1e-4)
    torch._dynamo.reset()


@pytest.fixture(params=[torch.float64, torch.bfloat16, "meta"], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Changes a default of PyTorch until the test ends."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()

    def change() -> None:
        if request.param == "meta":
            torch.set_default_device("meta")
        else:
            torch.set_default_dtype(request.param)

    yield change
    torch.set_default_dtype(dtype)
    torch.set_default_device(None if device.type == "cpu" else device)


@pytest.mark.parametrize("t", [5, 300])
def test_defaults_of_pytorch_change_no_number(t: int, default: Callable[[], None]) -> None:
    q, k, v = (random(2, 2, t, 16, seed=n).requires_grad_() for n in range(3))
    bias, sinks, scale = random(2, t, t, seed=3), random(2, seed=4), torch.tensor(0.3)
    counts = torch.tensor([3, t])
    calls: list[dict[str, Any]] = [
        {},
        {"mask": it.causal()},
        {"mask": it.window(3, 1) & it.padding(counts), "bias": bias},
        {"softcap": 5.0, "sinks": sinks, "scale": scale},
        {"bias": it.alibi()},
    ]

    def everything() -> list[Tensor]:
        found: list[Tensor] = []
        for call in calls:
            y = it.attention(q, k, v, **call)
            a = it.attend(q.detach(), k.detach(), **call)
            found += [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]
            found += [statistic(a) for statistic in list(STATISTICS.values())[:-3]]
        return found

    expected = everything()
    default()
    for got, one in zip(everything(), expected, strict=True):
        torch.testing.assert_close(got, one, atol=1e-5, rtol=1e-4)
