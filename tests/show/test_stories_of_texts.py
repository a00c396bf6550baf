"""Stories of readings and of writing say the weights of the matrix."""

from __future__ import annotations

import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KindError
from intently.matrix import Dense
from intently.show import animate
from intently.show.animate.shapes import Curve

from .refusals import refusals
from .telling import TEXT, empty, random, shapes, written


def reading(*weights: float) -> Dense:
    W = torch.eye(4)
    W[1] = torch.tensor(weights)
    return Dense(W, labels=(TEXT, TEXT))


def test_two_readings_of_one_word():
    first, second = (0.1, 0.2, 0.0, 0.7), (0.6, 0.1, 0.3, 0.0)
    story = animate.readings({"head 0": reading(*first), "head 3": reading(*second)}, "it")
    for n, weights in enumerate((first, second)):
        found = shapes(story, 1 + n)
        arcs = {j: found[f"arc.{j}"] for j in range(4) if f"arc.{j}" in found}
        wanted = {j: 1 + 10 * w for j, w in enumerate(weights) if j != 1 and w >= 0.02}
        assert {j: arc.width for j, arc in arcs.items()} == pytest.approx(wanted)
        assert all(isinstance(arc, Curve) for arc in arcs.values())
        assert [found[f"word.{j}"].shades[0][0] for j in range(4)] == pytest.approx(
            [w / 0.7 for w in weights], abs=6e-4
        )
    assert story.captions[-1] == (
        "head 0: ‘it’ looks most at ‘tired’ (0.70); head 3: ‘it’ looks most at ‘because’ (0.60)."
    )
    kept = shapes(story)
    assert kept["kept.0.3"].shades == ((1.0,),) and kept["kept.1.3"].shades == ((0.0,),)


def test_two_sentences_and_rows_that_are_the_next_words():
    words = ("it", "was", "wide")
    W = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.1, 0.7]])
    other = Dense(W, labels=(("was", "wide", "."), words))
    story = animate.readings({"a": reading(0, 0, 0, 1), "b": other}, "it")
    assert "looks most at itself (1.00)" in story.captions[2]


READING = reading(0, 0, 0, 1)
CROSSED = Dense(torch.ones(2, 4) / 4)
OTHER = Dense(torch.eye(4), labels=(("a", "b", "c", "d"), TEXT))
WIDE = Dense(torch.eye(60), labels=(("attention",) * 60,) * 2)
test_readings_are_checked = refusals(
    {
        KindError: {"matrices: expected readings by name": lambda: animate.readings(READING, "it")},
        ArgumentError: {
            "matrices: expected two to 6 readings; got 1": lambda: animate.readings(
                {"a": READING}, "it"
            ),
            "token: expected a position, or the text": lambda: animate.readings(
                {"a": READING, "b": READING}, "road"
            ),
            r"matrices\['b'\]: expected one text.*animate.writing": lambda: animate.readings(
                {"a": READING, "b": CROSSED}, 1
            ),
            "rows named like columns": lambda: animate.readings({"a": READING, "b": OTHER}, "it"),
            "at most 1,180 pixels wide": lambda: animate.readings({"a": WIDE, "b": WIDE}, 3),
        },
    }
)


def test_a_decoder_writes_word_by_word():
    W = torch.tensor([[0.9, 0.1, 0.0], [0.02, 0.08, 0.9]])
    A = Dense(W, labels=(("Je", "bois"), ("I", "drink", "milk")))
    story = animate.writing(A)
    assert len(story) == 4
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
            r"at most 1,180 pixels wide.*alignment": lambda: animate.writing(LONG),
        }
    }
)


def test_who_looks_at_nothing_is_said_to():
    A = empty()
    assert animate.writing(A).captions[1] == "‘a’ is written, looking at nothing."
    story = animate.readings({"x": A, "y": A}, "a")
    assert story.captions[-1] == "x: ‘a’ looks at nothing; y: ‘a’ looks at nothing."
    q, hidden = random(3, 4), torch.zeros(3, 3, dtype=torch.bool)
    captions = animate.product(it.attend(q, q, mask=hidden), q).captions
    assert captions[-1] == "‘2’ looks at nothing: its output is 0."
    assert sum(caption.startswith("Softmax has nothing to share out") for caption in captions) == 1
    assert not any("add up to 1" in caption for caption in captions)
    captions = animate.dictionary(it.attend(q, q, mask=hidden), q).captions
    assert captions[-2] == "‘2’ looks at nothing, and gets 0."
    assert "‘1’ may see no key." in captions and not any("mostly" in one for one in captions)
