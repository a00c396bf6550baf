"""A text is shaded by the weights of the token that was asked, each at its own word."""

from __future__ import annotations

from itertools import pairwise

import matplotlib.colors
import numpy as np
import pytest
import torch

import intently as it
from intently import show
from intently.core.matrix import Dense
from intently.errors import ArgumentError, KindError, RangeError
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.show.style import ACCENT, weight_map
from intently.tasks.translation.translator import Translator

from .drawing import boxes, weights, written
from .refusals import refusals

WORDS = ("The", "animal", "was", "tired")


def words(figure) -> list[str]:
    """Return what stands in boxes, in reading order; the numbers under them are smaller."""
    return [text.get_text() for text in figure.axes[0].texts if text.get_size() > 10]


def shades(figure) -> list[tuple[float, ...]]:
    return [box.get_facecolor() for box in boxes(figure)]


def framed(figure) -> list[int]:
    accent = matplotlib.colors.to_rgba(ACCENT)
    return [n for n, box in enumerate(boxes(figure)) if box.get_edgecolor() == accent]


def expected(values: torch.Tensor, top: float) -> list[tuple[float, ...]]:
    return [weight_map()(float(value) / top) for value in values]


@pytest.mark.parametrize("looks", ["at", "from"])
def test_words_carry_the_row_or_the_column(looks):
    A = Dense(weights(4, 4, seed=1), labels=(WORDS, WORDS))
    figure = show.text(A, "animal", looks=looks)
    values = A.dense()[1] if looks == "at" else A.dense()[:, 1]
    assert words(figure) == list(WORDS)
    np.testing.assert_allclose(shades(figure), expected(values, 1.0 if values.max() > 0.5 else 0.5))
    assert framed(figure) == [1]
    numbers = [text.get_text() for text in figure.axes[0].texts if text.get_size() < 10]
    assert numbers == [f"{value:.2f}" for value in values]
    said = {"at": "What ‘animal’ looks at", "from": "Who looks at ‘animal’"}[looks]
    assert said in written(figure)


@pytest.mark.parametrize("looks", ["at", "from"])
def test_rows_that_are_labelled_with_what_they_write_stand_where_they_read(looks):
    A = Dense(torch.eye(4), labels=((*WORDS[1:], "."), WORDS))
    figure = show.text(A, 1 if looks == "at" else "animal", looks=looks)
    assert words(figure) == [*WORDS, "."]
    dark, white, clear = weight_map()(1.0), weight_map()(0.0), (1, 1, 1, 0)
    assert framed(figure) == [1]  # of the rows that of "animal (writes was)"
    assert shades(figure) == [white, dark, white, white, clear]


def test_two_texts_stand_one_above_the_other():
    A = Dense(weights(3, 4, seed=1), labels=(("Il", "était", "fatigué"), WORDS))
    figure = show.text(A, "Il")
    assert words(figure) == ["Il", "était", "fatigué", *WORDS]
    assert framed(figure) == [0]
    assert shades(figure)[:3] == [(1, 1, 1, 0)] * 3
    np.testing.assert_allclose(shades(figure)[3:], expected(A.dense()[0], 0.5), atol=0.5)
    assert {"the query", "keys"} <= set(written(figure.axes[0]))


def test_heads_and_recordings_are_chosen_from():
    values = weights(2, 4, 4, seed=1)
    A = Dense(values, labels=(WORDS, WORDS))
    mean, one = show.text(A, 0), show.text({"a": A, "b": A}, 0, head=("b", 1))
    assert "What ‘The’ looks at, mean of 2 heads" in written(mean)
    assert "What ‘The’ looks at, b, head 1" in written(one)
    top = show.cells.limits(values[1, 0].numpy())[1]
    np.testing.assert_allclose(shades(one), expected(values[1, 0], top), atol=1e-6)


def test_a_recording_of_a_model_is_read():
    model = LanguageModel(LanguageOptions(vocabulary=10, positions=16)).eval()
    with torch.no_grad(), it.watch(model, tokens=list(WORDS)) as seen:
        model(torch.tensor([[1, 2, 3, 4]]))
    name = seen.layers[0]
    figure = show.text(seen, 2, head=(name, 0))
    assert words(figure)[:4] == list(WORDS)
    row = seen[name][0, 0, 2]
    top = show.cells.limits(row.numpy())[1]
    np.testing.assert_allclose(shades(figure)[:4], expected(row, top), atol=1e-6)


def test_pieces_of_words_are_joined_and_long_texts_break_into_lines():
    pieces = ("▁un", "believ", "able") * 30
    A = Dense(torch.eye(90), labels=(pieces, pieces))
    figure = show.text(A, 4)
    assert words(figure)[:3] == ["un", "believ", "able"]
    drawn = boxes(figure)
    gaps = [b.get_x() - a.get_x() - a.get_width() for a, b in pairwise(drawn[:6])]
    assert min(gaps[2:3]) > max(gaps[:2] + gaps[3:5])
    assert len({box.get_y() for box in drawn}) > 2
    room = figure.axes[0].get_xlim()[1]
    assert all(box.get_x() + box.get_width() <= room + 1e-6 for box in drawn)
    assert not [text for text in figure.axes[0].texts if text.get_size() < 10]


def test_of_a_long_text_only_what_matters_is_written_and_gaps_say_what_they_hold():
    tokens = tuple(f"t{n}" for n in range(3000))
    row = torch.full((1, 3000), 0.3 / 2998)
    row[0, 1000], row[0, 2900] = 0.5, 0.2
    figure = show.text(Dense(row.expand(3000, -1), labels=(tokens, tokens)), 2000)
    said = words(figure)
    assert len(said) < 60
    for place in (1000, 2000, 2900):
        assert {f"t{n}" for n in range(place - 8, place + 9)} <= set(said)
    gaps = [word for word in said if word.startswith("[…")]
    assert gaps == [said[0], said[18], said[36], said[54]]
    assert gaps[0] == "[… 992 tokens, 0.099 of the weight …]"
    assert sum(int(gap.split()[1].replace(",", "")) for gap in gaps) == 3000 - 3 * 17
    assert framed(figure) == [said.index("t2000")]
    even = torch.full((1, 3000), 1 / 3000).expand(3000, -1)
    assert len(words(show.text(Dense(even), 2999))) <= 401 + 1


@pytest.mark.parametrize(("text", "leftward"), [(("שלום", "עולם", "טוב"), True), (WORDS, False)])
def test_right_to_left_texts_run_from_the_right(text, leftward):
    figure = show.text(Dense(torch.eye(len(text)), labels=(text, text)), 0)
    places = [patch.get_x() for patch in figure.axes[0].patches]
    assert places == sorted(places, reverse=leftward)


def test_letters_keep_their_contrast_on_every_shade():
    def luminance(colour):
        c = np.array(matplotlib.colors.to_rgb(colour))
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for share in np.linspace(0, 1, 101):
        face = weight_map()(share)
        lights = sorted([luminance(face[:3]), luminance(show.style.ink_on(face))])
        assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5
    assert show.style.ink_on((1, 1, 1)) == show.style.INK


REPEATED = Dense(torch.eye(4), labels=(("the", "cat", "the", "mat"),) * 2)
test_what_cannot_be_shaded_is_named = refusals(
    {
        ArgumentError: {
            r"occurs once; got 'the'. It stands at 0, 2": lambda: show.text(REPEATED, "the"),
            r"got 'cats'. There is none. The nearest are 'cat'": lambda: show.text(
                REPEATED, "cats"
            ),
            r"""looks: expected "at" or "from"; got 'to'""": lambda: show.text(
                REPEATED, 1, looks="to"
            ),
            r"head: expected a number, or None.*got 'a'": lambda: show.text(REPEATED, 1, head="a"),
        },
        RangeError: {
            r"token: expected a position from 0 to 3; got 4": lambda: show.text(REPEATED, 4)
        },
    }
)


def test_weights_that_are_no_number_are_hatched(tmp_path):
    values = torch.eye(3)
    values[0, 1] = float("nan")
    figure = show.text(Dense(values), 0, save=tmp_path / "a.png")
    hatched = [patch.get_hatch() for patch in figure.axes[0].patches]
    assert [bool(hatch) for hatch in hatched] == [False, True, False]
    assert "1 of 3 weights is not finite" in "\n".join(written(figure))


# --- a sentence and its tokenizers ----------------------------------------------------------------
SENTENCE = "The animal was too wide."


def test_ours_words_and_characters():
    tokenizer = Translator.load().source_tokenizer
    cutters = {"words": str.split, "ours": tokenizer, "characters": list}
    figure = show.text(SENTENCE, cutters)
    pieces = tokenizer.tokens(tokenizer.encode(SENTENCE))
    expected = ["words: 5 tokens", *SENTENCE.split(), f"ours: {len(pieces)} tokens", *pieces]
    expected += ["characters: 24 tokens", *("␣" if c == " " else c for c in SENTENCE)]
    assert written(figure.axes[0]) == expected
    assert len(boxes(figure)) == 5 + len(pieces) + 24
    assert written(figure) == [SENTENCE]


def test_boxes_of_a_line_do_not_touch_and_lines_stay_on_the_paper():
    figure = show.text("x", {"many": ["internationalisation"] * 40})
    drawn = boxes(figure)
    room = figure.axes[0].get_xlim()[1]
    assert len({box.get_y() for box in drawn}) > 5
    for first, second in pairwise(drawn):
        assert second.get_y() > first.get_y() or second.get_x() > first.get_x() + first.get_width()
        assert first.get_x() + first.get_width() <= room + 1e-6


def test_scripts_that_run_from_the_right_do():
    figure = show.text("שלום עולם", {"words": str.split})
    first, second = boxes(figure)
    assert first.get_x() > second.get_x()


def test_tokens_are_shown_as_they_are():
    figure = show.text("a", {"$x$": ["$a$", "▁b", "\x1b[31m", "", "x" * 100]}, title="t")
    assert written(figure.axes[0])[1:] == ["$a$", "▁b", "⟨U+001B⟩[31m", "∅", "x" * 23 + "…"]
    assert written(figure) == ["t\na"]


test_what_gives_no_tokens_is_named = refusals(
    {
        ArgumentError: {
            r"token: expected at least one tokenizer; got none": lambda: show.text("a", {}),
            r"token\['a'\]: expected 1 to 400 tokens; got 0": lambda: show.text("", {"a": list}),
        },
        KindError: {
            r"token\['a'\]: .*got one that gives \[1\].*tokenize": lambda: show.text(
                "a", {"a": lambda _: [1]}
            ),
            r"token\['a'\]: .*got str": lambda: show.text("a", {"a": "abc"}),
        },
    }
)
