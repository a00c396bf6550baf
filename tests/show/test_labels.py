"""Labels say what a token is, and where a word begins is not written into it."""

from __future__ import annotations

import pytest
import torch

from intently import show
from intently.core.matrix import Dense
from intently.foundation.tokens import bare
from intently.show.labels import shown, spaced

from .drawing import ticks

PIECES = ("▁L'", "animal", "▁un", "believ", "▁", ".")


def test_axes_show_pieces_without_marks_and_find_them_with_or_without():
    A = Dense(torch.eye(6), labels=(PIECES, PIECES))
    plain = ["L'", "animal", "un", "believ", "▁", "."]
    axes = show.heatmap(A).axes[0]
    assert ticks(axes, "y") == ticks(axes, "x") == plain
    assert "▁un" not in show.blocks(A, width=60, colour=False)
    for name in ("un", "▁un"):
        figure = show.lines(A, name)
        inks = [text.get_color() for text in figure.axes[0].texts if text.get_text() == "un"]
        assert inks == [show.style.ACCENT, show.style.INK]  # the query, and the key beside it


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("Ġthe", "Ġcat", "s"), ("the", "cat", "s")),
        ((" the", "cat"), ("the", "cat")),
        (("the", " "), ("the", "␣")),
        (("play", "##ing"), ("play", "##ing")),
        (("_a", "b"), ("_a", "b")),
    ],
)
def test_marks_of_every_kind_of_tokenizer(tokens, expected):
    assert shown(tokens) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("▁too", "▁wi", "de", "."), "too wide."),
        (("un", "##believ", "##able", "road"), "unbelievable road"),
        (("too", "wide"), "too wide"),
        (("ĠIt", "'s", "Ġcold"), "It's cold"),
    ],
)
def test_pieces_become_a_text_again(tokens, expected):
    assert "".join(" " * blank + token for token, blank in spaced(tokens)).strip() == expected


def test_a_mark_alone_stays():
    assert bare("▁") == "▁"


def test_the_rows_of_a_decoder_are_the_last_tokens_that_it_reads():
    A = Dense(torch.eye(3)[1:], labels=(("sat", "."), ("the", "cat", "sat")))
    assert ticks(show.heatmap(A).axes[0], "y") == ["cat (writes sat)", "sat (writes .)"]
