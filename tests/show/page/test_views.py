"""The page in a real browser: pointed at, walked with keys, linked to, saved, dark, and narrow."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import intently as it
from intently.show.page import save_page

from ...show.page_reader import Page
from .driving import press, status, until, words_of
from .pages import picture

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: Any) -> Path:
    return picture(tmp_path_factory.mktemp("views") / "picture.html")


def test_the_page_opens_on_all_heads(story: Path, opened: Opened) -> None:
    page = opened(story)
    tiles = page.locator(".overview-tile")
    assert tiles.count() == 24
    assert "24 heads" in page.text_content(".overview-count")
    label = tiles.nth(5).get_attribute("aria-label")
    assert re.match(r"encoder\.1\.self_attention, head 1\. entropy \d\.\d+, ", label)
    until(page, PAINTED, ".overview-tile canvas")


def test_one_head_is_no_plural(tmp_path: Path, opened: Opened) -> None:
    q = torch.randn(1, 5, 4)
    path = save_page(it.attend(q, q), tmp_path / "one.html")
    assert opened(path, "#view=overview").text_content(".overview-count") == "1 head"
    under = opened(path, "#view=text&heads=mean").text_content("body")
    assert "1 heads" not in under


PAINTED = """selector => [...document.querySelectorAll(selector)].slice(0, 8).every(canvas => {
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [canvas.width, canvas.height];
    const brush = copy.getContext("2d", { willReadFrequently: true });
    brush.drawImage(canvas, 0, 0);
    const { data } = brush.getImageData(0, 0, copy.width, copy.height);
    return new Set(new Uint32Array(data.buffer)).size > 1;
})"""
"""Whether the first canvases hold a picture."""


def test_heads_are_sorted_and_filtered_by_statistics(story: Path, opened: Opened) -> None:
    page, meta = opened(story), Page.read(story).meta
    entropy = [
        (value, entry["name"], head)
        for entry in meta["items"][0]["entries"]
        for head, value in enumerate(entry["statistics"]["entropy"])
    ]
    page.locator(".overview-sort").select_option("entropy")
    until(page, "document.querySelectorAll('.overview-value').length === 24")
    labels = page.locator(".overview-tile").evaluate_all("all => all.map(one => one.ariaLabel)")
    places = [re.match(r"(.*), head (\d+)\.", label).groups() for label in labels]  # type: ignore[union-attr]
    ascending = [(name, str(head)) for _, name, head in sorted(entropy)]
    assert places in (ascending, ascending[::-1])
    page.keyboard.press("/")
    page.keyboard.type("entropy < 0.5")
    few = sum(value < 0.5 for value, _, _ in entropy)
    assert 0 < few < 24
    until(page, "n => document.querySelectorAll('.overview-tile').length === n", few)
    assert page.text_content(".overview-count") == f"{few} of 24 heads"
    until(page, "location.hash.includes('filter=')")


SAID = "document.querySelector('[data-status]').textContent"


def test_keys_alone_read_a_weight(story: Path, opened: Opened) -> None:
    page, read = opened(story), Page.read(story)
    page.keyboard.press("o")
    page.locator(".overview-tile").first.focus()
    press(page, "ArrowRight", "ArrowRight", "Enter")
    page.wait_for_selector(".matrix-canvas", state="visible")
    until(page, "location.hash.includes('view=head')")
    label = page.get_attribute(".matrix-canvas", "aria-label")
    assert label.startswith("Weights of encoder.0.self_attention, head 2: 13 queries by 13 keys.")
    page.locator(".matrix-canvas").focus()
    press(page, "0", "ArrowDown", "ArrowUp", "ArrowUp", "ArrowRight")
    said = status(page, "query ‘", "→ key ‘")
    found = re.search(r"query ‘(.*)’ → key ‘(.*)’: (?:< )?([\d.]+)", said)
    assert found is not None
    words, w = words_of(read), read.weights(0)[2]
    i, j = words.index(found[1]), words.index(found[2])
    assert float(found[3]) == pytest.approx(w[i, j], abs=0.006)
    page.keyboard.press("Enter")
    until(page, f"location.hash.includes('row={i}') && location.hash.includes('column={j}')")
    page.keyboard.press("]")
    until(page, "location.hash.includes('heads=3')")
    page.keyboard.press("}")
    until(page, "location.hash.includes('entry=1')")
    press(page, "+", "+", "+")
    until(page, "/r0=|r1=/.test(location.hash)")
    page.keyboard.press("0")
    until(page, "!/r0=|r1=|c0=|c1=/.test(location.hash)")


CLOSE = """() => {
    const of = (key) => Number(new RegExp(`${key}=([0-9.]+)`).exec(location.hash)?.[1]);
    return of("r1") - of("r0") < 4;
}"""


def test_the_wheel_zooms_to_single_weights_and_back(story: Path, opened: Opened) -> None:
    page = opened(story, "#view=head&entry=1&heads=1")
    until(page, PAINTED, ".matrix-base")
    box = page.locator(".matrix-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    status(page, "query ‘", "→ key ‘")
    before = page.evaluate("location.hash")
    for _ in range(6):
        page.mouse.wheel(0, -240)
    until(page, "before => location.hash !== before", before)
    until(page, CLOSE)
    for _ in range(8):
        page.mouse.wheel(0, 240)
    until(page, "!/r0=|r1=/.test(location.hash)")


def test_pointing_tells_the_weight_that_python_computes(story: Path, opened: Opened) -> None:
    page, read = opened(story, "#view=head&entry=1&heads=2"), Page.read(story)
    words, w = words_of(read), read.weights(1)[2]
    box = page.locator(".matrix-canvas").bounding_box()
    seen = set()
    said = ""
    for step in range(6):  # each a cell further
        x = box["x"] + box["width"] * (0.35 + 0.08 * step)
        y = box["y"] + box["height"] * (0.65 - 0.07 * step)
        page.mouse.move(x, y)
        until(page, f"before => {SAID} !== before && {SAID}.includes('→ key')", said)
        said = page.evaluate(SAID)
        found = re.search(r"query ‘(.*)’ → key ‘(.*)’: ((?:< )?[\d.]+)", said)
        assert found is not None, said
        i, j = words.index(found[1]), words.index(found[2])
        seen.add((i, j))
        assert float(found[3].removeprefix("< ")) == pytest.approx(w[i, j], abs=0.006)
        until(page, f"document.querySelector('.beside-weight strong').textContent === '{found[3]}'")
    assert len(seen) == 6


def test_a_word_shows_what_it_looks_at(story: Path, opened: Opened) -> None:
    page, read = opened(story, "#view=text&entry=1&heads=mean"), Page.read(story)
    words, w = words_of(read), read.weights(1).mean(0)
    i = words.index("it")
    page.locator("section[data-view=text] .word").nth(i).click()
    said = status(page, "query ‘it’ → key ‘")
    best = int(w[i].argmax())
    assert f"→ key ‘{words[best]}’: {w[i, best]:.2f}" in said
    until(page, f"location.hash.includes('row={i}')")
    page.keyboard.press("f")
    status(page, "→ key ‘it’")
    page.keyboard.press("ArrowRight")
    status(page, f"→ key ‘{words[i + 1]}’")


def test_a_pinned_head_reads_the_word_that_is_read(story: Path, opened: Opened) -> None:
    page = opened(story, "#view=text&entry=1&heads=0&pin=0.1.2")
    page.locator(".card:not(.held) .word").nth(7).click()
    until(page, "document.querySelector('.held h2').textContent === '‘it’ looks at'")
    until(page, "!document.querySelector('.apart').hidden")


@pytest.mark.parametrize("hash", ["entry=5&heads=0", "entry=1&heads=0&row=7"])
def test_threads_join_words_and_are_saved(
    story: Path, opened: Opened, hash: str, tmp_path: Path
) -> None:
    """Those of all words of two texts, or of the word that is chosen."""
    page = opened(story, f"#view=text&{hash}")
    until(page, PAINTED, ".card:not(.held) .threads")
    page.click("[data-do=save]")
    with page.expect_download() as waiting:
        page.click("[data-do=svg]")
    waiting.value.save_as(tmp_path / "threads.svg")
    root = ET.fromstring((tmp_path / "threads.svg").read_text(encoding="utf-8"))
    lines = [one for one in root.iter() if one.get("stroke-width") and one.get("stroke")]
    assert len(lines) > (13 if "entry=5" in hash else 0)


@pytest.mark.parametrize(
    "hash",
    [
        "#view=head&entry=3&heads=2&row=4&column=5&r0=2&r1=9&c0=1&c1=8&scale=log",
        "#view=text&entry=1&heads=mean&row=7&looks=at",
        "#view=overview&sort=entropy&filter=layer+1",
        "#view=text&entry=5&heads=1&theme=dark",
    ],
)
def test_the_address_holds_the_whole_state(story: Path, opened: Opened, hash: str) -> None:
    def kept(address: str) -> dict[str, str]:
        return dict(pair.split("=") for pair in address.split("#")[1].split("&") if pair)

    page = opened(story, hash)
    page.wait_for_timeout(500)
    first = page.screenshot()
    press(page, "?", "Escape")
    page.reload()
    page.wait_for_selector("[data-wait]", state="detached")
    page.wait_for_timeout(500)
    usual = {("view", "overview"), ("looks", "at")}
    assert kept(hash).items() - usual <= kept(page.url).items()
    assert _alike(first, page.screenshot())


def test_back_and_forward(story: Path, opened: Opened) -> None:
    page = opened(story)
    for go, view in (
        (page.get_by_role("button", name="Matrix", exact=True).click, "head"),
        (page.get_by_role("button", name="Words", exact=True).click, "text"),
        (page.go_back, "head"),
        (page.go_back, "overview"),
        (page.go_forward, "head"),
    ):
        go()
        page.wait_for_selector(f"section[data-view={view}]", state="visible")


@pytest.mark.parametrize(
    "hash",
    [
        "#view=head&entry=99&heads=77&row=1e9&column=-4&r0=NaN&r1=Infinity",
        "#view=<img src=x onerror=alert(1)>&theme=__proto__&item=-1",
        "#pin=0.0.0.at.99999&view=text&row=12345678901234567890",
        "#pin=0.0.all.at.3&view=text&row=2",
        "#" + "a" * 5000,
        "#%E0%A4%A",
    ],
)
def test_addresses_are_not_believed(story: Path, opened: Opened, hash: str) -> None:
    page = opened(story, hash)
    page.wait_for_timeout(300)
    counts = {"main > section:visible": 1, "img": 0, ".card.held:visible": 0}
    assert {found: page.locator(found).count() for found in counts} == counts


def test_dark_and_light(story: Path, opened: Opened) -> None:
    def ground(page: Any) -> tuple[int, ...]:
        style = "getComputedStyle(document.querySelector('.intently')).backgroundColor"
        return tuple(map(int, re.findall(r"\d+", page.evaluate(style))[:3]))

    dark = opened(story, "#view=head", color_scheme="dark")
    assert max(ground(dark)) < 60
    light = opened(story, "#view=head", color_scheme="light")
    assert min(ground(light)) > 240
    theme = light.locator("button[aria-label^='Colours']")
    for _ in range(3):
        if theme.get_attribute("aria-label") == "Colours: dark":
            break
        theme.click()
    until(light, "document.querySelector('.intently').dataset.theme === 'dark'")
    assert max(ground(light)) < 60
    until(light, "location.hash.includes('theme=dark')")


@pytest.mark.parametrize("view", ["overview", "head", "text"])
def test_a_narrow_screen(story: Path, opened: Opened, view: str) -> None:
    page = opened(
        story,
        f"#view={view}&entry=5&heads=1",
        width=390,
        height=844,
        color_scheme="dark",
        device_scale_factor=2,
        has_touch=True,
    )
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    small = page.evaluate("""() => [...document.querySelectorAll("button, select, input")]
        .filter(one => one.checkVisibility() && !one.closest("nav.controls"))
        .map(one => [one.textContent.trim() || one.ariaLabel, one.getBoundingClientRect()])
        .filter(([, box]) => box.height < 24 || box.width < 20 || box.right > 391 || box.left < -1)
        .map(([name]) => name)""")
    assert small == []
    strip = page.locator("nav.controls").bounding_box()
    assert strip["height"] <= 64 and strip["width"] <= 390  # one strip, which scrolls sideways
    least = "[...document.querySelectorAll('nav.controls button')].filter(x => x.checkVisibility())"
    assert page.evaluate(f"Math.min(...{least}.map(x => x.getBoundingClientRect().height))") >= 24


@pytest.mark.parametrize("view", ["overview", "head", "text"])
def test_everything_has_a_name_and_a_visible_focus(story: Path, opened: Opened, view: str) -> None:
    page = opened(story, f"#view={view}&entry=1&heads=1")
    page.wait_for_timeout(300)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate("""() => {
            const one = document.activeElement, style = getComputedStyle(one);
            const box = one.getBoundingClientRect();
            const label = one.labels?.[0]?.textContent;
            return { tag: one.tagName, key: [...document.querySelectorAll("*")].indexOf(one),
                name: one.ariaLabel || one.textContent.trim() || label || one.title,
                ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1
                    || style.boxShadow !== "none", seen: box.width > 0 && box.height > 0 };
        }""")
        if at["tag"] == "BODY" or at["key"] in {one["key"] for one in reached}:
            break
        reached.append(at)
    assert len(reached) >= 6
    assert [one for one in reached if not (one["name"] and one["ring"] and one["seen"])] == []


def test_help_lists_the_keys(story: Path, opened: Opened) -> None:
    page = opened(story)
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    assert page.locator("dialog kbd").count() > 12
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="hidden")


def test_patches_of_a_picture(pictured: Path, opened: Opened) -> None:
    page, read = opened(pictured, "#view=text&entry=0&heads=0"), Page.read(pictured)
    frame = page.locator(".picture").first
    frame.wait_for(state="visible")
    box = frame.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 2.5 / 6, box["y"] + box["height"] * 1.5 / 4)
    until(page, "location.hash.includes('row=9')")
    status(page, f": {read.weights(0)[0][9].max():.2f}")
    until(page, PAINTED, ".picture canvas")
    assert page.locator(".picture img").first.evaluate("one => one.naturalWidth") > 0


def _alike(first: bytes, second: bytes) -> bool:
    """Whether two screenshots show the same, but for single pixels."""
    pair = [np.asarray(Image.open(io.BytesIO(x)).convert("L"), float) for x in (first, second)]
    return pair[0].shape == pair[1].shape and bool((np.abs(pair[0] - pair[1]) > 60).mean() < 2e-3)
