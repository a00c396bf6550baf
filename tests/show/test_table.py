"""Small labelled matrices print as a table."""

from __future__ import annotations

import re

import pytest
import torch

import intently as it
from intently.core.matrix import Dense, LazyMatrix

W = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
TABLE = """\
     the  road
it  0.25  0.75
is  1.00  0.00"""


@pytest.mark.parametrize("show", [str, repr])
def test_a_small_labelled_matrix_is_a_table(show: type[str]) -> None:
    A = Dense(W, (("it", "is"), ("the", "road")))
    assert show(A) == f"{Dense(W)!r}\n{TABLE}"
    assert show(Dense(W[None, None]).label(("it", "is"), ("the", "road"))).endswith(TABLE)
    assert "0  0.25  0.75" in show(Dense(W).label(columns=["the", "road"]))


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
