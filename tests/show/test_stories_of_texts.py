"""Stories of readings and of writing say the weights of the matrix."""

from __future__ import annotations

import pytest
import torch

import intently as it
from intently.core.matrix import Dense
from intently.errors import ArgumentError
from intently.show import animate

from .refusals import refusals
from .telling import empty, random, shapes, written


def test_a_decoder_writes_word_by_word():
    W = torch.tensor([[0.9, 0.1, 0.0], [0.02, 0.08, 0.9]])
    A = Dense(W, labels=(("Je", "bois"), ("I", "drink", "milk")))
    story = animate.writing(A)
    assert len(story) == 5
    first = shapes(story, 1)
    assert "made.1" not in first and first["made.0"].texts == ("Je",)
    assert [first[f"source.{j}"].shades[0][0] for j in range(3)] == pytest.approx([0.9, 0.1, 0])
    second = shapes(story, 2)
    ribbons = {key: shape.width for key, shape in second.items() if key.startswith("ribbon.1.")}
    assert ribbons == pytest.approx({"ribbon.1.1": 1 + 13 * 0.08, "ribbon.1.2": 1 + 13 * 0.9})
    assert second["ribbon.0.0"].opacity < 0.3 < shapes(story, 3)["ribbon.0.0"].opacity
    assert written(story, "got") == ["0.9", "0.2", "0.9"]
    middle = second["made.1"].x + second["made.1"].width / 2
    assert second["ribbon.1.2"].x == pytest.approx(middle)


LONG = Dense(torch.ones(2, 30) / 30, labels=(("a", "b"), ("Donaudampfschiff",) * 30))
test_writing_is_checked = refusals(
    {
        ArgumentError: {
            "at most 64 words a side": lambda: animate.writing(Dense(torch.ones(2, 65) / 65)),
            r"at most 1,180 pixels wide.*heatmap": lambda: animate.writing(LONG),
        }
    }
)


def test_who_looks_at_nothing_is_said_to():
    A = empty()
    assert animate.writing(A).captions[2] == "‘a’ is written, looking at nothing."
    q, hidden = random(3, 4), torch.zeros(3, 3, dtype=torch.bool)
    captions = animate.product(it.attend(q, q, mask=hidden), q).captions
    assert captions[-1] == "‘2’ looks at nothing: its output is 0."
    assert sum(caption.startswith("Softmax has nothing to share out") for caption in captions) == 1
    assert not any("add up to 1" in caption for caption in captions)
    captions = animate.dictionary(it.attend(q, q, mask=hidden), q).captions
    assert captions[-2] == "‘2’ looks at nothing, and gets 0."
    assert "‘1’ may see no key." in captions and not any("mostly" in one for one in captions)
