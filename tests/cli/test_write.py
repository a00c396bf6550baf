"""`intently write`, and what other commands say of a language model."""

from __future__ import annotations

import pytest

from intently.tasks.language.text_model import TextModel, language_options, new_model
from intently.tasks.text import Tokenizer
from intently.tasks.translation.translator import Translator

from ..command_line import Command, refused

TEXT = "The cat sat on the mat. The dog sat on the cat. "


@pytest.fixture
def write(intently: Command) -> Command:
    """The command, in a folder with an untrained language model, ``my lm``."""
    options = language_options(TEXT, window=8, width=16, heads=2, layers=1)
    tokenizer = Tokenizer.train([TEXT], "character")
    TextModel(new_model(options, tokenizer.size).eval(), tokenizer, options).save("my lm/model")
    return lambda *given: intently("write", *given)


def test_a_text_is_continued(write: Command) -> None:
    given = ("my lm", "The ", "--tokens", "20")
    one, again, other = (write(*given, "--seed", seed) for seed in "112")
    assert one.status == 0 and one.out.startswith("The ") and one.out == again.out != other.out
    likeliest = TextModel.load("my lm").write("The ", 20, temperature=0)
    for flags in (("--temperature", "0"), ("--top-k", "1"), ("--top-p", "0.001")):
        assert write(*given, *flags).out == f"{likeliest}\n"
    assert write("my lm").status == 0
    assert "temperature: expected a finite number ≥ 0" in (
        refused(write(*given, "--temperature", "-1"))
    )


@pytest.mark.parametrize("command", ["evaluate", "translate", "play"])
def test_a_finished_language_model_is_called_one(
    intently: Command, write: Command, command: str
) -> None:
    given = {"translate": ["x"], "play": ["--out", "p.html"]}.get(command, [])
    said = refused(intently(command, "my lm", *given))
    assert "It holds a language model, not a translator. " in said and "not ended" not in said
    assert "Continue a text with it: intently write 'my lm' \"TEXT\"." in said


def test_a_translator_is_called_one(write: Command) -> None:
    Translator.load().save("fr")
    said = refused(write("fr", "The "))
    assert "It holds a translator, not a language model. " in said
    assert 'Translate with it: intently translate fr "TEXT".' in said
