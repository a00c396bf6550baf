"""Corpora by name: what is known, and what is said of what is not."""

from __future__ import annotations

import pytest

from intently.errors import ArgumentError
from intently.tasks.corpora import CORPORA, language, load_corpus, named


def test_the_built_in_language_is_read_once_and_does_not_leak() -> None:
    corpus = load_corpus("language", "en", "fr")
    assert (corpus.name, corpus.source, corpus.target) == ("language", "en", "fr")
    assert len(corpus.train) == 100_000 and len(corpus.dev) == named.DEV_PAIRS
    assert list(corpus.tests) == ["test", "novel", "deeper"]
    assert {len(text) for text in corpus.tests.values()} == {named.TEST_PAIRS}
    first = next(language("train"))
    assert (corpus.train.sources[0], corpus.train.targets[0]) == (first.source, first.target)
    trained = set(corpus.train.sources)
    for text in (corpus.dev, *corpus.tests.values()):
        assert not trained & set(text.sources)
        assert len(set(text.sources)) == len(text)
    assert load_corpus("language", "en", "fr").train is corpus.train


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


def test_names_and_credits() -> None:
    assert CORPORA == ("language", "multi30k", "tatoeba")
    for name in CORPORA:
        credit = named.KNOWN[name].credit
        assert credit and "\n" not in credit
