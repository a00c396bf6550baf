"""Stories of heads, permutations and convolutions say the numbers of the layer."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import intently as it
from intently.errors import ArgumentError, KindError, RangeError
from intently.nn import (
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
def digits(found: dict, key: str) -> np.ndarray:
    """What is written in a matrix."""
    grid = found[key]
    numbers = [float(text.replace("−", "-")) for text in grid.texts]
    return np.array(numbers).reshape(len(grid.shades), -1)


def test_heads_show_every_number_from_the_inputs_to_the_outputs():
    block, x = MultiHeadAttention(4, 2), random(2, 4)
    story = animate.heads(block, x[None], labels=("a", "b"))
    found = shapes(story)
    W, y = block.attend(x).dense().detach(), block(x).detach()
    for n in range(2):
        q, k = digits(found, f"q.{n}"), digits(found, f"k.{n}")
        scores = torch.tensor(q @ k.T / 2**0.5)
        assert digits(found, f"weights.{n}") == pytest.approx(scores.softmax(-1).numpy(), abs=0.03)
        assert digits(found, f"weights.{n}") == pytest.approx(W[n].numpy(), abs=6e-3)
        mixed = digits(found, f"weights.{n}") @ digits(found, f"v.{n}")
        assert digits(found, f"mix.{n}") == pytest.approx(mixed, abs=0.03)
    joined = np.concatenate([digits(found, f"joined.{n}") for n in range(2)], 1)
    assert joined @ digits(found, "w") == pytest.approx(y.numpy(), abs=0.05)
    assert digits(found, "y") == pytest.approx(y.numpy(), abs=6e-3)
    assert found["joined.1"].x == pytest.approx(found["joined.0"].x + found["joined.0"].width)
    assert "2 × 2 = 4 wide" in story.captions[-2]


def test_heads_that_share_keys_are_told_one_by_one():
    block, x = MultiHeadAttention(8, 4, kv_heads=2), random(3, 8)
    found = shapes(animate.heads(block, x))
    assert found["k.0"].texts == found["k.1"].texts != found["k.2"].texts
    assert digits(found, "y") == pytest.approx(block(x).detach().numpy(), abs=6e-3)


def test_the_split_takes_columns_apart_and_one_head_has_none():
    block, x = MultiHeadAttention(4, 2), random(2, 4)
    whole, split = (shapes(animate.heads(block, x), n) for n in (1, 2))
    assert whole["q.1"].x == whole["q.0"].x + whole["q.0"].width
    assert split["q.1"].x > split["q.0"].x + split["q.0"].width
    assert split["q.0"].edge == split["k.0"].edge != split["q.1"].edge
    captions = animate.heads(MultiHeadAttention(4, 1), x).captions
    assert len(captions) == 7 and not any("Split" in said for said in captions)


BLOCK = MultiHeadAttention(8, 2)
test_heads_are_checked = refusals(
    {
        KindError: {
            r"block: expected an intently\.nn\.MultiHeadAttention": lambda: animate.heads(
                nn.Linear(2, 2), random(2, 2)
            )
        },
        ArgumentError: {
            r"x: expected shape \(t, c\), 1 ≤ t ≤ 6, c ≤ 8": lambda: animate.heads(
                BLOCK, random(25, 8)
            ),
            "labels: expected t=2 labels; got 1": lambda: animate.heads(
                BLOCK, random(2, 8), labels=("a",)
            ),
            "at most 4 heads; got 8": lambda: animate.heads(MultiHeadAttention(8, 8), random(2, 8)),
        },
    }
)


# --- permutation ----------------------------------------------------------------------------------
def test_permuted_inputs_permute_outputs():
    block, x, order = MultiHeadAttention(8, 2), random(4, 8), [2, 1, 0, 3]
    story = animate.permutation(block, x, order=order, labels=("Mary", "gave", "Susan", "roses"))
    before, turning, after = (shapes(story, n) for n in (0, 1, 3))
    W = block.attend(x).mean_heads().dense().detach()
    found = np.array([[before[f"w.{i}.{j}"].shades[0][0] for j in range(4)] for i in range(4)])
    assert found / found.max() == pytest.approx((W / W.max()).numpy(), abs=2e-3)
    for row, n in enumerate(order):
        assert after[f"x.{n}"].y == before[f"x.{row}"].y
        assert after[f"y.{n}"].shades[0] == pytest.approx(before[f"y.{n}"].shades[0], abs=2e-3)
        assert after[f"y.{n}"].y == before[f"y.{row}"].y
        assert after[f"changed.{n}"].text == "0"
        for column, m in enumerate(order):
            moved, old = after[f"w.{n}.{m}"], before[f"w.{row}.{column}"]
            assert (moved.x, moved.y) == (old.x, old.y)
    assert story.captions[2] == "Mary and Susan change places around ‘gave’: Susan gave Mary roses."
    assert turning["word.0"].y < turning["word.1"].y < turning["word.2"].y
    assert story.captions[4].startswith("The same rows in another order")


def test_positions_repair_it():
    block, x, order = MultiHeadAttention(4, 2), random(3, 4), [2, 1, 0]
    positions = it.sinusoidal(3, 4)
    story = animate.permutation(block, x, order=order)
    first, second = block(x + positions), block(x[order] + positions)
    apart = (second - first[order]).abs().amax(-1)
    found = shapes(story)
    for row, n in enumerate(order):
        assert found[f"changed.{n}"].text == number(float(apart[row]))
    assert story.captions[-1] == (
        f"Now outputs differ, by up to {number(float(apart.max()))}: "
        "the block can tell the orders apart."
    )
    other = animate.permutation(block, x, order=order, positions=torch.zeros(3, 4))
    assert {shapes(other)[f"changed.{n}"].text for n in range(3)} == {"0"}


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
            r"positions: expected shape \(t=3, c=8\); got shape \(2, 8\)": lambda: (
                animate.permutation(HEAD, X, positions=X[:2])
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
    assert not any(key.startswith(("hot.", "read.")) for key in found)
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
    assert story.captions[2].startswith("Output pixel (0, 0): 4 of the 4 heads look")


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
