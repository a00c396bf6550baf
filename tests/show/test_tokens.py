"""Every tokenizer's tokens stand in order, each in its box."""

from __future__ import annotations

from itertools import pairwise

from intently import show
from intently.errors import ArgumentError, KindError
from intently.translation.translator import Translator

from .drawing import boxes, written
from .refusals import refusals

SENTENCE = "The animal was too wide."


def test_ours_words_and_characters():
    tokenizer = Translator.load().source_tokenizer
    cutters = {"words": str.split, "ours": tokenizer, "characters": list}
    figure = show.tokens(SENTENCE, cutters)
    pieces = tokenizer.tokens(tokenizer.encode(SENTENCE))
    expected = ["words", "5 tokens", *SENTENCE.split()]
    expected += ["ours", f"{len(pieces)} tokens", *pieces]
    expected += ["characters", "24 tokens", *("␣" if c == " " else c for c in SENTENCE)]
    assert written(figure.axes[0]) == expected
    assert len(boxes(figure)) == 5 + len(pieces) + 24
    assert written(figure) == [SENTENCE]


def test_boxes_of_a_line_do_not_touch_and_lines_stay_on_the_paper():
    figure = show.tokens("x", {"many": ["internationalisation"] * 40})
    drawn = boxes(figure)
    room = figure.axes[0].get_xlim()[1]
    assert len({box.get_y() for box in drawn}) > 5
    for first, second in pairwise(drawn):
        assert second.get_y() > first.get_y() or second.get_x() > first.get_x() + first.get_width()
        assert first.get_x() + first.get_width() <= room + 1e-6


def test_scripts_that_run_from_the_right_do():
    figure = show.tokens("שלום עולם", {"words": str.split})
    first, second = boxes(figure)
    assert first.get_x() > second.get_x()


def test_tokens_are_shown_as_they_are():
    figure = show.tokens("a", {"$x$": ["$a$", "▁b", "\x1b[31m", "", "x" * 100]}, title="t")
    assert written(figure.axes[0])[2:] == ["$a$", "▁b", "⟨U+001B⟩[31m", "∅", "x" * 23 + "…"]
    assert written(figure) == ["t\na"]


test_what_gives_no_tokens_is_named = refusals(
    {
        ArgumentError: {
            r"cutters: expected at least one tokenizer; got none": lambda: show.tokens("a", {}),
            r"cutters\['a'\]: expected 1 to 500 tokens; got 0": lambda: show.tokens(
                "", {"a": list}
            ),
        },
        KindError: {
            r"cutters\['a'\]: .*got one that gives \[1\].*tokenize": lambda: show.tokens(
                "a", {"a": lambda _: [1]}
            ),
            r"cutters\['a'\]: .*got str": lambda: show.tokens("a", {"a": "abc"}),
        },
    }
)
