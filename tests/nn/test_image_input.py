"""What the blocks over images refuse, and what they take: channels, dtypes, contexts, norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from intently.errors import ArgumentError, KindError
from intently.nn import ChannelNorm, ImageAttention, Projections, SpatialTransformer, group_norm

from ..combinations import each
from ..messages import Refusals, raises, refused
from .test_image import NORMS

X, WORDS = torch.zeros(2, 8, 3, 3), torch.zeros(2, 5, 6)
Spatial: Any = SpatialTransformer
Image: Any = ImageAttention
WRONG: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no context": (
        X,
        None,
        ArgumentError,
        "context: expected shape (b, s, 6); got None. This block was made with context_width=6.",
    ),
    "one context for all": (
        X,
        WORDS[:1],
        ArgumentError,
        "context: expected shape (b=2, s, 6); got shape (1, 5, 6). Each image "
        "has its own. One for all is context.expand(2, -1, -1).",
    ),
    "more contexts": (
        X[:1],
        WORDS,
        ArgumentError,
        "context: expected shape (b=1, s, 6); got shape (2, 5, 6). Each image has its own.",
    ),
    "no batch": (
        X,
        WORDS[0],
        ArgumentError,
        "context: expected shape (b=2, s, 6); got shape (5, 6). Each image has its own.",
    ),
    "other width": (
        X,
        WORDS[..., :5],
        ArgumentError,
        "context: expected shape (b=2, s, 6); got shape (2, 5, 5).",
    ),
    "ids": (X, WORDS.long(), KindError, "context: expected a floating-point tensor (b, steps, wid"),
    "words": (X, "a", KindError, "context: expected a floating-point tensor (b, steps, width); go"),
    "double words": (
        X,
        WORDS.double(),
        KindError,
        "context: expected torch.float32 on cpu, as the layer's weights; got "
        "torch.float64 on cpu. Convert one of them with .to(…).",
    ),
    "double": (
        X.double(),
        WORDS,
        KindError,
        "x: expected torch.float32 on cpu, as the layer's weights; got torch.float64 on ",
    ),
    "half": (X.half(), WORDS, KindError, "x: expected torch.float32 on cpu, as the layer's weight"),
    "no image": (
        None,
        WORDS,
        KindError,
        "x: expected a floating-point image (b, c, height, width); got NoneType.",
    ),
    "one image": (
        X[0],
        WORDS,
        ArgumentError,
        "context: expected shape (s, k), as x has no batch axis; got shape (2, 5, 6).",
    ),
}


@each({"method": ["forward", "attentions"], "case": WRONG})
def test_a_spatial_transformer_refuses(as_users_call: None, case: str, method: str) -> None:
    x, words, kind, text = WRONG[case]
    refused(lambda: getattr(Spatial(8, 2, 4, context_width=6), method)(x, words), kind, text)


def test_one_context_for_all_images() -> None:
    block = SpatialTransformer(8, 2, 4, context_width=6)
    x, words = torch.randn(2, 8, 3, 3), torch.randn(1, 5, 6)
    found = block(x, words.expand(2, -1, -1))
    torch.testing.assert_close(found[1:], block(x[1:], words), atol=1e-5, rtol=1e-5)
    assert block.attentions(x, words.expand(2, -1, -1))["layers.0.cross_attention"].shape == (
        2,
        2,
        9,
        5,
    )


def test_autocast_sees_to_dtypes() -> None:
    block, spatial = ImageAttention(8, 2), SpatialTransformer(8, 2, 4, context_width=6)
    with torch.autocast("cpu", torch.bfloat16):
        assert block(X.bfloat16()).shape == X.shape
        assert spatial(X.bfloat16(), WORDS).shape == X.shape


def test_a_spatial_transformer_without_a_norm() -> None:
    bare = SpatialTransformer(8, 2, 4, norm=None)
    normed = SpatialTransformer(8, 2, 4, norm=ChannelNorm)
    found = normed.load_state_dict(bare.state_dict(), strict=False)
    assert found.missing_keys == ["norm.weight", "norm.bias"]
    x = torch.randn(2, 8, 3, 3)
    torch.testing.assert_close(normed(x), bare(ChannelNorm(8)(x)) + x - ChannelNorm(8)(x))


def test_a_spatial_transformer_without_layers() -> None:
    block, x = SpatialTransformer(8, 2, 4, depth=0), torch.randn(2, 8, 3, 3)
    within = block.project_out(block.project_in(block.norm(x).movedim(1, -1)))
    torch.testing.assert_close(block(x), x + within.movedim(-1, 1))
    assert block.attentions(x) == {}


@pytest.mark.usefixtures("as_users_call")
def test_an_image_of_other_channels_without_a_residual() -> None:
    block = ImageAttention(8, 2, residual=False, projections=Projections(out_width=6))
    assert block(torch.randn(2, 8, 3, 4)).shape == (2, 6, 3, 4)
    assert Image(8, 2, projections=Projections(out_width=8))(X).shape == X.shape


NO_NORM = "norm: expected a function that makes a norm from a width; got "
MAKE: Refusals = {
    KindError: {
        f"{NO_NORM}'group'. Write norm=group_norm(8), say.": lambda: Image(8, 2, norm="group"),
        f"{NO_NORM}a norm, GroupNorm. Write norm=group_norm(8), say.": lambda: Image(
            8, 2, norm=nn.GroupNorm(4, 8)
        ),
        f"{NO_NORM}one that makes int.": lambda: Image(8, 2, norm=lambda c: c),
        f"{NO_NORM}a norm, GroupNorm.": lambda: Spatial(8, 2, 4, norm=nn.GroupNorm(4, 8)),
        f"{NO_NORM}4.": lambda: Spatial(8, 2, 4, norm=4),
        "channels: expected an int ≥ 1; got '8'.": lambda: Image("8", 4),
        "heads: expected an int ≥ 1; got 2.0.": lambda: Image(8, 2.0),
        "depth: expected an int ≥ 0; got 2.0.": lambda: Spatial(8, 2, 4, depth=2.0),
        "head_width: expected an int ≥ 1; got 4.0.": lambda: Spatial(8, 2, 4.0),
        "projections: expected intently.nn.Projections(…); got bool.": lambda: Spatial(
            8, 2, 4, projections=False
        ),
        "attention: expected intently.nn.AttentionOptions(…); got str.": lambda: Spatial(
            8, 2, 4, attention="a"
        ),
    },
    ArgumentError: {
        "projections: expected out_width=32, or None; got out_width=16. The output is "
        "added to the "
        "image. Write residual=False to skip that.": lambda: Image(
            32, 4, projections=Projections(out_width=16)
        ),
        "channels: expected an int ≥ 1; got 0.": lambda: Image(0, 4),
        "head_widths: expected an int ≥ 1; got 0.": lambda: Image(8, 2, head_width=0),
        "context_width: expected an int ≥ 1; got 0.": [
            lambda: Image(8, 2, context_width=0),
            lambda: Spatial(8, 2, 4, context_width=0),
        ],
        "depth: expected an int ≥ 0; got -1.": lambda: Spatial(8, 2, 4, depth=-1),
        "heads: expected an int ≥ 1; got 0.": lambda: Spatial(8, 0, 4),
        "channels: expected an int ≥ 1; got -8.": lambda: Spatial(-8, 2, 4),
        "heads: expected attention from width=8 to width=8; got 8 to 9.": lambda: Spatial(
            8, 2, 4, projections=Projections(out_width=9)
        ),
        "groups: expected a divisor of channels=8; got 3.": lambda: Image(8, 2, norm=group_norm(3)),
        "heads: expected a divisor of width=8; got 3.": lambda: Image(8, 3),
    },
}
test_parts_that_are_none_or_do_not_fit = raises(MAKE)
test_images_that_do_not_fit = raises(
    {
        ArgumentError: {
            "x: expected shape (b, c=8, height, width), or (c": lambda: Image(8, 2)(
                torch.zeros(1, 4, 3, 3)
            ),
            "x: expected shape (b, c=8, height, width), or (c, height, width); "
            "got shape (1, 3, 3, 8). The channels stand last. Move them with x.movedim": lambda: (
                Image(8, 2)(torch.zeros(1, 3, 3, 8))
            ),
            "context: expected shape (b, s, 5); got None": lambda: Image(8, 2, context_width=5)(
                torch.zeros(1, 8, 3, 3)
            ),
            "context: expected None; got shape (2, 5, 6). This": [
                lambda method=method: getattr(Spatial(8, 2, 4), method)(X, WORDS)
                for method in ("forward", "attentions")
            ],
        },
        KindError: {
            "x: expected a floating-point image (b, c, height, width); got dtype torch.uint8. "
            "Scale bytes first": lambda: Image(8, 2)(torch.zeros(1, 8, 3, 3, dtype=torch.uint8)),
            **{
                f"x: expected torch.float32 on cpu, as the layer's weights; got {dtype} on cpu. "
                "Convert one of them with .to(…).": [
                    lambda norm=norm, dtype=dtype, method=method: getattr(
                        Image(8, 2, norm=norm), method
                    )(X.to(dtype))
                    for norm in NORMS.values()
                    for method in ("forward", "attend")
                ]
                for dtype in (torch.float64, torch.bfloat16)
            },
        },
    }
)
