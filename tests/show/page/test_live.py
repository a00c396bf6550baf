"""The live page: typing, changing the model with a hand, undo, the address, and guided moments."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intently.core.matrix import Dense
from intently.core.matrix.patterns import measure
from intently.nn.models import Transformer, TransformerOptions
from intently.show.page.script import joined
from intently.tasks.play import save_play
from intently.tasks.text import Tokenizer
from intently.tasks.translation import Translator

from .driving import press, status, until

WIDE = "The animal didn't cross the road because it was too wide."
ELLE = "L'animal n'a pas traversé la route parce qu'elle était trop large."
IL = ELLE.replace("elle", "il")
HEAD = "#view=head&entry=1&heads=0"
SAYS = "text => document.querySelector('.live-output').textContent.trim() === text"
WORDS = ".live-output :is(span, ins)"

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_play(Translator.load(), tmp_path_factory.mktemp("play") / "play.html")


def says(page: Any, text: str) -> None:
    """Wait until the translation, without words that are gone, is this."""
    code = f"""text => [...document.querySelectorAll('{WORDS}')]
        .map(word => word.textContent).join(' ') === text"""
    until(page, code, text)


def write(page: Any, text: str) -> None:
    page.fill(".live textarea", text)


def cell(page: Any, query: str, key: str) -> tuple[float, float]:
    """Find where a cell of the matrix is drawn, by pointing until the page says its name."""
    box = page.locator(".matrix-canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, 0.0
    said = "() => document.querySelector('[data-status]').textContent"

    def scan(points: list[tuple[float, float]], wanted: str) -> tuple[float, float]:
        for point in points:
            page.mouse.move(*point)
            page.wait_for_timeout(30)
            if wanted in page.evaluate(said):
                return point
        raise AssertionError(f"no cell says {wanted}: {page.evaluate(said)}")

    steps = range(0, int(box["height"]), 12)
    _, y = scan([(x, box["y"] + down) for down in steps], f"query ‘{query}")
    steps = range(0, int(box["width"]), 12)
    return scan([(box["x"] + across, y) for across in steps], f"key ‘{key}’")


def probabilities(page: Any) -> list[float]:
    """Return how probable the model's own translation is, before and after the changes, in %."""
    said = re.search(
        r"goes from (?:< )?([\d.]+) % to (?:< )?([\d.]+) % · \d+ ms",
        page.text_content(".live-told"),
    )
    assert said is not None, page.text_content(".live-told")
    return [float(share) for share in said.groups()]


def test_translates_as_one_types(opened: Open, played: Path) -> None:
    page = opened(played)
    says(page, ELLE)
    write(page, "")
    page.type(".live textarea", "The road was too wide.")
    says(page, Translator.load().translate(["The road was too wide."])[0].text)
    assert re.match(r"probability \d+ % · \d+ ms", page.text_content(".live-told"))
    assert page.input_value(".live textarea") == "The road was too wide."


def test_a_click_crosses_a_cell_out_and_undo_returns(opened: Open, played: Path) -> None:
    page = opened(played, HEAD)
    says(page, ELLE)
    page.mouse.click(*cell(page, "it", "road"))
    says(page, IL)
    assert page.text_content(".live-output ins") == "qu'il"
    assert page.text_content(".live-output del") == "qu'elle"
    before, after = probabilities(page)
    assert after < before / 2
    assert "‘it’ → ‘road’ crossed out" in page.text_content(".live-changes")
    page.keyboard.press("u")
    says(page, ELLE)
    assert page.locator(".live-changes li").count() == 0


def test_the_address_shows_the_same_thing(opened: Open, played: Path) -> None:
    page = opened(played, HEAD)
    says(page, ELLE)
    page.mouse.click(*cell(page, "it", "road"))
    says(page, IL)
    page.select_option(".live [aria-label=Search]", "5")
    until(page, "() => location.hash.includes('beams=5') && location.hash.includes('edits=')")
    again = opened(played, page.evaluate("location.hash"))
    says(again, IL)
    assert again.input_value(".live [aria-label=Search]") == "5"
    assert again.is_visible(".matrix-canvas")


def test_a_drag_sets_a_weight(opened: Open, played: Path) -> None:
    page = opened(played, HEAD)
    says(page, ELLE)
    x, y = cell(page, "it", "animal")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 60)
    page.mouse.move(x, y - 150)
    page.mouse.up()
    says(page, IL)
    until(page, "() => document.querySelector('.live-changes').textContent.includes('set to ')")
    press(page, "u")
    says(page, ELLE)


def test_keys_change_cells(opened: Open, played: Path) -> None:
    page = opened(played, HEAD)
    says(page, ELLE)
    page.mouse.move(*cell(page, "it", "road"))
    page.locator(".matrix-canvas").focus()
    page.keyboard.press("x")
    says(page, IL)
    page.keyboard.press("x")
    says(page, ELLE)
    press(page, ",")
    until(page, "() => document.querySelector('.live-changes').textContent.includes('set to')")


def test_heads_and_layers_are_switched_off_and_sharpened(opened: Open, played: Path) -> None:
    page = opened(played, HEAD)
    says(page, ELLE)
    page.click("text=Switch head off")
    says(page, IL)  # the guided head knew the noun
    page.click("text=Switch head on")
    says(page, ELLE)
    page.click("text=Switch layer off")
    until(
        page,
        "() => document.querySelector('.live-changes').textContent.includes('every head: off')",
    )
    page.click("text=Clear")
    says(page, ELLE)
    page.select_option(".hand-power select", "0.25")
    until(page, "() => document.querySelector('.live-changes').textContent.includes('power 0.25')")


def test_the_mask_is_not_lifted(opened: Open, played: Path) -> None:
    page = opened(played, "#view=head&entry=2&heads=0")
    says(page, ELLE)
    page.mouse.click(*cell(page, "<s>", "animal"))
    status(page, "causal mask")
    assert page.locator(".live-changes li").count() == 0


def test_word_by_word_shows_the_rows_written_so_far(opened: Open, played: Path) -> None:
    page = opened(played, "#view=head&entry=2&heads=0")
    says(page, ELLE)
    page.click("text=Word by word")
    until(page, "() => document.querySelector('.live-count').textContent.startsWith('token 1 of')")
    label = page.get_attribute(".matrix-canvas", "aria-label")
    assert "1 queries by 1 keys" in label
    assert page.locator(".live-likely li").count() == 5
    page.click("[aria-label='The next word']")
    until(
        page,
        "() => document.querySelector('.matrix-canvas').ariaLabel.includes('2 queries by 2 keys')",
    )


def test_six_moments(opened: Open, played: Path) -> None:
    page = opened(played)
    says(page, ELLE)
    moments = page.locator(".live-moment")
    assert moments.count() == 6
    pressed = "document.querySelector('[data-set=view][aria-pressed=true]')"
    seen = f"view => {pressed}.dataset.value === view"
    for n, view in enumerate(["text", "head", "overview", "head", "head", "head"]):
        moments.nth(n).click()
        until(page, seen, view)
        assert page.is_visible(".live-lesson")
        until(page, "() => !document.querySelector('.intently').hasAttribute('aria-busy')")
    status(page, "‘it’", "‘road’")
    write(page, WIDE.replace("wide", "tired"))
    until(page, "() => document.querySelector('.live-output').textContent.includes(\"qu'il\")")


def test_unknown_words_are_marked_in_the_line(opened: Open, played: Path) -> None:
    page = opened(played)
    until(page, "() => document.querySelector('.live-told').textContent.includes('probability')")
    assert not page.is_visible(".live-read")
    write(page, "The weather is lovely.")
    until(page, "() => document.querySelectorAll('.live-read mark').length === 2")
    assert page.inner_text(".live-read").startswith("The weather is lovely.")
    assert page.locator(".live-read mark").all_inner_texts() == ["weather", "lovely"]


def test_strange_sentences_and_addresses(opened: Open, played: Path) -> None:
    page = opened(
        played,
        "#say=%F0%9F%A6%8A&edits=x~encoder.9.self_attention~0~1~1!o~nonsense!w~encoder.1.self_attention~0~99~99~0.5",
    )
    until(page, "() => document.querySelector('.live-told').textContent.includes('ms')")
    for text in ["   ", "你好", "a" * 900, "<img src=x onerror=alert(1)>", WIDE]:
        write(page, text)
        page.wait_for_timeout(100)
    says(page, ELLE)


@pytest.mark.parametrize("width", [390, 2560])
def test_fits_phones_and_wide_screens(opened: Open, played: Path, width: int) -> None:
    page = opened(played, HEAD, width=width, color_scheme="dark", reduced_motion="reduce")
    says(page, ELLE)
    until(page, "() => document.documentElement.scrollWidth <= innerWidth")


def test_measures_are_those_of_the_library(opened: Open, played: Path) -> None:
    torch.manual_seed(0)
    weights = torch.randn(7, 9).softmax(-1)
    page = opened(played)
    modules = joined(["live"])
    asked = "measuresOf(Float32Array.from(weights.flat()), 7, 9, true)"
    told = page.evaluate(
        f"weights => {{\n{modules}\nconst found = {asked};\n"
        "return [[...found.entropy], [...found.received], found.averages];\n}",
        weights.tolist(),
    )
    A = Dense(weights)
    assert np.allclose(told[0], A.entropy(), atol=1e-5)
    assert np.allclose(told[1], A.received(), atol=1e-5)
    wanted = {name: float(one.value()) for name, one in measure(A).items()}
    assert told[2] == {name: pytest.approx(wanted[name], abs=1e-5) for name in told[2]}


def test_a_users_own_translator_plays(opened: Open, tmp_path: Path) -> None:
    torch.manual_seed(1)
    texts = ["the cat sat on the mat", "a dog ran"]
    tokenizer = Tokenizer.train(texts, "character")
    model = Transformer(TransformerOptions(tokenizer.size, tokenizer.size, width=16, inner=16))
    own = Translator(model, tokenizer, tokenizer)
    page = opened(save_play(own, tmp_path / "own.html", text="the cat"))
    until(page, "() => document.querySelector('.live-told').textContent.includes('ms')")
    for n in range(6):
        page.locator(".live-moment").nth(n).click()
        page.wait_for_timeout(150)
    assert page.input_value(".live textarea") == "the cat"


def test_only_the_last_text_counts(opened: Open, played: Path) -> None:
    page = opened(played)
    says(page, ELLE)
    page.select_option(".live [aria-label=Search]", "8")
    page.evaluate("""() => {
        const field = document.querySelector('.live textarea');
        for (let n = 5; n <= 22; n++) {
            field.value = 'The road was too wide.'.slice(0, n);
            field.dispatchEvent(new Event('input'));
        }
    }""")
    says(page, "La route était trop large.")
    until(page, "() => !document.querySelector('.intently').hasAttribute('aria-busy')")


def test_every_control_has_a_name_and_can_be_reached(opened: Open, played: Path) -> None:
    page = opened(played, HEAD + "&row=7&column=5&upto=3&edits=x~encoder.1.self_attention~0~7~5")
    until(page, "() => document.querySelectorAll('.live-changes li').length === 1")
    controls = "button, select, input, textarea"
    nameless = page.evaluate(
        """controls => [...document.querySelectorAll(controls)]
        .filter(one => one.checkVisibility())
        .filter(one => !(one.textContent.trim() || one.ariaLabel || one.labels?.length))
        .map(one => one.outerHTML)""",
        controls,
    )
    assert nameless == []
    assert page.get_attribute(".live-output", "aria-live") == "polite"
    tree = page.locator(".live").aria_snapshot()
    for part in ("Type a sentence", "Translation, as you type", "Guided moments", "Take back"):
        assert part in tree, tree
    page.locator(".live textarea").focus()
    press(page, "Tab", "Tab")
    assert page.evaluate("document.activeElement.closest('.live') !== null")


def test_a_page_that_is_cut_short_says_so(chromium: Any, played: Path, tmp_path: Path) -> None:
    text = played.read_text(encoding="utf-8")
    cut = tmp_path / "cut.html"
    cut.write_text(text[: text.index('<script type="text/plain" id="intently-worker">')])
    page = chromium.new_page()
    page.goto(cut.as_uri())
    until(page, "() => document.querySelector('[data-wait]').textContent.includes('cut short')")
    cut.write_text(text[: int(len(text) * 0.7)])
    page.goto(cut.as_uri())
    until(page, "() => document.querySelector('.live-told').textContent.includes('cannot')")
    page.close()
