"""The text of a page: every head at one word, two readings in numbers, and how words are set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intently as it
from intently.show.page import Highlight, Text, items_of, save_page
from intently.show.page.server import Server
from intently.tasks.translation.translator import Translator

from ...show.page_reader import Page
from .driving import asked, status, until, words_of
from .pages import SENTENCE, made
from .serving import running

Opened = Callable[..., Any]

HEBREW = ("החיה", "לא", "חצתה", "את", "הכביש", "כי", "הייתה", "עייפה", ".")
PIECES = ("ĠThe", "Ġroad", "Ġwas", "Ġwide", "Ċ", "ĠSo", "Ġthe", "Ġanim", "al", "Ġdid", "n't", ".")


def causal(words: tuple[str, ...], written: bool = False) -> dict[str, it.LazyMatrix]:
    q, k = 2 * made(1, 4, len(words), 16), made(1, 4, len(words), 16, seed=1)
    rows = (*words[1:], "") if written else words
    return {"h.0": it.attend(q, k, mask=it.causal()).label(rows, words)}


@pytest.fixture(scope="module")
def generation(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("text") / "generation.html"
    return save_page(causal(PIECES, written=True), path, sides=[Text(PIECES, produced=5)])


def test_without_a_word_it_shows_what_is_looked_at(story: Path, opened: Opened) -> None:
    page, read = opened(story, "#view=text&entry=1&heads=1"), Page.read(story)
    received = read.weights(1)[1].sum(0)
    page.wait_for_selector("section[data-view=text] .top li")
    listed = page.locator("section[data-view=text] .top li").evaluate_all(
        "all => all.map(li => [li.querySelector('b').textContent, "
        "Number(li.querySelector('.weight').textContent)])"
    )
    words = words_of(read)
    *listed, (others, rest) = listed
    order = np.argsort(-received)
    assert [name for name, _ in listed] == [words[j] for j in order[: len(listed)]]
    first, left = np.split(received[order], [len(listed)])
    assert [value for _, value in listed] == pytest.approx(first, abs=0.006)
    assert others == f"{len(left)} more words" and rest == pytest.approx(left.sum(), abs=0.006)


def test_two_readings_in_numbers(story: Path, opened: Opened) -> None:
    page = opened(story, "#view=text&entry=1&heads=0&row=7&pin=0.1.2.at.7")
    read = Page.read(story)
    until(page, "!document.querySelector('.apart').hidden")
    p, q = read.weights(1)[2, 7], read.weights(1)[0, 7]
    middle = (p + q) / 2
    divergence = (p * np.log(p / middle) + q * np.log(q / middle)).sum() / 2
    said = page.text_content(".apart")
    assert f"{round(100 * np.minimum(p, q).sum())} % of the weight in common" in said
    assert f"divergence {divergence:.2f} nats" in said
    far, words = int(np.abs(p - q).argmax()), words_of(read)
    apart = re.search(rf"most apart: ‘{words[far]}’ ([\d.]+) → ([\d.]+)", said)
    assert apart and [float(x) for x in apart.groups()] == pytest.approx([p[far], q[far]], abs=5e-3)
    page.get_by_role("button", name="Swap").click()
    until(page, "location.hash.includes('heads=2')")
    until(page, "location.hash.includes('pin=0.1.0.at.7')")
    page.get_by_role("button", name="Unpin A").click()
    page.wait_for_selector(".card.held", state="hidden")


def test_the_list_keeps_the_focus_and_marks_the_pair(story: Path, opened: Opened) -> None:
    page = opened(story, "#view=text&entry=1&heads=0&row=7")
    page.locator(".top button").nth(1).focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.top [aria-pressed=true]') !== null")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert page.locator(".word.partner").count() == 1
    name = page.locator(".top [aria-pressed=true] b").text_content()
    status(page, f"→ key ‘{name}’")


def test_pieces_are_spelled_as_words(generation: Path, opened: Opened) -> None:
    page = opened(generation, "#view=text&heads=1&row=5")
    page.wait_for_selector(".word.writes")
    text = page.locator("section[data-view=text] .words").evaluate("list => list.innerText")
    assert [line.strip() for line in text.split("\n") if line.strip()] == [
        "The road was wide⏎",
        "So the animal didn't.",
    ]
    assert page.text_content(".card:not(.held) h2") == "‘So (writes the)’ looks at"
    assert page.locator(".word.writes").text_content() == "the"
    produced = page.locator(".word.produced").all_text_contents()
    assert produced == ["So", "the", "anim", "al", "did", "n't", "."]


def test_all_that_was_written_is_marked(opened: Opened, tmp_path: Path) -> None:
    (one,) = Translator.load().translate([SENTENCE])
    told = one.attention["decoder.0.cross_attention"]
    written, source = (tuple(side) for side in told.labels)
    sides = [Text(source), Text(("<s>", *written[:-1]), produced=1)]
    path = save_page(one.attention, tmp_path / "written.html", sides=sides)
    entries = Page.read(path).meta["items"][0]["entries"]
    cross = [entry["name"] for entry in entries].index("decoder.0.cross_attention")
    page = opened(path, f"#view=text&entry={cross}&row=2")
    page.wait_for_selector(".word.pinned")
    plain = [word.lstrip("▁") for word in written]
    assert page.locator(".card:not(.held) .word.produced").all_text_contents() == plain
    assert page.text_content(".card:not(.held) h2") == f"‘{plain[2]}’ looked at"


def test_right_to_left(opened: Opened, tmp_path: Path) -> None:
    page = opened(save_page(causal(HEBREW), tmp_path / "rtl.html"), "#view=text&heads=0&row=5")
    page.wait_for_selector(".top button")
    assert page.locator("section[data-view=text] .words").get_attribute("dir") == "rtl"
    lefts = page.locator("section[data-view=text] .word").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().left)"
    )
    assert lefts == sorted(lefts, reverse=True)
    assert "‘\u2068כי\u2069’ → key" in status(page, "query ‘")
    page.locator("section[data-view=text] .word").nth(5).focus()
    page.keyboard.press("ArrowLeft")
    status(page, "query ‘\u2068הייתה\u2069’")


IN_SIGHT = """(({ top }) => 60 < top && top < 740)(
    document.querySelectorAll("section[data-view=text] .word")[2500].getBoundingClientRect()
)"""


def test_a_long_text_opens_at_its_word(opened: Opened, tmp_path: Path) -> None:
    words = tuple(f"word{n}" for n in range(3000))
    q, k = made(1, 1, 3000, 8), made(1, 1, 3000, 8, seed=1)
    A = it.attend(q, k, mask=it.causal()).label(words, words)
    page = opened(save_page({"h.0": A}, tmp_path / "long.html"), "#view=text&row=2500")
    word = page.locator("section[data-view=text] .word").nth(2500)
    until(page, IN_SIGHT)
    assert page.evaluate("scrollY") > 500
    page.wait_for_timeout(700)
    assert page.evaluate(IN_SIGHT)  # and stays there once every chunk near it has its height
    assert word.get_attribute("aria-selected") == "true"
    status(page, "query ‘word2500’")


def test_highlights_and_notes_stand_beside(opened: Opened, tmp_path: Path) -> None:
    items = items_of(causal(HEBREW), name="one") + items_of(
        causal(PIECES), name="two", note="A note of the second."
    )
    told = [Highlight(1, "h.0", 2, "In 97.3 % of 412 sentences it looks there.")]
    path = save_page(items, tmp_path / "told.html", title="Told", highlights=told)
    page = opened(path, "#view=text&item=1&heads=2&row=3")
    page.wait_for_selector(".card:not(.held) .measured", state="visible")
    assert page.locator(".measured:visible").text_content() == told[0].text
    assert page.text_content("[data-note]") == "A note of the second."
    page.keyboard.press("]")
    page.wait_for_selector(".card:not(.held) .measured", state="hidden")
    assert page.text_content("[data-title]") == page.title() == "Told"


def test_the_heading_follows_the_text_that_is_shown(opened: Opened, tmp_path: Path) -> None:
    items = items_of(causal(HEBREW), name="one") + items_of(causal(PIECES), name="two")
    page = opened(save_page(items, tmp_path / "two.html"))
    assert page.text_content("[data-title]") == "one"
    page.locator("[data-pick=item]").select_option("1")
    until(page, "document.querySelector('[data-title]').textContent === 'two'")


def test_a_saved_text_says_nothing_about_pointing(story: Path, opened: Opened) -> None:
    page = opened(story, "#view=text&entry=1&heads=1")
    page.wait_for_selector(".how", state="visible")
    page.locator("[data-do=save]").click()
    with page.expect_download() as download:
        page.locator("[data-do=svg]").click()
    saved = Path(download.value.path()).read_text(encoding="utf-8")
    assert "summed over all queries." in saved
    assert "Point at" not in saved and "Enter" not in saved


def test_a_page_with_nan_says_so(opened: Opened, tmp_path: Path) -> None:
    q = made(1, 2, 9, 8)
    q[:, 1, 4] = float("nan")
    page = opened(save_page(it.attend(q, made(1, 2, 9, 8)), tmp_path / "nan.html"))
    assert page.text_content("[data-bound]").endswith("; some weights are NaN, not a number")


def test_small_buttons_can_be_hit_on_a_narrow_page(story: Path, opened: Opened) -> None:
    page = opened(story, "#view=head", width=390, height=800)
    buttons = page.locator(".stepper button:visible").all()
    assert buttons
    for button in buttons:
        box = button.bounding_box()
        assert box["width"] >= 24 and box["height"] >= 24
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.fixture
def explored() -> Iterator[Server]:
    with running(items_of(causal(PIECES)), "served") as server:
        yield server


@pytest.mark.parametrize("view", ["text", "head"])
def test_a_page_whose_server_is_gone_says_so(explored: Server, chromium: Any, view: str) -> None:
    page = chromium.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{explored.address}#view={view}&heads=0&row=5")
    status(page, "query ‘So’ → key ‘")
    assert "exact" in page.text_content("[data-bound]")
    explored.shutdown()
    explored.server_close()
    page.evaluate("hash => { location.hash = hash; }", f"#view={view}&heads=1&row=7")
    until(page, "/does not answer/.test(document.querySelector('[data-bound]').textContent)")
    page.wait_for_timeout(300)
    assert "→ key" not in page.text_content("[data-status]")
    page.close()
    assert not faults


def test_a_preview_has_no_numbers(explored: Server, opened: Opened) -> None:
    """Of a preview only the proportions are known."""
    page = opened(explored.address, "#view=head&heads=0")
    before, after = asked(page, PREVIEW)
    assert "preview" in before and "weight" not in before
    assert not [text for text in before if text[0].isdigit()]
    assert "weight" in after and "preview" not in after and "0" in after


PREVIEW = """{
    const about = servedPage(stored), root = document.querySelector(".intently");
    const names = namesOf(about.meta, 0, 0), whole = await overviewOf(about, 0, 0, "0");
    const sheet = layout(600, 500, 12, 12, { rows: 40, columns: 40 });
    const scene = { sheet, names, whole, span: { r0: 0, r1: 12, c0: 0, c1: 12 }, hidden: false,
        scale: scaleOf(whole.values, false, 1e-7), entropy: null, received: null,
        range: "", error: 1e-7 };
    const texts = (exact) => {
        const said = [];
        const does = {
            text: (x, y, text) => said.push(text), clip: (x, y, w, h, inner) => inner(),
        };
        const painter = new Proxy({}, { get: (_, name) => does[name] ?? (() => {}) });
        paintSheet(painter, root, { ...scene, exact });
        return said;
    };
    return [texts(null), texts(whole)];
}"""
