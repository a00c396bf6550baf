"""A web server for downloads, and a cache folder of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .serving import Site, serving


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of downloads."""
    monkeypatch.setenv("INTENTLY_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server on this machine, asked directly whatever proxy there is."""
    monkeypatch.setenv("no_proxy", "*")
    with serving() as site:
        yield site
