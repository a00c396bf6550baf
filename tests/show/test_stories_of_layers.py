"""Stories of heads, permutations and convolutions say the numbers of the layer."""

from __future__ import annotations

import re

import numpy as np
import pytest
from torch import nn

import intently as it
from intently.errors import ArgumentError, KindError, RangeError
from intently.modules import (
    AttentionHead,
    AttentionOptions,
    MultiHeadAttention,
    convolution_as_attention,
)
from intently.show import animate
from intently.show.animate.stage import number

from .refusals import refusals
from .telling import random, shapes


# --- heads ----------------------------------------------------------------------------------------
def test_heads_show_weights_mixtures_and_outputs():
    block, x = MultiHeadAttention(8, 2), random(3, 8)
    story = animate.heads(block, x, labels=("a", "b", "c"))
    found = shapes(story)
    W = block.attend(x[None])[0].dense().detach()
    for n in range(2):
        assert np.array(found[f"weights.{n}"].shades) == pytest.approx(
            (W[n] / W.max()).numpy(), abs=6e-4
        )
    y = block(x[None])[0].detach()
    assert np.array(found["y"].shades) == pytest.approx((y / y.abs().max()).numpy(), abs=6e-4)
    parts = np.concatenate([np.array(found[f"joined.{n}"].shades) for n in range(2)], 1)
    made = parts @ block.out_weight.detach().numpy().T
    assert made / np.abs(made).max() == pytest.approx((y / y.abs().max()).numpy(), abs=0.01)
    assert found["joined.1"].x == pytest.approx(found["joined.0"].x + found["joined.0"].width)
    assert "2 × 4 = 8 wide" in story.captions[-2]


def test_one_head_and_many_wide_ones():
    assert len(animate.heads(MultiHeadAttention(4, 1), random(2, 4))) == 5
    story = animate.heads(MultiHeadAttention(768, 12), random(10, 768))
    assert "each cell the mean of 8 of 768" in story.captions[0]
    assert story.size[0] < 1000


BLOCK = MultiHeadAttention(8, 2)
test_heads_are_checked = refusals(
    {
        KindError: {
            r"block: expected an intently\.modules\.MultiHeadAttention": lambda: animate.heads(
                nn.Linear(2, 2), random(2, 2)
            )
        },
        ArgumentError: {
            r"x: expected shape \(t, c\), 1 ≤ t ≤ 24": lambda: animate.heads(BLOCK, random(25, 8)),
            "labels: expected t=2 labels; got 1": lambda: animate.heads(
                BLOCK, random(2, 8), labels=("a",)
            ),
            "at most 16 heads; got 17": lambda: animate.heads(
                MultiHeadAttention(34, 17), random(2, 34)
            ),
        },
    }
)


# --- permutation ----------------------------------------------------------------------------------
def test_permuted_inputs_permute_outputs():
    block, x, order = MultiHeadAttention(8, 2), random(4, 8), [2, 1, 0, 3]
    story = animate.permutation(block, x, order=order, labels=("Mary", "gave", "Susan", "roses"))
    before, after = shapes(story, 2), shapes(story)
    W = block.attend(x[None])[0].mean_heads().dense().detach()
    for i in range(4):
        row = [before[f"w.{i}.{j}"].shades[0][0] for j in range(4)]
        assert row == pytest.approx((W[i] / W.max()).tolist(), abs=6e-4)
    for row, n in enumerate(order):
        assert after[f"x.{n}"].y == before[f"x.{row}"].y
        assert after[f"y.{n}"].shades[0] == pytest.approx(before[f"y.{n}"].shades[0], abs=2e-3)
        assert after[f"y.{n}"].y == before[f"y.{row}"].y
        for column, m in enumerate(order):
            moved, old = after[f"w.{n}.{m}"], before[f"w.{row}.{column}"]
            assert (moved.x, moved.y) == (old.x, old.y)
    assert story.captions[3] == "Now they change places: Susan gave Mary roses."
    assert story.captions[-1].startswith("The same rows in another order")


def test_a_block_that_knows_the_order_is_told_so():
    for options in ({"mask": it.causal()}, {"positions": it.Rotary(4)}):
        block = AttentionHead(8, 4, attention=AttentionOptions(**options))
        story = animate.permutation(block, random(3, 8))
        assert story.captions[-1].startswith("Not the same rows: they differ by up to")


HEAD, X = AttentionHead(8, 4), random(3, 8)
test_permutations_are_checked = refusals(
    {
        ArgumentError: {
            "order: expected each number from 0 to 2 once": lambda: animate.permutation(
                HEAD, X, order=[0, 0, 1]
            ),
            "labels: expected t=3 labels; got 2": lambda: animate.permutation(
                HEAD, X, labels=("a", "b")
            ),
            "2 ≤ t ≤ 16": lambda: animate.permutation(HEAD, random(17, 8)),
        },
        KindError: {
            "block: expected a layer with forward and attend": lambda: animate.permutation(
                nn.Linear(8, 8), X
            )
        },
    }
)


# --- convolution ----------------------------------------------------------------------------------
@pytest.mark.parametrize("channels", [1, 4])
def test_a_convolution_is_the_sum_of_what_its_heads_read(channels):
    conv = nn.Conv2d(channels, 4, 3, padding=1, groups=2 if channels > 1 else 1)
    layer, image = convolution_as_attention(conv), random(channels, 5, 5)
    story = animate.convolution(layer, image, channel=3)
    out = conv(image).detach()[3]
    found = shapes(story)
    assert np.array(found["output"].shades) == pytest.approx(
        (out / out.abs().max()).numpy(), abs=1e-3
    )
    first = shapes(story, 2)
    assert f"= {number(float(out[0, 0]))}" in first["total"].text
    hot = {key for key in first if key.startswith("hot.")}
    assert hot == {"hot.4", "hot.5", "hot.7", "hot.8"}  # the corner: the others are in the padding
    adds = np.array(first["adds"].shades[0])
    weight = conv.weight.detach()[3]
    mine = image[2:] if channels > 1 else image
    padded = nn.functional.pad(mine, (1, 1, 1, 1))[:, :3, :3]
    contributions = (padded * weight).sum(0).flatten().numpy()
    scale = adds[np.abs(contributions).argmax()] / contributions[np.abs(contributions).argmax()]
    assert adds == pytest.approx(contributions * scale, abs=2e-3)
    (apart,) = re.findall(r"to within (\S+)\.$", story.captions[-1]) or ["0"]
    assert float(apart) < 1e-5


def test_strides_and_bare_images():
    layer = convolution_as_attention(nn.Conv2d(1, 1, 2, stride=2))
    story = animate.convolution(layer, random(1, 6, 6))
    assert len(shapes(story)["output"].shades) == 3
    assert story.captions[1].startswith("Output pixel (0, 0): 4 of the 4 heads look")


LAYER = convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1))
GROWN = convolution_as_attention(nn.Conv2d(1, 1, 1, padding=1))
test_convolutions_are_checked = refusals(
    {
        KindError: {
            r"layer: expected a convolution as attention; got Conv2d": lambda: animate.convolution(
                nn.Conv2d(1, 1, 3), random(1, 4, 4)
            )
        },
        ArgumentError: {
            r"at most 32 pixels a side; got shape \(1, 33, 4\)": lambda: animate.convolution(
                LAYER, random(1, 33, 4)
            ),
            "at most 25 taps": lambda: animate.convolution(
                convolution_as_attention(nn.Conv2d(1, 1, 6)), random(1, 8, 8)
            ),
            "an output of at most 32 pixels": lambda: animate.convolution(GROWN, random(1, 32, 32)),
        },
        RangeError: {
            "channel: expected a channel from 0 to 0; got 1": lambda: animate.convolution(
                LAYER, random(1, 4, 4), channel=1
            )
        },
    }
)
