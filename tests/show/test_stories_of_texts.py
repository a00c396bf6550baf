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
        "The largest difference: ‘tired’ gets 0.70 in head 0 and 0 in head 3."
    )
    assert story.captions[0] == (
        "head 0: ‘it’ looks most at ‘tired’ (0.70); head 3: ‘it’ looks most at ‘because’ (0.60)."
    )
    kept = shapes(story)
    assert kept["kept.0.3"].shades == ((1.0,),) and kept["kept.1.3"].shades == ((0.0,),)


def test_two_sentences_and_rows_that_are_the_next_words():
    words = ("it", "was", "wide")
    W = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.1, 0.7]])
    other = Dense(W, labels=(("was", "wide", "."), words))
    story = animate.readings({"a": reading(0, 0, 0, 1), "b": other}, "it")
    assert "looks most at itself (1.00)" in story.captions[3]


def test_a_query_outside_of_the_text_stands_above_it():
    words = ("it", "was", "wide")
    W = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0]])
    other = Dense(W, labels=(("elle", "large"), words))
    with pytest.raises(ArgumentError, match=r"got 'it'\. There is none"):
        animate.readings({"a": reading(0, 0, 0, 1), "b": other}, "it")
    story = animate.readings({"a": reading(0, 0, 0, 1), "b": other}, {"a": "it", "b": "elle"})
    assert story.captions[3] == "b: ‘elle’ looks most at ‘it’ (1.00)."
    found = shapes(story, 2)
    assert found["query"].texts == ("elle",) and found["arc.0"].width == 11
    assert found["query"].y + found["query"].height == found["arc.0"].y < found["word.0"].y


def test_readings_are_compared_by_word_and_not_by_place():
    tired, wide = ("too", "tired"), ("too", "wide")
    W = torch.tensor([[0.1, 0.9]])
    told = {"il": Dense(W, labels=(("il",), tired)), "elle": Dense(W, labels=(("elle",), wide))}
    story = animate.readings(told, 0)
    assert story.captions[-1] == (
        "The largest difference: ‘tired’ gets 0.90 in il; elle has no such word."
    )
    assert shapes(story)["kept.0.1"].edge == shapes(story)["kept.1.1"].edge == "accent"
    same = animate.readings({"one": reading(0, 0, 0, 1), "other": reading(0, 0, 0.02, 0.98)}, "it")
    assert same.captions[-1].startswith("The readings hardly differ: at most by 0.02, at ‘was’")
    assert not any(
        shape.edge == "accent" for key, shape in shapes(same).items() if key == "kept.0.3"
    )


READING = reading(0, 0, 0, 1)
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
            "token: expected a row for every reading; got none for 'b'": lambda: animate.readings(
                {"a": READING, "b": READING}, {"a": "it"}
            ),
            "at most 1,180 pixels wide": lambda: animate.readings({"a": WIDE, "b": WIDE}, 3),
        },
    }
)


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
            r"at most 1,180 pixels wide.*alignment": lambda: animate.writing(LONG),
        }
    }
)


def test_who_looks_at_nothing_is_said_to():
    A = empty()
    assert animate.writing(A).captions[2] == "‘a’ is written, looking at nothing."
    story = animate.readings({"x": A, "y": A}, "a")
    assert story.captions[0] == "x: ‘a’ looks at nothing; y: ‘a’ looks at nothing."
    q, hidden = random(3, 4), torch.zeros(3, 3, dtype=torch.bool)
    captions = animate.product(it.attend(q, q, mask=hidden), q).captions
    assert captions[-1] == "‘2’ looks at nothing: its output is 0."
    assert sum(caption.startswith("Softmax has nothing to share out") for caption in captions) == 1
    assert not any("add up to 1" in caption for caption in captions)
    captions = animate.dictionary(it.attend(q, q, mask=hidden), q).captions
    assert captions[-2] == "‘2’ looks at nothing, and gets 0."
    assert "‘1’ may see no key." in captions and not any("mostly" in one for one in captions)
