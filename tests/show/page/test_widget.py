"""The page as a notebook widget: twice in one document, blocks and state over anywidget's model."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import intently as it
from intently.errors import MissingLibraryError
from intently.show.page import writing as module
from intently.show.page.writing import widget

from ...show.page_reader import Page
from .driving import WAIT
from .pages import made

WORDS = ("the", "cat", "sat", "on", "the", "mat")

RENDER = """async ({esm, traits, ids}) => {
    const url = URL.createObjectURL(new Blob([esm], {type: "text/javascript"}));
    const shown = (await import(url)).default;
    for (const id of ids) {
        const hearers = {}, values = {...traits};
        const tell = (event, content) => (hearers[event] ?? []).forEach(hear => hear(content));
        const model = {
            get: name => values[name],
            set: (name, value) => { values[name] = value; },
            save_changes: () => { document.body.dataset[id] = values.address; },
            send: async content => tell("msg:custom", await ask(content)),
            on: (event, hear) => (hearers[event] ??= []).push(hear),
            off: (event, hear) => { hearers[event] = hearers[event].filter(one => one !== hear); },
        };
        window[id + "_goes"] = address => { values.address = address; tell("change:address"); };
        window[id + "_ends"] = shown.render({model, el: document.getElementById(id)});
    }
}"""
"""What anywidget does: load the module, hand over a model, say what the kernel says."""


def matrices() -> dict[str, it.LazyMatrix]:
    x = 2 * made(1, 4, 6, 16)
    return {f"layer.{n}": it.attend(x + n, x).label(WORDS, WORDS) for n in range(2)}


@pytest.fixture
def shown() -> Any:
    pytest.importorskip("anywidget")
    return widget(matrices(), title="six words", start={"view": "text", "row": 1})


def replies(shown: Any, content: object) -> list[Any]:
    sent: list[Any] = []
    shown.send = sent.append
    shown._handle_custom_msg(content, [])
    return sent


def test_blocks_cross_over_when_asked(shown: Any) -> None:
    (reply,) = replies(shown, {"block": 0})
    assert reply["block"] == 0 and isinstance(reply["text"], str)
    for asked in ({"block": 10**6}, {"block": -1}, {"block": True}, {"block": "0"}, {}, None, [0]):
        assert replies(shown, asked) == []


def test_two_widgets_in_one_notebook(shown: Any, chromium: Any) -> None:
    faults: list[str] = []
    page = chromium.new_page()
    page.set_default_timeout(WAIT)
    try:
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: said.type == "error" and faults.append(said.text))
        page.expose_function("ask", lambda content: replies(shown, content)[0])
        page.set_content("<style>button {font-size: 90px}</style><div id=a></div><div id=b></div>")
        page.evaluate("addEventListener('keydown', event => { window.leaked = event.key; })")
        traits = {name: getattr(shown, name) for name in ("meta", "body", "style", "address")}
        page.evaluate(RENDER, {"esm": shown._esm, "traits": traits, "ids": ["a", "b"]})

        w = Page.of(matrices()).weights(0)[0]
        best = int(w[1].argmax())
        for side in ("#a", "#b"):
            line = page.locator(f"{side} [data-status]")
            told = f"query ‘cat’ → key ‘{WORDS[best]}’: {w[1, best]:.2f}"
            line.filter(has_text=told).wait_for()
        assert (
            page.locator("#a button").first.evaluate("b => getComputedStyle(b).fontSize") == "14px"
        )

        page.locator("#a .word").nth(4).click()
        page.locator("#a h2", has_text="‘the’").first.wait_for()
        page.keyboard.press("]")
        page.locator("#a .under", has_text="head 1").first.wait_for()
        page.wait_for_function("document.body.dataset.a === '#heads=1&row=4'")
        assert page.evaluate("[window.leaked, document.body.dataset.b, location.hash]") == [
            *(None, None, "")
        ]
        page.evaluate("b_goes('#view=head&entry=1&heads=2&row=2&column=5')")
        page.locator("#b .matrix-canvas").wait_for()
        page.locator("#b [data-status]", has_text="query ‘sat’ → key ‘mat’").wait_for()
        assert page.locator("#a .card:not(.held) h2").is_visible()
        page.evaluate("[a_ends(), b_ends()]")
        assert faults == []
    finally:
        page.close()


def test_without_anywidget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    module.widget_class.cache_clear()
    with pytest.raises(MissingLibraryError) as told:
        widget(matrices())
    assert str(told.value) == (
        "widget: expected anywidget, which shows pages in notebooks; got an environment without "
        "it. Run pip install 'intently[notebook]', or use show.save_page."
    )
