"""Driving a page: opening it under watch, and asking its own modules for numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from intently.show.page.script import joined

from ...show.page_reader import Page

SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

WAIT = 20_000
"""How long a page may take on a busy machine, in ms."""


class Watched:
    """A page in a context of its own, whose console, errors and requests are written down."""

    def __init__(
        self, browser: Any, address: str | Path, hash: str, options: Mapping[str, Any]
    ) -> None:
        self.address = address.as_uri() if isinstance(address, Path) else address
        size = {"width": options.get("width", 1280), "height": options.get("height", 800)}
        more = {key: value for key, value in options.items() if key not in ("width", "height")}
        self.context = browser.new_context(viewport=size, accept_downloads=True, **more)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.faults: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.goto(self.address + hash)
        self.page.wait_for_selector("[data-wait]", state="hidden")

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        """A file may ask for nothing at all but itself; a served page for what is below it."""
        own = request.url.split("#")[0]
        inside = self.address.startswith("http") and own.startswith(self.address)
        if own != self.address and not inside and not own.startswith(("data:", "blob:")):
            self.faults.append(f"request: {request.url[:200]}")

    def close(self) -> list[str]:
        """Close the page, and return what it did that it should not."""
        self.context.close()
        return self.faults


def asked(page: Any, code: str) -> Any:
    """Run ``code`` in a page, where the functions of its own script are known.

    The script hides its names. What runs is the same text once more, in the same document, on the
    same blocks, with ``stored`` the opened page; that it is the text of the page is checked first.
    """
    modules, _ = joined(["start"]).split("// start.js\n")
    assert modules in page.evaluate("document.scripts[1].textContent")
    return page.evaluate(
        f'async () => {{ "use strict";\n{modules}\nconst stored = openPage(document);\n{code}\n}}'
    )


def numbers(
    page: Any, wanted: Sequence[tuple[int, str, str]], source: str = "headSource(stored)"
) -> list[np.ndarray]:
    """Numbers as the page's script computes them, of (entry, heads, question): ``row(3)``, say."""
    lines = [
        f'found.push(Array.from(await (await source.open(0, {entry}, "{heads}")).{what}));'
        for entry, heads, what in wanted
    ]
    code = f"const source = {source}, found = [];\n" + "\n".join(lines)
    return [np.array(one) for one in asked(page, code + "\nreturn found;")]


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def words_of(read: Page, side: int = 0) -> list[str]:
    """Return the tokens of a text of the first item, without the marks where words begin."""
    return [token.lstrip("▁") for token in read.meta["items"][0]["sides"][side]["tokens"]]


def until(page: Any, code: str, given: Any = None) -> None:
    """Wait until an expression or function of the page holds.

    Playwright's own waiting evaluates strings inside the page, which its policy forbids.
    """
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(code, given):
        assert time.monotonic() < end, f"never: {code} ({given}) at {page.url[-200:]}"
        page.wait_for_timeout(50)


def status(page: Any, *parts: str) -> str:
    """Wait until the live line says all of the parts, and return it."""
    for part in parts:
        until(
            page, "part => document.querySelector('[data-status]').textContent.includes(part)", part
        )
    return page.text_content("[data-status]")
