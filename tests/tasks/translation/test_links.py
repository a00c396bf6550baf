"""Files of word links: every line is read, and every fault is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from intently.errors import DataError
from intently.tasks.corpora import ParallelText
from intently.tasks.translation.runs import read_links

TEXT = ParallelText(
    ["I sleep.", "The dog's bone"], ["Je dors.", "L'os du chien"], guides=None, report="two"
)


def test_links_are_between_the_parts_of_words(tmp_path: Path) -> None:
    file = tmp_path / "links"
    file.write_text("0-0\r\n1-2 2-0\n")
    first, second = read_links(file, TEXT)
    assert first == {(0, 0): 1.0}
    # dog and 's to chien; bone to L' and os
    assert set(second) == {(3, 1), (3, 2), (0, 3), (1, 3)}


def test_a_line_may_have_no_links(tmp_path: Path) -> None:
    file = tmp_path / "links"
    file.write_text("\n0-0\n")
    assert read_links(file, TEXT)[0] == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("0-0\n", r"links: 1 lines for 2 sentence pairs"),
        ("0-0\n0-0\n0-0\n", r"3 lines for 2"),
        ("0-0\n0:0 1-x\n", r"links:2: '0:0' is not a link such as 0-1"),
        ("2-0\n0-0\n", r"links:1: 2-0 is none of the pair's 2 and 2 words"),
        ("0-99999999999\n\n", r"is not a link"),
        ("0--1\n\n", r"'0--1' is not a link"),
        ("", r"the file is empty"),
        ("\n\n", r"no line has a link"),
        ("\xff\n", r"not UTF-8"),
    ],
)
def test_faults_are_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "links"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=said):
        read_links(file, TEXT)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_links(tmp_path / "none", TEXT)


def test_guides_stay_with_their_pairs() -> None:
    text = ParallelText(
        ["a b", "c", "d"], ["x", "y", "z"], guides=[{(0, 1): 1.0}, {}, {(0, 0): 2.0}]
    )
    first, last = text.split_off(1)
    assert (first.guides, last.guides) == ([{(0, 1): 1.0}, {}], [{(0, 0): 2.0}])
