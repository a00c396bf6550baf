"""What the feed-forward layers refuse, and what a hook on them sees."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, KindError
from intently.nn import FeedForward, GatedFeedForward

from ..messages import raises


class Packed(nn.Module):
    """A linear map whose weight is a method, as those of PyTorch's quantised maps."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def weight(self) -> Tensor:
        return self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


KINDS: list[Any] = [FeedForward, GatedFeedForward]


test_sizes_that_cannot_be = raises(
    [
        (lambda kind=kind, given=given: kind(*given), error, text)
        for kind in KINDS
        for given, error, text in (
            ((0, 4), ArgumentError, "width: expected an int ≥ 1; got 0."),
            ((4.0, 4), KindError, "width: expected an int ≥ 1; got 4.0."),
            ((4, -1), ArgumentError, "inner: expected an int ≥ 1; got -1."),
            ((4, "a"), KindError, "inner: expected an int ≥ 1; got 'a'."),
            ((4, 4, 1.5), ArgumentError, "dropout: expected a probability in [0, 1); got 1.5."),
            ((4, 4, "a"), ArgumentError, "dropout: expected a probability in [0, 1); got 'a'."),
        )
    ],
    whole=True,
)
test_an_activation_is_a_function = raises(
    [
        (
            lambda kind=kind: kind(4, 8, activation="gelu"),
            KindError,
            "activation: expected a function of a tensor, F.gelu, say; got str.",
        )
        for kind in KINDS
    ],
    whole=True,
)
WEIGHTS = "x: expected torch.float32 on cpu, as the layer's weights; got torch."
test_inputs_that_do_not_fit = raises(
    [
        (lambda kind=kind, x=x: kind(4, 8)(x), error, text)
        for kind in KINDS
        for x, error, text in (
            (torch.zeros(2, 5), ArgumentError, "x: expected shape (…, c=4); got shape (2, 5)."),
            (torch.zeros(()), ArgumentError, "x: expected shape (…, c=4); got shape ()."),
            (
                torch.zeros(2, 4, dtype=torch.long),
                KindError,
                "x: expected a floating-point tensor (…, c=4); got dtype torch.int64.",
            ),
            ([1.0] * 4, KindError, "x: expected a floating-point tensor (…, c=4); got list."),
            (
                torch.zeros(2, 4).double(),
                KindError,
                f"{WEIGHTS}float64 on cpu. Convert one of them with .to(…).",
            ),
            (torch.zeros(2, 4, device="meta"), KindError, f"{WEIGHTS}float32 on meta."),
        )
    ]
)


def test_autocast_and_maps_without_a_weight_still_run() -> None:
    layer, x = FeedForward(4, 8), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype is layer(x.bfloat16()).dtype is torch.bfloat16
    expected, packed = layer(x), Packed(layer.up)
    layer.up = packed  # pyright: ignore
    torch.testing.assert_close(layer(x), expected)


def test_a_hook_sees_what_the_first_map_gave() -> None:
    layer, x, seen = FeedForward(4, 8), torch.randn(16, 4), []

    def keep(module: nn.Module, inputs: Any, out: Tensor) -> None:
        seen.append(out)

    layer.up.register_forward_hook(keep)
    layer(x)
    torch.testing.assert_close(seen[0], x @ layer.up.weight.T + layer.up.bias)
    assert bool((seen[0] < 0).any())


@pytest.mark.parametrize("kind", KINDS)
def test_they_can_be_pickled(kind: Any) -> None:
    layer, x = kind(4, 8), torch.randn(2, 4)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


@pytest.mark.parametrize("shape", [(2, 64, 64), (128, 64)])
@pytest.mark.parametrize("activation", [torch.relu_, nn.ReLU(inplace=True)])
def test_an_activation_may_work_in_place(activation: Any, shape: tuple[int, ...]) -> None:
    """Also where the map before it goes by oneDNN, from some sizes on."""
    layer, plain = FeedForward(64, 256, activation=activation), FeedForward(64, 256)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(shape, requires_grad=True)
    found, expected = (
        torch.autograd.grad(f(x).square().sum(), [x, *f.parameters()]) for f in (layer, plain)
    )
    torch.testing.assert_close(found, expected)
