"""The embedded translator, and a folder that holds a copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from intently.tasks.translation import Translator


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load()


@pytest.fixture
def folder(translator: Translator, tmp_path: Path) -> Path:
    return translator.save(tmp_path / "model")
