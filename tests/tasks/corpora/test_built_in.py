"""The built-in language, as the package holds it; its grammar has tests of its own."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from intently.errors import ArgumentError, DataError
from intently.tasks.corpora import SHOWN, SPLITS, Pair, built_in, language, sample

ARTICLES = {"You are a wizard, Harry.", "Building AI models is cool.", "Mary gave roses to Susan."}


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Pair]]:
    return {split: list(language(split)) for split in SPLITS}


def test_the_files_are_those_that_the_grammar_wrote() -> None:
    lines = (built_in.FOLDER / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in map(str.split, lines)}
    assert {*sums} == {f"{name}.tsv.xz" for name in (*SPLITS, "shown")}
    for name, digest in sums.items():
        assert sha256((built_in.FOLDER / name).read_bytes()).hexdigest() == digest


def test_no_split_holds_a_sentence_of_another(splits: dict[str, list[Pair]]) -> None:
    assert [len(pairs) for pairs in splits.values()] == [100_000, 1000, 2000, 2000, 2000]
    sides = [{pair.source for pair in pairs} for pairs in splits.values()]
    sides += [ARTICLES, {pair.source for pair in SHOWN}]
    assert sum(map(len, sides)) == len(set().union(*sides))
    assert len(sides[0]) > 80_000  # set phrases are told again and again
    assert [len(side) for side in sides[1:5]] == [1000, 2000, 2000, 2000]


def test_words_and_links_are_whole(splits: dict[str, list[Pair]]) -> None:
    for pair in (pair for pairs in splits.values() for pair in pairs[:2000]):
        possible = pair.alignment.possible
        assert pair.alignment.sure <= possible
        assert {i for i, _ in possible} == set(range(len(pair.source_words))), pair
        assert {j for _, j in possible} == set(range(len(pair.target_words))), pair


def test_pronouns_are_where_they_are_said_to_be(splits: dict[str, list[Pair]]) -> None:
    told = Counter()
    for pair in splits["train"][:20_000] + splits["novel"]:
        if pair.pronoun is not None:
            it, target, right, wrong, expected, _ = pair.pronoun
            assert pair.source_words[it] in ("it", "they")
            assert pair.target_words[target] == expected
            assert right != wrong
            told[expected] += 1
    assert set(told) == {"il", "elle", "ils", "elles"} and told.total() > 3000
    assert any(pair.pronoun and pair.pronoun.other != pair.pronoun.expected for pair in SHOWN)


def test_shown() -> None:
    assert len(SHOWN) == 13
    milk = SHOWN[0].alignment  # du is only possible
    assert milk.possible - milk.sure == {(2, 2)}
    assert SHOWN[2].target == "L'animal n'a pas traversé la route parce qu'elle était trop large."


def test_a_sample_has_each_sentence_once() -> None:
    assert len({pair.source for pair in sample("train", 5000)}) == 5000
    assert sample("test", 3) == list(language("test"))[:3]
    assert len(sample("test", 9999)) == 2000
    with pytest.raises(ArgumentError, match="count: expected an int ≥ 0; got -1"):
        sample("test", -1)


def test_every_word_is_trained_on(splits: dict[str, list[Pair]]) -> None:
    english = {word for pair in splits["train"] for word in pair.source_words}
    french = {word for pair in splits["train"] for word in pair.target_words}
    for pair in (*SHOWN, *splits["novel"], *splits["deeper"]):
        assert english >= {*pair.source_words} and french >= {*pair.target_words}


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"split: expected one of \"train\", .*'dev'"):
        language("dev")
    whole = (built_in.FOLDER / "test.tsv.xz").read_bytes()
    monkeypatch.setattr(built_in, "FOLDER", tmp_path)
    for name, content in (("test", whole[:-40]), ("novel", b"no table")):
        (tmp_path / f"{name}.tsv.xz").write_bytes(content)
        with pytest.raises(DataError, match=r"a table of sentences.*Install Intently again"):
            list(language(name))
    with pytest.raises(DataError, match="No such file"):
        list(language("train"))
