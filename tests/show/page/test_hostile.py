"""Words of any kind stay words: nothing they say is done, in a file or from a server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intently.show.page import save_page
from intently.show.page.items import items_of

from .driving import asked, status, until
from .pages import HOSTILE, hostile
from .serving import running

Opened = Callable[..., Any]

ALIEN = """() => {
    const own = new Set(document.body.querySelectorAll(".intently, .intently *"));
    const known = new Set(["SCRIPT", "DIV"]);
    return {
        title: document.title === "caught",
        scripts: document.querySelectorAll("script:not([data-block])").length,
        images: document.querySelectorAll("img").length,
        styles: document.querySelectorAll("style").length,
        handlers: [...own].filter(one => [...one.attributes].some(({ name }) => /^on/.test(name)))
            .length,
        outside: [...document.body.children].filter(one => !known.has(one.tagName)).length,
    };
}"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: Any) -> Path:
    return save_page(
        hostile(), tmp_path_factory.mktemp("hostile") / "p.html", title=HOSTILE[0] + "</title>"
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running(items_of(hostile()), HOSTILE[0] + "</title>") as server:
        yield server.address


@pytest.fixture(params=["file", "server"])
def hostile_page(request: pytest.FixtureRequest) -> str | Path:
    return request.getfixturevalue("file" if request.param == "file" else "address")


@pytest.mark.parametrize("view", ["overview", "head", "text"])
def test_no_word_becomes_anything_else(hostile_page: str | Path, opened: Opened, view: str) -> None:
    page = opened(hostile_page, f"#view={view}")
    page.wait_for_timeout(500)
    assert page.evaluate(ALIEN) == {
        **{"title": False, "scripts": 2, "images": 0, "styles": 1, "handlers": 0, "outside": 0}
    }
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 1280, "10,000 characters push the page apart"


def test_every_word_is_told_as_text(file: Path, opened: Opened) -> None:
    page = opened(file, "#view=text")
    words = page.locator("section[data-view=text] .word")
    until(page, "document.querySelectorAll('section[data-view=text] .word').length >= 20")
    for n, word in enumerate(HOSTILE[:8]):
        words.nth(n).click()
        said = status(page, "query ‘")
        assert len(said) < 300
        assert not set("\u202e\u202c\x00\x1b\u2028") & set(said)
        if n == 0:
            assert "</script><img" in said, word


def test_tokens_arrive_as_they_are(hostile_page: str | Path, opened: Opened) -> None:
    page = opened(hostile_page)
    tokens = asked(page, "return stored.meta.items[0].sides[0].tokens;")
    assert tokens == list(HOSTILE)


def test_a_page_cannot_ask_the_network(file: Path, chromium: Any) -> None:
    """The policy, and not good will, keeps everything inside: what breaks out is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        context = chromium.new_context()
        page = context.new_page()
        page.goto(file.as_uri())
        page.evaluate(BREAKING_OUT.replace(":9/", f":{listener.getsockname()[1]}/"))
        title = page.title()
        said = _heard(listener)
        context.close()
    assert title != "caught"
    assert said == b""


def _heard(listener: socket.socket) -> bytes:
    """All that was said on connections; a browser may open one early, and leave it silent."""
    said = b""
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return said
        with connection:
            connection.settimeout(0.3)
            try:
                said += connection.recv(1000)
            except TimeoutError:
                continue


BREAKING_OUT = """async () => {
        fetch("http://127.0.0.1:9/fetch").catch(() => {});
        new Image().src = "http://127.0.0.1:9/image";
        const add = (tag, properties) => {
            const made = Object.assign(document.createElement(tag), properties);
            (tag === "link" ? document.head : document.body).append(made);
            return made;
        };
        add("script", { src: "http://127.0.0.1:9/script.js" });
        add("script", { textContent: "document.title = 'caught'" });
        add("link", { rel: "stylesheet", href: "http://127.0.0.1:9/style.css" });
        add("iframe", { src: "http://127.0.0.1:9/frame" });
        add("form", { action: "http://127.0.0.1:9/form" }).submit();
        try { new WebSocket("ws://127.0.0.1:9/"); } catch {}
        try { navigator.sendBeacon("http://127.0.0.1:9/beacon"); } catch {}
        const button = add("div");
        button.setAttribute("onclick", "document.title = 'caught'");
        button.click();
        await new Promise(resolve => setTimeout(resolve, 500));
}"""
