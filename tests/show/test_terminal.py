"""Block pictures: the right shade at the right word, within the width, and nothing raw."""

from __future__ import annotations

import math
import re
import sys
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import intently as it
from intently import show
from intently.core.matrix import Dense, LazyMatrix

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def picture(values: torch.Tensor, rows: list[str], columns: list[str], **options) -> list[str]:
    matrix = Dense(values, labels=(tuple(rows), tuple(columns)))
    return show.blocks(matrix, **{"width": 60, "colour": False, **options}).split("\n")


def test_shades_stand_under_their_words():
    values = torch.tensor([[0.0, 0.05, 0.95], [0.3, 0.6, 0.1]])
    assert picture(values, ["Je", "bois"], ["I", "go", "."]) == [
        "     I",
        "     │ go",
        "     │ │ .",
        "  Je   ░░██",
        "bois ▒▒▓▓░░",
        "     ░ 0.05  ▒ 0.25  ▓ 0.5  █ 0.75 and more",
    ]


def test_long_words_are_numbered_and_a_key_follows():
    lines = picture(torch.eye(2), ["a", "b"], ["internationalisation", "of"], width=20)
    assert lines[:3] == ["  internationalisat…", "  │ of", "a ██"]
    words = [f"word{n}" for n in range(17)]
    lines = picture(torch.eye(17), list("abcdefghijklmnopq"), words)
    assert lines[:2] == [
        "                    1 1 1 1 1 1 1 1",
        "  1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7",
    ]
    assert " ".join(lines[-3:]).split()[-2:] == ["17", "word16"]
    lines = picture(torch.eye(6), list("abcdef"), ["translation"] * 6, width=20)
    assert lines[0] == "  1 2 3 4 5 6"


def test_wide_characters_keep_the_columns_in_line():
    lines = picture(torch.eye(2), ["元気", "か"], ["お元", "how"])
    assert lines[:4] == ["     お元", "     │ how", "元気 ██", "  か   ██"]
    assert [cell_len(line) for line in lines[2:4]] == [7, 9]


def test_marks_stay_with_their_letter():
    lines = picture(torch.eye(1), ["x"], ["e\u0301t"])
    assert lines[:2] == ["  e\u0301t", "x ██"]
    lines = picture(torch.eye(2), ["x", "y"], ["e\u0301", "a"])
    assert lines[:2] == ["  e\u0301 a", "x ██"]


def test_columns_that_do_not_fit_go_on_below():
    words = [chr(97 + n % 26) for n in range(50)]
    lines = picture(torch.eye(50), words, words, width=40)
    assert max(map(cell_len, lines)) <= 40
    assert sum(line.count("██") for line in lines) == 50
    assert lines.count("") == 2


def test_a_large_matrix_is_pooled():
    lines = show.blocks(Dense(torch.eye(1000)), width=50, colour=False).split("\n")
    assert max(map(cell_len, lines)) <= 50
    assert len(lines) < 40
    assert "1000 × 1000 weights" in " ".join(lines)


def test_what_is_no_number_is_a_question_mark():
    lines = picture(torch.tensor([[math.nan, 1.0]]), ["a"], ["b", "c"])
    assert lines[1] == "a ??██"
    assert lines[-1].strip() == "?: 1 of 2 weights is not finite"


def test_colours_carry_the_weight_in_hundredths():
    lines = picture(torch.tensor([[0.04, 0.96]]), ["a"], ["b", "c"], colour=True)
    assert ESCAPE.sub("", lines[1]) == "a     96"
    assert lines[1].endswith("\x1b[0m")
    assert "48;5;255" in lines[1]
    assert "48;5;19;38;5;231" in lines[1]
    narrow = picture(torch.eye(9), list("abcdefghi"), list("abcdefghi"), colour=True, width=20)
    assert ESCAPE.sub("", narrow[1]).strip() == "a"


def test_colour_follows_the_terminal_and_no_color(monkeypatch):
    matrix = Dense(torch.eye(2))
    assert "\x1b" not in show.blocks(matrix)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in show.blocks(matrix)
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b" in show.blocks(matrix)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in show.blocks(matrix)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.text(max_size=30), min_size=1, max_size=4),
    columns=st.lists(st.text(max_size=30), min_size=1, max_size=12),
    colour=st.booleans(),
    width=st.integers(20, 90),
)
def test_no_word_reaches_the_terminal_raw(rows, columns, colour, width):
    values = torch.ones(len(rows), len(columns)) / len(columns)
    lines = picture(values, rows, columns, colour=colour, width=width)
    for line in lines:
        plain = ESCAPE.sub("", line) if colour else line
        assert cell_len(plain) <= width
        for character in plain:
            kept = character in "\u200c\u200d\u200e" or character == "\u00a0"
            hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
            assert kept or unicodedata.category(character) not in hidden
        line.encode("utf-8")


# --- small labelled matrices print as a table -----------------------------------------------------
W = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
TABLE = """\
     the  road
it  0.25  0.75
is  1.00  0.00"""


@pytest.mark.parametrize("text", [str, repr])
def test_a_small_labelled_matrix_is_a_table(text: type[str]) -> None:
    A = Dense(W, (("it", "is"), ("the", "road")))
    assert text(A) == f"{Dense(W)!r}\n{TABLE}"
    assert text(Dense(W[None, None]).label(("it", "is"), ("the", "road"))).endswith(TABLE)
    assert "0  0.25  0.75" in text(Dense(W).label(columns=["the", "road"]))


@pytest.mark.parametrize(
    "matrix",
    [
        Dense(W),
        Dense(torch.rand(2, 2, 2)).label(["a", "b"], ["c", "d"]),
        Dense(torch.rand(40, 2)).label(columns=["a", "b"]),
        Dense(torch.rand(0, 2)).label(columns=["a", "b"]),
        Dense(torch.rand(16, 16)).label([f"a long word {n}" for n in range(16)], ["x" * 30] * 16),
        Dense(torch.rand(2, 2, device="meta")).label(["a", "b"]),
    ],
)
def test_others_are_one_line(matrix: LazyMatrix) -> None:
    assert "\n" not in str(matrix) and str(matrix).startswith("Dense(shape=")


def test_a_matrix_whose_tensors_changed_still_has_its_line() -> None:
    q = torch.randn(2, 4)
    A = it.attend(q, torch.randn(2, 4)).label(["a", "b"], ["c", "d"])
    q.add_(1)
    assert "\n" not in repr(A)


def test_words_are_aligned_cut_and_shown_as_text() -> None:
    A = Dense(W, (("猫", "x" * 40), ("\x1b[31m", "l\nn")))
    lines = str(A).split("\n")[1:]
    assert "\x1b" not in str(A) and len(lines) == 3
    assert lines[1].startswith("猫 ") and "…" in lines[2]


def test_a_notebook_shows_the_table() -> None:
    html = Dense(W, (("<it>", "is"), ("the", "road")))._repr_html_()
    assert "<img" not in html and "&lt;it&gt;" in html and "<it>" not in html
    assert re.findall(r">(\d\.\d\d)</td>", html) == ["0.25", "0.75", "1.00", "0.00"]
    assert "A @ v" in html
    assert "<img" in Dense(W)._repr_html_()


def test_scores_say_what_they_are() -> None:
    A = it.attend(torch.randn(3, 5, 4), torch.randn(3, 6, 4))
    assert repr(A.scores) == (
        "Scores(shape=(3, 5, 6)) — lazy: A.scores[..., rows, cols] computes the logits"
    )
