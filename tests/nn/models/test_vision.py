"""The Vision Transformer: patches, class token, options, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from intently.errors import ArgumentError, KindError
from intently.nn.models.vision import VisionOptions, VisionTransformer

from ...messages import raises

OPTIONS = VisionOptions(image=(8, 12), patch=4, classes=5, channels=2, width=16, layers=2)


def test_patches_stand_row_after_row() -> None:
    model = VisionTransformer(OPTIONS).eval()
    images = torch.randn(3, 2, 8, 12)
    seen = model.states(images)["encoder.embedding"]
    for row, (y, x) in enumerate([(0, 0), (0, 4), (0, 8), (4, 0), (4, 4), (4, 8)], 1):
        patch = images[:, :, y : y + 4, x : x + 4].flatten(1)
        weight, bias = model.patches.weight.flatten(1), model.patches.bias
        torch.testing.assert_close(seen[:, row], nn.functional.linear(patch, weight, bias))
    torch.testing.assert_close(seen[:, 0], model.class_token.expand(3, -1))


def test_without_a_head_the_class_token_is_returned() -> None:
    model = VisionTransformer(VisionOptions(image=(8, 8), patch=4, classes=0, width=16)).eval()
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(images), model.hidden(images)[:, 0])


def test_gradients_reach_every_parameter_and_dropout_acts_while_training() -> None:
    options = VisionOptions(image=(8, 8), patch=4, classes=3, width=16, dropout=0.3)
    model, images = VisionTransformer(options), torch.randn(2, 3, 8, 8)
    model(images).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert not torch.equal(model(images), model(images))


def made(**options: Any) -> VisionOptions:
    return VisionOptions(**{"image": (8, 12), "patch": 4, "classes": 2, **options})


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"image": (16,)}, ArgumentError, "image: expected (height, width) in pixels; got (16,)."),
    ({"image": 16}, ArgumentError, "image: expected (height, width) in pixels; got 16."),
    ({"image": (0, 8)}, ArgumentError, "image: expected an int ≥ 1; got 0."),
    ({"image": (8.0, 8)}, KindError, "image: expected an int ≥ 1; got 8.0."),
    (
        {"patch": 5},
        ArgumentError,
        "patch: expected a divisor of the sides of the image (8, 12); got 5.",
    ),
    ({"patch": 4.0}, KindError, "patch: expected an int ≥ 1; got 4.0."),
    ({"patch": 0}, ArgumentError, "patch: expected an int ≥ 1; got 0."),
    ({"classes": -1}, ArgumentError, "classes: expected an int ≥ 0; got -1."),
    ({"channels": 0}, ArgumentError, "channels: expected an int ≥ 1; got 0."),
    ({"width": "a"}, KindError, "width: expected an int ≥ 1; got 'a'."),
    ({"heads": 3}, ArgumentError, "heads: expected a divisor of width=128; got 3."),
    ({"layers": -1}, ArgumentError, "layers: expected an int ≥ 0; got -1."),
    ({"dropout": 2.0}, ArgumentError, "dropout: expected a probability in [0, 1); got 2.0."),
    (
        {"norm": nn.LayerNorm(128)},
        KindError,
        "norm: expected a function that makes the part from the width c; got LayerNorm. Write "
        "nn.RMSNorm, say, not nn.RMSNorm(c).",
    ),
    (
        {"feed_forward": 4},
        KindError,
        "feed_forward: expected a function that makes the part from the w",
    ),
    (
        {"attention": None},
        KindError,
        "attention: expected intently.nn.AttentionOptions(…); got NoneType.",
    ),
    (
        {"projections": True},
        KindError,
        "projections: expected intently.nn.Projections(…); got bool.",
    ),
]
test_options_that_cannot_be = raises(
    [(partial(made, **options), kind, text) for options, kind, text in WRONG]
)
MODEL = VisionTransformer(OPTIONS)
test_images_that_do_not_fit = raises(
    {
        ArgumentError: {
            "images: expected shape (b, c=2, 8, 12); got shape": lambda: MODEL(
                torch.zeros(1, 2, 12, 8)
            )
        },
        KindError: {
            "images: expected floating-point images (b, c, height, width); got dtype "
            "torch.uint8. Scale bytes": lambda: MODEL(torch.zeros(1, 2, 8, 12, dtype=torch.uint8)),
            **{
                f"images: expected torch.float32 on cpu, as the layer's weights; got {dtype} on "
                "cpu. Convert one of them with .to(…).": lambda dtype=dtype: MODEL(
                    torch.zeros(1, 2, 8, 12, dtype=dtype)
                )
                for dtype in (torch.float64, torch.float16)
            },
        },
    }
)
