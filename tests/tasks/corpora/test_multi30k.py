"""Multi30k: every direction, from copies and over the network, with the same sentences."""

from __future__ import annotations

import gzip
from itertools import permutations
from pathlib import Path

import pytest

from intently.errors import DataError
from intently.tasks.corpora import load_corpus, named

from .serving import Site


@pytest.fixture
def folder(shared: Path) -> Path:
    return shared / "data"


@pytest.mark.parametrize(("source", "target"), permutations(["en", "de", "fr"], 2))
def test_every_direction(folder: Path, source: str, target: str) -> None:
    corpus = load_corpus("multi30k", source, target, folder)
    assert (len(corpus.train), len(corpus.dev)) == (29_000, 1_014)
    assert {name: len(text) for name, text in corpus.tests.items()} == {"test_2016_flickr": 1_000}
    for name, text in (("train", corpus.train), ("val", corpus.dev), *corpus.tests.items()):
        for language, side in ((source, text.sources), (target, text.targets)):
            with open(folder / "multi30k" / f"{name}.{language}", encoding="utf-8") as lines:
                assert side == [line.strip() for line in lines]


def test_is_downloaded_packed(
    folder: Path, site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (folder / "multi30k").iterdir():
        if path.suffix in (".de", ".en"):
            site.files[f"/raw/{path.name}.gz"] = gzip.compress(path.read_bytes(), 1)
    assert len(named.COMMIT) == 40 and named.COMMIT in named.MULTI30K
    monkeypatch.setattr(named, "MULTI30K", f"{site.address}/raw")
    downloaded = load_corpus("multi30k", "de", "en")
    copied = load_corpus("multi30k", "de", "en", folder / "multi30k")
    assert downloaded.train.sources == copied.train.sources
    assert downloaded.tests["test_2016_flickr"].targets == copied.tests["test_2016_flickr"].targets
    assert sorted(path.name for path in (cache / "multi30k").iterdir()) == sorted(
        f"{split}.{language}"
        for split in ("train", "val", "test_2016_flickr")
        for language in ("de", "en")
    )
    assert len(site.asked) == 6


def test_without_a_network_everything_to_fetch_by_hand_is_told(
    site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "MULTI30K", f"{site.address}/raw")
    with pytest.raises(DataError) as caught:
        load_corpus("multi30k", "en", "fr")
    for name in named.SHA256:
        asked_for = f"{site.address}/raw/{name}.gz as {name}.gz"
        assert (asked_for in str(caught.value)) == (not name.endswith(".de"))
    assert str(cache / "multi30k") in str(caught.value)


def test_files_that_are_missing_are_listed(tmp_path: Path) -> None:
    for name in ("train.en", "train.de.gz", "val.en"):
        (tmp_path / name).write_text("Hello.\n")
    with pytest.raises(DataError, match=r"got no val\.de, test_2016_flickr\.en, test_2016_fl"):
        load_corpus("multi30k", "en", "de", tmp_path)
