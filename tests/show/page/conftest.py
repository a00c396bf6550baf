"""A real browser for the page: Chromium where there is one, and a page that may not misbehave."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intently.show.page import save_page

from .driving import SWITCHES, Watched
from .pages import translation


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser of this machine, one for all tests."""
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI installs Chromium, and it is not there")
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(SWITCHES))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a translation."""
    return save_page(translation(), tmp_path_factory.mktemp("page") / "a story #1.html")


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """``opened(address, width=…, …)`` is a page of its own; its errors fail the test at the end."""
    watched: list[Watched] = []

    def open_(address: str | Path, hash: str = "", **options: Any) -> Any:
        seen = Watched(chromium, address, hash, options)
        watched.append(seen)
        return seen.page

    yield open_
    faults = [fault for seen in watched for fault in seen.close()]
    assert not faults, faults
