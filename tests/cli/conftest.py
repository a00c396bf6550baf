"""What commands are run on: a small corpus in place of every named one, and two files."""

from __future__ import annotations

from pathlib import Path

import pytest

from intently.corpora import Corpus

from ..samples import parallel, write_pairs


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.cli.evaluate.RESAMPLED", 5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str, str | None]]:
    """A small corpus in place of every named one; what was asked for."""
    asked = []

    def load(name: str, source: str, target: str, data_dir: str | None = None) -> Corpus:
        asked.append((name, source, target, data_dir))
        train, dev, test = parallel("train", 60), parallel("validation", 3), parallel("test", 4)
        tests = {"test_one": test, "test_two": test}
        return Corpus(name, source, target, train, dev, tests, "made by hand")

    monkeypatch.setattr("intently.recipes.origin.load_corpus", load)
    return asked


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Sixty pairs, line by line, in the folder of the test."""
    return write_pairs(parallel("train", 60), tmp_path)
