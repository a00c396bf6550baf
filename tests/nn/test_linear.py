"""Linear maps by oneDNN against those of PyTorch's default library, wherever they may be called."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.nn import MultiHeadAttention
from intently.nn import linear as module
from intently.nn.linear import Linear, linear

from ..combinations import pairs

if not module.known():
    pytest.skip("this PyTorch was built without oneDNN", allow_module_level=True)


@pytest.fixture(autouse=True)
def onednn_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let every float32 product go to oneDNN, whoever made the processor, and count them."""
    taken: list[int] = []
    product = module.product

    def counted(*given: Tensor) -> Tensor:
        taken.append(1)
        return product(*given)  # pyright: ignore

    monkeypatch.setattr(module, "prefers_onednn", lambda: True)
    monkeypatch.setattr(module, "SIZE", 0)
    monkeypatch.setattr(module, "product", counted)
    yield taken


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(ours: object, theirs: object) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


X = {
    "2-D": lambda: drawn(9, 6),
    "3-D": lambda: drawn(2, 5, 6),
    "transposed": lambda: drawn(6, 9).t(),
    "every other": lambda: drawn(2, 8, 6)[:, ::2],
    "strided": lambda: drawn(7, 12)[:, ::2],
    "expanded": lambda: drawn(1, 1, 6).expand(3, 4, 6),
    "one row": lambda: drawn(1, 6),
    "no rows": lambda: drawn(0, 6),
}
W = {
    "rows": lambda: drawn(10, 6),
    "columns": lambda: drawn(6, 10).t(),
    "part": lambda: drawn(20, 12)[3:13, :6],
    "narrow": lambda: drawn(3, 6),
}


@pairs({"weight": W, "x": X, "bias": [True, False]})
def test_values_and_gradients(
    x: str, weight: str, bias: bool, onednn_everywhere: list[int]
) -> None:
    found: list[list[Tensor]] = []
    for call in (linear, F.linear):
        given = [X[x]().requires_grad_(), W[weight]().requires_grad_()]
        given += [drawn(len(given[1])).requires_grad_()] if bias else []
        y = call(*given)
        found.append([y, *torch.autograd.grad(y, given, torch.ones_like(y).cumsum(-1))])
    close(*found)
    assert len(onednn_everywhere) >= 2 or x == "no rows"  # the product, at least one gradient


def test_second_derivatives() -> None:
    def penalty(call: object) -> list[Tensor]:
        x, w, b = drawn(9, 6).requires_grad_(), drawn(10, 6).requires_grad_(), drawn(10)
        y = call(x, w, b).square().sum()  # pyright: ignore
        gradients = torch.autograd.grad(y, (x, w), create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in gradients), (x, w)))  # pyright: ignore

    torch.testing.assert_close(penalty(linear), penalty(F.linear), rtol=1e-4, atol=1e-3)


def test_only_what_is_asked_for_is_computed(onednn_everywhere: list[int]) -> None:
    linear(drawn(9, 6), drawn(10, 6).requires_grad_()).sum().backward()
    assert len(onednn_everywhere) == 2
    with torch.no_grad():
        assert not linear(drawn(9, 6), drawn(10, 6).requires_grad_()).requires_grad


def test_nan_stays_in_its_row() -> None:
    x = drawn(8, 6)
    x[2] = torch.nan
    assert linear(x, drawn(10, 6)).isnan().any(-1).tolist() == [i == 2 for i in range(8)]


@pytest.mark.parametrize("x", [drawn(9, 6).double(), drawn(9, 6).half(), drawn(6)])
def test_what_the_default_library_keeps(x: Tensor, onednn_everywhere: list[int]) -> None:
    w = drawn(10, 6).to(x.dtype)
    assert torch.equal(linear(x, w), F.linear(x, w))
    assert not onednn_everywhere


def test_transforms_autocast_and_the_switch(onednn_everywhere: list[int]) -> None:
    x, w = drawn(4, 9, 6), drawn(10, 6)
    want = F.linear(x, w)
    close(torch.func.vmap(lambda x: linear(x, w))(x), want)
    dy = torch.func.jvp(lambda x: linear(x, w), (x,), (x,))[1]
    close(dy, want)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, w).dtype is torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(linear(x, w), want)
    assert not onednn_everywhere


def test_compiled_graphs_hold_the_plain_product(onednn_everywhere: list[int]) -> None:
    layer = Linear(6, 10)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    close(compiled(drawn(9, 6)), layer(drawn(9, 6)))
    assert len(onednn_everywhere) == 1


@pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced")
@pytest.mark.parametrize("strict", [False, True])
def test_an_export_serves_every_batch(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    block, shapes = MultiHeadAttention(16, 2), ({0: torch.export.Dim("b", max=5000)},)
    program = torch.export.export(block, (drawn(3, 5, 16),), dynamic_shapes=shapes, strict=strict)
    x = drawn(900, 5, 16)
    close(program.module()(x), block(x))


def test_a_layer_loads_and_saves_as_pytorch_does() -> None:
    theirs, ours = nn.Linear(6, 10), Linear(6, 10)
    ours.load_state_dict(theirs.state_dict())
    close(ours(drawn(9, 6)), theirs(drawn(9, 6)))


def test_processors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for vendor, wanted in (("GenuineIntel", False), ("AuthenticAMD", True), (None, False)):
        module.prefers_onednn.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "vendor", lambda vendor=vendor: vendor)
            assert module.prefers_onednn() is (wanted and torch.backends.mkl.is_available())
    module.prefers_onednn.cache_clear()
