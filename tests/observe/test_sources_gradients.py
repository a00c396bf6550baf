"""`gradients=True`: the gradient of A @ v by every way, or the reason why there is none."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import intently as it
from intently.observe.recording.recording import Entry
from intently.observe.storage.stores import Store

from ..combinations import pairs
from .attending import SelfAttention, Stack, stack


def of_the_product(entry: Entry, loss: Any) -> Tensor:
    """The gradient of A @ v, where ``loss(mixed)`` goes on with it."""
    mixed = (entry.matrix().dense() @ entry.v()).detach().requires_grad_()
    (grad,) = torch.autograd.grad(loss(mixed), mixed)
    return grad


@pairs(
    {
        "batched": [True, False],
        "batch_first": [True, False],
        "options": [{}, {"kdim": 6, "vdim": 4}, {"add_bias_kv": True}],
        "need_weights": [True, False],
    }
)
def test_multi_head_attention(
    options: dict[str, Any], batch_first: bool, batched: bool, need_weights: bool
) -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)
    lead = (3,) if batched else ()
    q, k, v = (torch.randn(*lead, 5, options.get(f"{n}dim", 8)) for n in "qkv")
    if batched and not batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    with it.watch(model, gradients=True) as seen:
        y, _ = model(q, k, v, need_weights=need_weights)
        y.square().sum().backward()

    def loss(mixed: Tensor) -> Tensor:
        return model.out_proj(mixed.transpose(-3, -2).flatten(-2)).square().sum()

    (entry,) = seen.calls
    expected = of_the_product(entry, loss)
    assert entry.grad().shape == (*entry.shape[:-1], 4)
    assert torch.allclose(entry.grad().reshape(expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("store", ["copy", "reference", "disk"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool, store: Any) -> None:
    model, x = stack(2), torch.randn(2, 5, 32, requires_grad=True)
    model.layers.append(model.layers[0])  # attends twice
    with it.watch(model, gradients=True) as plain:
        model(x).square().sum().backward()
    with it.watch(model, gradients=True, store=store) as seen:
        y = x
        for layer in model.layers:
            y = y + checkpoint(layer, y, use_reentrant=reentrant)  # type: ignore[operator]
        y.square().sum().backward()
    assert len(seen.calls) == 3
    for entry, expected in zip(seen.calls, plain.calls, strict=True):
        assert (entry.name, entry.index) == (expected.name, expected.index)
        assert torch.equal(entry.grad(), expected.grad())


def test_reentrant_checkpoints_of_multi_head_attention() -> None:
    model, x = nn.MultiheadAttention(8, 2), torch.randn(5, 2, 8, requires_grad=True)
    with it.watch(model, gradients=True) as seen:
        for called in (partial(checkpoint, model, use_reentrant=True), model):
            called(x, x, x)[0].square().sum().backward()  # type: ignore[index]
    first, second = seen.calls
    assert torch.allclose(first.grad(), second.grad(), atol=1e-6)


def test_there_is_a_reason_where_there_is_none() -> None:
    model, x = stack(1), torch.randn(2, 5, 32, requires_grad=True)
    with it.watch(model, gradients=True) as seen:
        with torch.no_grad():
            model(x)
        y = checkpoint(model, x, use_reentrant=True)
        model(x)
    y.sum().backward()  # type: ignore[union-attr]
    graph = r"got none. The call ran without gradients: under torch.no_grad, .* reentrant checkp"
    for n, message in enumerate((graph, graph, r"got none. Watch\(model, gradients=True\), then")):
        with pytest.raises(it.errors.ArgumentError, match=message):
            seen.calls[n].grad()


def full(*args: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_ends_no_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = stack(1), torch.randn(2, 5, 32)
    with it.watch(model, gradients=True, store="disk") as seen:
        y = model(x)

        monkeypatch.setattr(Store, "own", full)
        y.sum().backward()
    assert "The gradient of layers.0 was not kept: [Errno 28] No space" in str(seen.coverage())
    with pytest.raises(it.errors.ArgumentError, match=r"It could not be kept: \[Errno 28\]"):
        seen.calls[0].grad()
    assert seen["layers.0"].shape == (2, 4, 5, 5)


def test_what_came_out_does_not_keep_the_model() -> None:
    model, x = Stack(SelfAttention(), nn.Identity()), torch.randn(2, 5, 32)
    layer = weakref.ref(model.layers[1])
    with it.watch(model, gradients=True) as seen:
        y = model(x)
    del model
    gc.collect()
    assert layer() is None
    y.sum().backward()
    assert seen.calls[0].grad().shape == (2, 4, 5, 8)


def test_reentrant_checkpoints_are_told_apart() -> None:
    model = SelfAttention()
    x, other = (torch.randn(2, 5, 32, requires_grad=True) for _ in range(2))
    with it.watch(model, gradients=True) as seen:
        one, _ = (checkpoint(model, z, use_reentrant=True) for z in (x, other))
        one.sum().backward()  # type: ignore[union-attr]
    assert seen.calls[0].grad().shape == (2, 4, 5, 8)
    with pytest.raises(it.errors.ArgumentError, match=r"got none. The call ran without gradients"):
        seen.calls[1].grad()
    with it.watch(model, gradients=True) as seen:
        one, two = (checkpoint(model, x, use_reentrant=True) for _ in range(2))
        (one + 3 * two).sum().backward()  # type: ignore[operator]
    assert torch.allclose(3 * seen.calls[0].grad(), seen.calls[1].grad())
