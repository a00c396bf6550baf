"""Tatoeba: no sentence that is tested has been trained on, whatever the graph of the pairs."""

from __future__ import annotations

import gzip
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intently.errors import ArgumentError, DataError
from intently.tasks.corpora import Corpus, load_corpus, tatoeba
from intently.tasks.corpora.files import ParallelText, read_parallel
from intently.tasks.corpora.tatoeba import GIANT, components, split_without_leaks

from .serving import Site
from .test_download import zipped

SHARE = 0.3


def key(sentence: str) -> str:
    """What two sentences have in common that differ in case, punctuation and spaces."""
    return "".join(sign for sign in sentence.casefold() if sign.isalnum())


@st.composite
def sentences(draw: st.DrawFn, language: str) -> str:
    """A sentence of a small language, written in one of several ways."""
    word = f"{language}{draw(st.integers(0, 30))}"
    return draw(st.sampled_from(["{}", "{}.", "{} !", "« {} »", "{}\u202f?", "{}..."])).format(
        draw(st.sampled_from([word, word.upper(), word.capitalize(), f"{word[0]}-{word[1:]}"]))
    )


graphs = st.lists(st.tuples(sentences("e"), sentences("f")), max_size=60)


def split(pairs: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    text = ParallelText([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    parts = split_without_leaks(text, SHARE)
    return [list(zip(part.sources, part.targets)) for part in parts]


def expect_no_leak(train: ParallelText, dev: ParallelText, test: ParallelText) -> None:
    for side in ("sources", "targets"):
        trained, chosen, tested = (
            [key(sentence) for sentence in getattr(part, side)] for part in (train, dev, test)
        )
        assert not set(tested) & set(trained), side
        assert not set(tested) & set(chosen), side
        assert not set(chosen) & set(trained), side
        assert len(set(tested)) == len(tested), side
        assert len(set(chosen)) == len(chosen), side


class TestSplit:
    @given(graphs)
    def test_no_sentence_stands_in_two_parts(self, pairs: list[tuple[str, str]]) -> None:
        train, dev, test = (
            ParallelText([pair[0] for pair in part], [pair[1] for pair in part])
            for part in split(pairs)
        )
        expect_no_leak(train, dev, test)

    @given(graphs, st.randoms(use_true_random=False))
    def test_the_order_of_the_lines_does_not_matter(
        self, pairs: list[tuple[str, str]], chance: random.Random
    ) -> None:
        shuffled = list(pairs)
        chance.shuffle(shuffled)
        assert split(shuffled) == split(pairs)

    @given(graphs)
    def test_every_pair_is_dealt_out_at_most_once_and_every_component_somewhere(
        self, pairs: list[tuple[str, str]]
    ) -> None:
        parts = split(pairs)
        dealt = [pair for part in parts for pair in part]
        left = list(pairs)
        for pair in dealt:
            left.remove(pair)
        found = components([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        for indices in found.values():
            inside = {pairs[index] for index in indices}
            among = [part for part in parts if inside & set(part)]
            assert len(among) == 1
            assert among[0] is not parts[0] or inside <= set(parts[0])

    def test_all_three_parts_are_made(self) -> None:
        parts = split([(f"e{number}", f"f{number}") for number in range(300)])
        assert sum(map(len, parts)) == 300
        assert min(map(len, parts)) > 50

    def test_a_giant_component_is_trained_on(self) -> None:
        for word in range(40):
            star = ParallelText([f"e{word}"] * (GIANT + 1), [f"f{n}" for n in range(GIANT + 1)])
            train, dev, test = split_without_leaks(star, 0.49)
            assert (len(train), len(dev), len(test)) == (GIANT + 1, 0, 0)

    def test_sentences_without_letters_stay_apart(self) -> None:
        assert len(components(["!", "?", "?"], ["a", "b", "c"])) == 2

    def test_a_chain_is_one_component(self) -> None:
        assert components(["c", "a", "b", "a"], ["z", "x", "y", "y"]) == {"a": [1, 2, 3], "c": [0]}

    def test_a_share_that_leaves_nothing_to_train_on(self) -> None:
        with pytest.raises(ArgumentError, match=r"share: expected a share .*; got 0\.5"):
            split_without_leaks(ParallelText(["a"], ["b"]), 0.5)


@pytest.fixture(scope="module")
def real(shared: Path) -> Corpus:
    return load_corpus("tatoeba", "en", "fr", shared / "data")


class TestRealFile:
    def test_nothing_leaks(self, shared: Path, real: Corpus) -> None:
        test = real.tests["test"]
        expect_no_leak(real.train, real.dev, test)
        assert 1_000 <= len(real.dev) <= 2_000
        assert 1_000 <= len(test) <= 2_000
        whole = read_parallel(shared / "data" / "tatoeba" / "fra-eng.tsv.gz")
        assert len(real.train) > 0.95 * len(whole)
        pairs = set(zip(whole.sources, whole.targets))
        for part in (real.train, real.dev, test):
            assert pairs.issuperset(zip(part.sources, part.targets))

    def test_from_the_archive_and_in_the_other_direction_it_has_the_same_pairs(
        self, shared: Path, real: Corpus, site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with gzip.open(shared / "data" / "tatoeba" / "fra-eng.tsv.gz") as packed:
            site.files["/fra-eng.zip"] = zipped({tatoeba.FILE.member: packed.read()})
        file = replace(tatoeba.FILE, url=f"{site.address}/fra-eng.zip")
        monkeypatch.setattr(tatoeba, "FILE", file)
        back = load_corpus("tatoeba", "fr", "en")
        for one, other in (
            (real.train, back.train),
            (real.dev, back.dev),
            (real.tests["test"], back.tests["test"]),
        ):
            assert (one.sources, one.targets) == (other.targets, other.sources)
        assert os.listdir(cache / "tatoeba") == ["fra-eng.tsv"]


class TestAnotherFile:
    """A version of the user's own: used, with its checksum told; split by the same rules."""

    def write(self, folder: Path, count: int) -> Path:
        lines = [f"Sentence {n}.\tPhrase {n} !\tCC-BY 2.0 #{n}\n" for n in range(count)]
        (folder / "fra.txt").write_text("".join(lines), encoding="utf-8")
        return folder

    def test_is_used_with_a_warning(self, tmp_path: Path) -> None:
        with pytest.warns(UserWarning, match=r"tatoeba: files that are not the known ones"):
            corpus = load_corpus("tatoeba", "en", "fr", self.write(tmp_path, 2_000))
        assert len(corpus.train) + len(corpus.dev) + len(corpus.tests["test"]) == 2_000
        assert corpus.dev.targets[0].startswith("Phrase")

    def test_that_is_too_small(self, tmp_path: Path) -> None:
        with (
            pytest.warns(UserWarning),
            pytest.raises(
                DataError, match=r"expected enough sentence pairs for .*; got 3 sentence pairs"
            ),
        ):
            load_corpus("tatoeba", "en", "fr", self.write(tmp_path, 3))
