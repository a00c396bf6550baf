"""Whether a sentence is like those that a translator learned from, and reading it alike."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from intently.corpora import language, sample
from intently.errors import CheckpointError
from intently.foundation.files import digest, sealed
from intently.models.transformer import Transformer, TransformerOptions
from intently.runners.watched import translated
from intently.text import Tokenizer
from intently.translation import Translator
from intently.translation.familiar import Familiar
from intently.translation.reading import read_line
from intently.translation.translator import TranslationWarning

from .outside import NEW_FORMS, NEW_WORDS


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([p.source for p in islice(language("train"), 60_000)], "word")


@pytest.fixture(scope="module")
def familiar(tokenizer: Tokenizer) -> Familiar:
    text = [pair.source for pair in islice(language("train"), 60_000)]
    found = Familiar.of(text, tokenizer, [pair.source for pair in sample("validation", 500)])
    assert found is not None
    return found


@pytest.fixture(scope="module")
def translator(tokenizer: Tokenizer, familiar: Familiar) -> Translator:
    size = tokenizer.size
    model = Transformer(TransformerOptions(size, size, width=16, heads=2, inner=16))
    return Translator(model, tokenizer, tokenizer, max_length=20, familiar=familiar)


@pytest.mark.parametrize("split", ["test", "novel"])
def test_sentences_of_the_language_are_familiar(translator: Translator, split: str) -> None:
    assert share_noted(translator, [pair.source for pair in sample(split, 500)]) <= 0.01


@pytest.mark.parametrize("sentences", [NEW_WORDS, NEW_FORMS], ids=["words", "forms"])
def test_others_are_noted(translator: Translator, sentences: list[str]) -> None:
    assert len(sentences) == 100
    assert share_noted(translator, sentences) >= 0.9


def share_noted(translator: Translator, sentences: list[str]) -> float:
    """The share of sentences that the translator notes something about."""
    return sum(bool(notes(translator, text)) for text in sentences) / len(sentences)


def notes(translator: Translator, text: str) -> tuple[str, ...]:
    """What the translator notes about a text."""
    return read_line(text, "text", translator.source_tokenizer, 20, translator.familiar).notes


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("how are you", "How are you?"),
        ("HOW ARE YOU?", "How are you?"),
        ("hello, how are you", "Hello, how are you?"),
        ("where is mary", "Where is Mary?"),
        ("the road was too wide", "The road was too wide."),
        ("I’m fine, thank you!", "I'm fine, thank you!"),
        ("Paul saw Zorba", "Paul saw Zorba."),
        ("I like nice tea.", "I like nice tea."),  # Nice begins sentences only
        ("", ""),
    ],
)
def test_lines_are_read_as_the_training_text_is_written(
    familiar: Familiar, tokenizer: Tokenizer, typed: str, read: str
) -> None:
    assert familiar.tidy(typed, tokenizer) == read


def test_a_new_name_is_no_unknown_word(familiar: Familiar, tokenizer: Tokenizer) -> None:
    for text in ("Zorba wants to cross the valley.", "Good morning, Zorba!", "Where is Zorba?"):
        assert familiar.misplaced(text, tokenizer) == []
    assert familiar.misplaced("The Zorba is big.", tokenizer) == ["Zorba"]
    assert familiar.misplaced("Paul saw a zorba.", tokenizer) == ["zorba"]


def test_a_note_names_the_words_and_a_sentence_that_works(translator: Translator) -> None:
    with pytest.warns(TranslationWarning, match="line 1: not in the model's vocabulary: weather"):
        (made,) = translator.translate(["How is the weather?"])
    _, example = made.notes[0].split("; it knows, for example: ")
    assert not notes(translator, example)
    with pytest.warns(TranslationWarning, match="unlike the sentences .* at “big and brave”"):
        (made,) = translator.translate(["the bear is big and brave"])
    assert made.source == "the bear is big and brave"
    assert made.read == "The bear is big and brave."
    assert made.sides[0].words == ["The", "bear", "is", "big", "and", "brave", "."]


@pytest.mark.filterwarnings("error::intently.translation.translator.TranslationWarning")
def test_a_page_has_the_notes_of_its_text(translator: Translator) -> None:
    assert "vocabulary: weather" in translated(translator, "How is the weather?").told[1]
    assert translated(translator, "how are you").told[1:] == [""]


def test_it_is_saved_with_the_translator(translator: Translator, tmp_path: Path) -> None:
    assert Translator.load(translator.save(tmp_path)).familiar == translator.familiar
    translator.familiar, kept = None, translator.familiar
    assert Translator.load(translator.save(tmp_path / "other")).familiar is None
    translator.familiar = kept


def test_one_of_another_vocabulary_is_refused(translator: Translator, tmp_path: Path) -> None:
    folder = translator.save(tmp_path)
    given = json.loads((folder / "familiar.json").read_text())
    given["classes"].pop()
    content = json.dumps(given).encode()
    (folder / "familiar.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="another checksum"):
        Translator.load(folder)
    about = json.loads((folder / "translator.json").read_text())
    about["files"]["familiar.json"] = digest(content)
    del about["sha256"]
    (folder / "translator.json").write_bytes(sealed(about))
    with pytest.raises(CheckpointError, match=r"familiar\.json.*classes"):
        Translator.load(folder)


def test_where_it_cannot_be_told() -> None:
    text = ["The cat sleeps.", "The dog sleeps.", "Where is Mary?"]
    words, subwords = Tokenizer.train(text, "word"), Tokenizer.train(text, "subword", 300)
    assert Familiar.of(text, subwords, text) is None
    assert Familiar.of(text, words, ["Mary the sleeps cat."]) is None
    assert Familiar.of(text, words, text) is not None


def test_a_text_without_habits_is_read_as_it_is() -> None:
    text = ["a cat sleeps", "Dogs sleep", "where is Mary ?"]
    words = Tokenizer.train(text, "word")
    found = Familiar.of(text, words, text)
    assert found is not None and not found.capital and found.ends == {}
    assert found.tidy("a cat sleeps", words) == "a cat sleeps"
