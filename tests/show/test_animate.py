"""What holds for every story: finite numbers, a sheet that holds all, modes that stay."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import intently as it
from intently.core.matrix import Dense
from intently.errors import ArgumentError, KindError, RangeError
from intently.nn import AttentionHead, MultiHeadAttention, convolution_as_attention
from intently.show import animate
from intently.show.animate.stage import CellGrid, Words
from intently.show.inputs import evaluating

from .refusals import refusals
from .telling import TEXT, empty, random, written

UNKNOWN = {
    "product": lambda x: animate.product(it.attend(x, x), random(3, 4)),
    "product of values": lambda x: animate.product(it.attend(random(3, 4), random(3, 4)), x),
    "dictionary": lambda x: animate.dictionary(it.attend(x, random(3, 4)), random(3, 4)),
    "heads": lambda x: animate.heads(MultiHeadAttention(4, 2), x),
    "permutation": lambda x: animate.permutation(MultiHeadAttention(4, 2), x),
    "writing": lambda x: animate.writing(Dense(x)),
    "convolution": lambda x: animate.convolution(
        convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1)), x[None]
    ),
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", UNKNOWN)
def test_no_story_is_told_of_what_is_not_finite(name, value):
    x = random(3, 4)
    x[1, 0] = value
    with pytest.raises(ArgumentError, match="expected finite numbers; got NaN or ∞"):
        UNKNOWN[name](x)


@pytest.mark.parametrize("tell", [animate.permutation, animate.heads])
def test_nothing_drops_out_of_a_block_in_training_and_its_mode_stays(tell):
    block = MultiHeadAttention(8, 2, dropout=0.5).train()
    story = tell(block, random(4, 8))
    assert block.training
    assert story.scenes == tell(block.eval(), random(4, 8)).scenes
    if tell is animate.permutation:
        assert story.captions[4].startswith("The same rows in another order")


def test_every_part_gets_its_mode_back_also_after_an_error():
    block = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)).train()
    block[1].eval()
    with pytest.raises(KeyError), evaluating(block):
        assert not any(part.training for part in block.modules())
        raise KeyError
    assert [part.training for part in block.modules()] == [True, True, False]


@pytest.mark.parametrize("number", [np.int64(1), torch.tensor(1)])
def test_whole_numbers_of_any_library_choose_heads_and_queries(number):
    A, v = it.attend(random(1, 4, 5, 6), random(1, 2, 5, 6)), random(2, 5, 3, seed=2)
    wanted = animate.product(A, v, head=1, query=1)
    assert animate.product(A, v, head=number, query=number) == wanted
    for wrong in (True, -1, 4):
        with pytest.raises(ArgumentError, match="head: expected a head from 0 to 3; got"):
            animate.product(A, v, head=wrong)
    layer = convolution_as_attention(nn.Conv2d(1, 2, 2))
    assert animate.convolution(layer, random(1, 4, 4), channel=number).captions


test_titles_are_texts_and_channels_numbers = refusals(
    {
        KindError: {
            "title: expected a text; got int": lambda: animate.writing(empty(), title=3),
            "^title: expected a text; got int": lambda: animate.product(
                it.attend(random(3, 4), random(3, 4)), random(3, 4), title=3
            ),
        },
        RangeError: {
            "channel: expected a channel from 0 to 1; got 'x'": lambda: animate.convolution(
                convolution_as_attention(nn.Conv2d(1, 2, 2)), random(1, 4, 4), channel="x"
            )
        },
    }
)


# --- all of them ----------------------------------------------------------------------------------
def stories() -> dict[str, animate.Animation]:
    A = it.attend(random(4, 4), random(4, 4, seed=1)).label(TEXT, TEXT)
    conv = convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1))
    return {
        "product": animate.product(A, random(4, 2)),
        "dictionary": animate.dictionary(A, random(4, 1)),
        "heads": animate.heads(MultiHeadAttention(8, 2), random(3, 8)),
        "permutation": animate.permutation(AttentionHead(8, 4), random(3, 8)),
        "writing": animate.writing(A),
        "convolution": animate.convolution(conv, random(1, 5, 5)),
    }


def test_nothing_leaves_the_sheet_and_all_numbers_are_finite():
    for name, story in stories().items():
        wide, high = story.size
        for scene in story.scenes:
            assert scene.caption and scene.hold > 0
            keys = [shape.key for shape in scene.shapes]
            assert len(keys) == len(set(keys)), name
            for shape in scene.shapes:
                assert math.isfinite(shape.x) and 0 <= shape.x <= wide, (name, shape.key)
                assert math.isfinite(shape.y) and -1 <= shape.y <= high, (name, shape.key)
                if isinstance(shape, CellGrid):
                    assert shape.x + shape.width <= wide and shape.y + shape.height <= high
                    every = [x for row in shape.shades for x in row if x is not None]
                    assert all(-1 <= x <= 1 for x in every if x == x), (name, shape.key)
                if isinstance(shape, Words) and shape.anchor == "start":
                    assert shape.size >= 10


def test_stories_run_where_gradients_are_on():
    x = random(3, 4).requires_grad_()
    A = it.attend(x, x)
    animate.product(A, x)
    animate.writing(A)


def test_of_many_keys_the_first_four_are_met_one_by_one():
    A = it.attend(random(1, 4), random(12, 4))
    story = animate.product(A, random(12, 2))
    assert [written(story, "q · k", n) == [] for n in (0, 1)] == [True, False]
    assert [len(written(story, "q · k", n)) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 12]
    assert story.captions[6] == "So it meets all 12 of them."
