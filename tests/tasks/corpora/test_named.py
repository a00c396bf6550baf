"""Corpora by name: what is known, and what is said of what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from intently.errors import ArgumentError
from intently.tasks.corpora import CORPORA, Corpus, ParallelText, language, load_corpus, named


@pytest.fixture(scope="module")
def built_in() -> Corpus:
    return load_corpus("language", "en", "fr")


def test_the_names() -> None:
    assert CORPORA == ("language", "multi30k", "tatoeba")


class TestLanguage:
    def test_its_parts(self, built_in: Corpus) -> None:
        assert (built_in.name, built_in.source, built_in.target) == ("language", "en", "fr")
        assert len(built_in.train) == 100_000
        assert list(built_in.tests) == ["test", "novel", "deeper"]
        assert {len(text) for text in built_in.tests.values()} == {named.TEST_PAIRS}
        assert len(built_in.dev) == named.DEV_PAIRS
        first, train = next(language("train")), built_in.train
        assert (train.sources[0], train.targets[0]) == (first.source, first.target)

    def test_nothing_leaks(self, built_in: Corpus) -> None:
        trained = set(built_in.train.sources)
        for text in (built_in.dev, *built_in.tests.values()):
            assert not trained & set(text.sources)
            assert len(set(text.sources)) == len(text)

    def test_is_read_once(self, built_in: Corpus) -> None:
        assert load_corpus("language", "en", "fr").train is built_in.train

    def test_is_in_no_folder(self, built_in: Corpus) -> None:
        assert built_in.data_dir is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("multi30", "en", "de"),
            "name: expected one of language, multi30k, tatoeba; got 'multi30'. "
            "Did you mean multi30k?",
        ),
        (("wmt", "en", "de"), "name: expected one of language, multi30k, tatoeba; got 'wmt'."),
        (("multi30k", "EN", "de"), "source: expected one of en, de, fr in multi30k; got 'EN'."),
        (("tatoeba", "en", "de"), "target: expected one of fr from en in tatoeba; got 'de'."),
        (("multi30k", "de", "de"), "target: expected one of en, fr from de in multi30k; got 'de'."),
        (("language", "fr", "en"), "source: expected one of en in language; got 'fr'."),
        (
            ("language", "en", "fr", "anywhere"),
            "data_dir: expected none; got 'anywhere'. "
            "The built-in language comes with the package.",
        ),
    ],
)
def test_what_is_not_known(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        load_corpus(*arguments)
    assert str(caught.value) == told


def test_a_corpus_knows_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    none = ParallelText([], [])
    known = named.KNOWN["tatoeba"]._replace(read=lambda *_: (none, none, {}))
    monkeypatch.setitem(named.KNOWN, "tatoeba", known)
    assert load_corpus("tatoeba", "en", "fr", "copies").data_dir == tmp_path / "copies"
    assert load_corpus("tatoeba", "en", "fr").data_dir is None


@pytest.mark.parametrize("name", CORPORA)
def test_credit_is_one_line(name: str) -> None:
    credit = named.KNOWN[name].credit
    assert credit and "\n" not in credit
