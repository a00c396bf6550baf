"""The fused loss equals the plain one, in value and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from intently.errors import ArgumentError
from intently.tasks.training import loss as module
from intently.tasks.training.loss import smoothed_cross_entropy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 40)  # three rows of thirteen logits


def inputs(dtype: torch.dtype = torch.float64, pad: bool = True):
    torch.manual_seed(0)
    hidden = torch.randn(4, 5, 7, dtype=dtype, requires_grad=True)
    weight = torch.randn(13, 7, dtype=dtype, requires_grad=True)
    targets = torch.randint(1, 13, (4, 5))
    if pad:
        targets[1, 3:] = 0
        targets[3, 1:] = 0
    return hidden, weight, targets


def plain(hidden, weight, targets, smoothing):
    logits = F.linear(hidden, weight).flatten(0, 1)
    return F.cross_entropy(
        logits, targets.flatten(), ignore_index=0, label_smoothing=smoothing, reduction="sum"
    )


@pytest.mark.parametrize(("smoothing", "pad"), [(0.0, True), (0.1, False), (0.1, True)])
def test_equal_to_cross_entropy(smoothing: float, pad: bool) -> None:
    hidden, weight, targets = inputs(pad=pad)
    loss, tokens = smoothed_cross_entropy(hidden, weight, targets, smoothing)
    expected = plain(hidden, weight, targets, smoothing)
    assert tokens == int((targets != 0).sum())
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    ours = torch.autograd.grad(3 * loss, (hidden, weight))
    theirs = torch.autograd.grad(3 * expected, (hidden, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precision(dtype: torch.dtype) -> None:
    """At most twice the error of the plain formula in the same dtype, against float64."""
    hidden, weight, targets = inputs(dtype)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    reference = plain(exact[0], exact[1], targets, 0.1)
    ours, _ = smoothed_cross_entropy(hidden, weight, targets, 0.1)
    theirs = plain(hidden, weight, targets, 0.1)
    floor = 8 * torch.finfo(dtype).eps
    triples = [(reference, ours, theirs)]
    triples += zip(
        torch.autograd.grad(reference, exact),
        torch.autograd.grad(ours, (hidden, weight)),
        torch.autograd.grad(theirs, (hidden, weight)),
        strict=True,
    )
    for truth, mine, other in triples:
        bound = 2 * (other.double() - truth).abs().max() + floor * truth.abs().max()
        assert (mine.double() - truth).abs().max() <= bound


def test_far_logits_stay_finite() -> None:
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    weight = torch.tensor([[-1.0], [0.0], [1.0]], requires_grad=True)
    loss, _ = smoothed_cross_entropy(hidden, weight, torch.tensor([2, 2]), 0.0)
    assert loss.item() == 600.0
    loss.backward()
    torch.testing.assert_close(hidden.grad, torch.tensor([[0.0], [-2.0]]))


def test_nothing_but_padding_and_no_gradients() -> None:
    hidden, weight, targets = inputs()
    assert not smoothed_cross_entropy(hidden.detach(), weight.detach(), targets)[0].requires_grad
    loss, tokens = smoothed_cross_entropy(hidden, weight, torch.zeros_like(targets), 0.1)
    loss.backward()
    assert (loss.item(), tokens) == (0.0, 0)
    assert hidden.grad is not None and not hidden.grad.any()


def test_the_gradient_of_the_gradient_is_refused() -> None:
    hidden, weight, targets = inputs()
    loss, _ = smoothed_cross_entropy(hidden, weight, targets)
    scale = torch.ones((), dtype=loss.dtype, requires_grad=True)
    (grad,) = torch.autograd.grad(scale * loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_targets_of_another_shape_are_named() -> None:
    hidden, weight, targets = inputs()
    said = r"targets: expected shape \(4, 5\).*got shape \(4, 4\)"
    with pytest.raises(ArgumentError, match=said):
        smoothed_cross_entropy(hidden, weight, targets[:, :-1])
