"""The subword tokenizer that is part of the package, and the script that makes it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intently.tasks.text import EOS, PAD, SOS, SPECIALS, UNK, Tokenizer, words
from intently.tasks.text.tokenizers import READY
from intently.tasks.text.vocabularies import BYTES

from .test_tokenizers import HOSTILE, TRICKY

TOKENIZER = Tokenizer.load()
SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "make_tokenizer.py"
EXAMPLES = [
    "I drink milk",
    "The animal didn't cross the road because it was too tired",
    "You are a wizard, Harry",
    "How are you?",
    "The cat sat on the mat.",
]
LETTER = """Dear Emma, yesterday we walked along the river until it began to rain. My brother had
forgotten his coat, so we ran to the old station and waited for an hour. A woman sold us hot soup,
and told us how the bridge was built when she was a girl. Next week I will visit my aunt, who
teaches mathematics in a small village near the mountains. Do you remember her garden?"""


def pieces(text: str) -> list[str]:
    return TOKENIZER.tokens(TOKENIZER.encode(text))


def test_it_is_small_and_a_subword_tokenizer() -> None:
    assert READY.stat().st_size <= 300_000
    assert (TOKENIZER.kind, TOKENIZER.complete) == ("subword", True)
    assert TOKENIZER.tokens(range(4)) == list(SPECIALS)


@pytest.mark.parametrize("text", EXAMPLES)
def test_ordinary_words_are_one_piece_each(text: str) -> None:
    assert len(pieces(text)) == len(words(text))


def test_long_words_are_cut_where_they_are_made_of_parts() -> None:
    assert pieces("unbelievable")[0] == "▁un" and pieces("unbelievable")[-1] == "able"
    assert pieces("tokenization")[0].startswith("▁token") and len(pieces("tokenization")) == 2
    assert " ".join(pieces("Building AI models is cool")) == "▁Build ing ▁AI ▁models ▁is ▁cool"
    assert pieces("unhappiness") == ["▁un", "happiness"]
    assert "".join(pieces("2024")) == "▁2024" and len(pieces("20242024")) - len(pieces("2024")) == 4


def test_a_plain_letter_takes_few_pieces_and_no_bytes() -> None:
    found = pieces(" ".join(LETTER.split()))
    assert not set(found) & set(BYTES)
    assert len(found) < 1.4 * len(words(LETTER))


@given(st.text() | HOSTILE | st.sampled_from(TRICKY))
def test_it_gives_back_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert not set(ids) & {PAD, SOS, EOS, UNK}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_its_pieces_belong_to_words(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert len(TOKENIZER.word_groups(text, ids)) == len(words(text))


def test_the_script_makes_the_same_file_every_time(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    runpy.run_path(str(SCRIPT))["main"](one)
    command = [sys.executable, str(SCRIPT), str(other)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1"})
    assert one.read_bytes() == other.read_bytes()
    again = Tokenizer.load(one)
    assert again.size == TOKENIZER.size
    for text in EXAMPLES:
        assert again.tokens(again.encode(text)) == pieces(text)
