"""Words beside the matrix, marks, find, a second head, rollout, tables, files that tell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import intently as it
from intently.show.page import save_page

from ...show.page_reader import Page
from .driving import numbers, until

Opened = Callable[..., Any]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four heads that look at the key before, at the first, at themselves, and everywhere."""
    n = 12
    before = torch.eye(n).roll(1, 0)
    before[0] = torch.eye(n)[0]
    first = torch.zeros(n, n)
    first[:, 0] = 1
    weights = torch.stack([before, first, torch.eye(n), torch.full((n, n), 1 / n)])
    labels = [f"w{i}" for i in range(n)]
    path = tmp_path_factory.mktemp("grow") / "patterns.html"
    matrix = it.core.matrix.Dense(weights).label(labels, labels)
    kinds = {("layer.0", n): kind for n, kind in enumerate(("previous", "first", "self"))}
    return save_page({"layer.0": matrix}, path, kinds=kinds)


def test_tiles_say_what_the_table_says_of_a_head(opened: Opened, patterns: Path) -> None:
    page = opened(patterns, "#view=overview")
    marks = page.locator(".overview-tile").all_text_contents()
    assert [mark.split(maxsplit=1)[1:] for mark in marks] == [["previous"], ["first"], ["self"], []]
    assert "texts of random tokens" in page.text_content(".overview-scales")
    assert "previous" in page.locator(".overview-tile").first.get_attribute("aria-label")


def test_tiles_grow_with_the_screen(opened: Opened, patterns: Path) -> None:
    sizes = [
        opened(patterns, "#view=overview", width=width, height=height)
        .locator(".overview-tile")
        .first.bounding_box()["width"]
        for width, height in ((1000, 420), (2560, 1300))
    ]
    assert sizes[1] > 1.5 * sizes[0]


def test_words_stand_beside_the_matrix_on_a_wide_screen(opened: Opened, story: Path) -> None:
    page = opened(story, "#view=head&entry=5&heads=1&row=2", width=1500, height=900)
    matrix, text = (page.locator(f"section[data-view={name}]") for name in ("head", "text"))
    assert matrix.is_visible() and text.is_visible()
    assert text.bounding_box()["x"] >= matrix.bounding_box()["x"] + matrix.bounding_box()["width"]
    until(
        page, "() => document.querySelector('[data-view=text]').textContent.includes('looked at')"
    )
    page.set_viewport_size({"width": 1200, "height": 900})
    until(page, "() => document.querySelector('[data-view=text]').hidden")


def test_a_token_is_found_and_a_position_gone_to(opened: Opened, patterns: Path) -> None:
    page = opened(patterns, "#view=head&r0=0&r1=4&c0=0&c1=4")
    page.keyboard.press("g")
    page.keyboard.type("w1")
    assert page.text_content("[data-found]") == "1 of 3"
    page.keyboard.press("Enter")
    assert page.text_content("[data-found]") == "2 of 3"
    until(page, "() => /row=10/.test(location.hash) && /r1=12|r0=8/.test(location.hash)")
    page.keyboard.press("Shift+Enter")
    until(page, "() => /row=1(&|$)/.test(location.hash)")
    page.fill("[data-find]", "#7")
    until(page, "() => /row=7/.test(location.hash)")
    page.fill("[data-find]", "#12")
    assert page.text_content("[data-found]") == "not found"


TOLD = "text => document.querySelector('.difference-reading').textContent.includes(text)"


def test_a_pinned_head_and_the_difference(opened: Opened, story: Path) -> None:
    page = opened(story, "#view=head&entry=5&heads=0")
    page.keyboard.press("p")
    until(page, "() => /pin=0.5.0/.test(location.hash)")
    page.select_option("[data-pick=heads]", "1")
    page.evaluate("location.hash += '&row=2&column=1'")
    until(
        page, "() => /A [^,]+, B/.test(document.querySelector('.difference-reading').textContent)"
    )
    here, there = (row[1] for row in numbers(page, [(5, "1", "row(2)"), (5, "0", "row(2)")]))
    told = page.text_content(".difference-reading")
    sign = "+" if here >= there else "−"
    assert f"difference {sign}" in told
    found = float(told.split(sign)[-1].replace("< ", ""))
    assert found == pytest.approx(abs(here - there), abs=0.006)
    assert page.locator(".difference canvas").count() == 2
    page.locator("[data-do=swap]:visible").click()
    until(page, "() => !/heads/.test(location.hash) && /pin=0.5.1.at.2/.test(location.hash)")
    page.select_option("[data-pick=entry]", "0")  # a head of another size
    until(
        page,
        "() => /by their words/.test(document.querySelector('.difference-reading').textContent)",
    )
    page.click("[data-do=pin]")
    until(page, "() => !/pin/.test(location.hash)")
    assert not page.is_visible(".difference-whole")


def test_an_impossible_pin_in_the_address_is_left_out(opened: Opened, story: Path) -> None:
    for pin in ("0.99.0", "0.5.77", "x", "0.5.-1", "7.0.0", "0.5.1.at.999", "0.5.1.to.1"):
        page = opened(story, f"#view=head&entry=5&heads=1&pin={pin}")
        assert page.text_content("[data-do=pin]") == "Pin A"


def saved(page: Any, what: str) -> tuple[str, str]:
    page.click("[data-do=save]")
    with page.expect_download() as told:
        page.click(f"[data-do={what}]")
    return told.value.suggested_filename, Path(told.value.path()).read_text(encoding="utf-8")


def test_weights_are_saved_as_csv_and_json(opened: Opened, story: Path) -> None:
    page = opened(story, "#view=head&entry=5&heads=1")
    entry = Page.read(story).meta["items"][0]["entries"][5]
    wanted = np.stack(numbers(page, [(5, "1", f"row({i})") for i in range(entry["t"])]))
    name, text = saved(page, "csv")
    assert name.endswith(".csv") and "cross" in name and "head-1" in name
    lines = list(csv.reader(io.StringIO(text)))
    assert len(lines) == entry["t"] + 1 and len(lines[0]) == entry["s"] + 1
    found = np.array([[float(x) for x in line[1:]] for line in lines[1:]])
    assert np.abs(found - wanted).max() < 0.001
    name, text = saved(page, "json")
    told = json.loads(text)
    assert name.endswith(".json") and told["layer"] == entry["name"] and told["heads"] == "1"
    assert np.abs(np.array(told["weights"]) - wanted).max() < 0.001
    assert len(told["keys"]) == entry["s"] and told["error"] > 0


def test_a_token_that_is_a_formula_is_no_formula_in_a_spreadsheet(
    opened: Opened, tmp_path: Path
) -> None:
    words = ["=1+1", 'say "a, b"', "@x"]
    path = save_page(
        {"a": it.core.matrix.Dense(torch.eye(3)).label(words, words)}, tmp_path / "a.html"
    )
    _, text = saved(opened(path, "#view=head"), "csv")
    assert next(csv.reader(io.StringIO(text))) == ["", "'=1+1", 'say "a, b"', "'@x"]


def test_saved_drawings_have_their_own_names_and_say_what_they_show(
    opened: Opened, story: Path
) -> None:
    page, names = opened(story, "#entry=5&heads=1&row=2"), []
    for view in ("overview", "head", "text"):
        page.click(f"[data-value={view}]")
        page.wait_for_timeout(300)
        name, text = saved(page, "svg")
        names.append(name)
        root = ElementTree.fromstring(text)
        assert not {element.tag for element in root.iter()} & {
            f"{SVG}script",
            f"{SVG}foreignObject",
        }
        title, says = (root.find(f"{SVG}{tag}").text for tag in ("title", "desc"))
        assert title and len(says) > 20
        if view == "head":
            assert "queries (rows)" in says and "Largest weights: ‘" in says
    assert len(set(names)) == 3, names


def test_the_drawing_of_many_heads_stays_small(opened: Opened, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = {
        f"layer.{n}": it.core.matrix.Dense(torch.rand(12, 64, 64).softmax(-1)) for n in range(12)
    }
    page = opened(save_page(layers, tmp_path / "many.html"), "#view=overview")
    page.wait_for_timeout(500)
    _, text = saved(page, "svg")
    assert len(text) < 3_000_000


def test_the_link_is_copied(opened: Opened, story: Path) -> None:
    page = opened(story, "#view=head&entry=5", permissions=["clipboard-read", "clipboard-write"])
    page.click("[data-do=save]")
    page.click("[data-do=link]")
    until(page, "() => /copied/.test(document.querySelector('[data-status]').textContent)")


def test_rollout_is_that_of_the_library(opened: Opened, tmp_path: Path) -> None:
    torch.manual_seed(2)
    layers = [it.core.matrix.Dense(torch.randn(3, 9, 9).mul(2).softmax(-1)) for _ in range(3)]
    names = [f"layer.{n}" for n in range(3)]
    path = save_page(dict(zip(names, layers, strict=True)), tmp_path / "a.html", "full")
    page = opened(path, "#view=head&entry=2&heads=rollout")
    wanted = it.core.matrix.rollout(layers).numpy()
    found = np.stack(numbers(page, [(2, "rollout", f"row({i})") for i in range(9)]))
    assert np.abs(found - wanted).max() < 1e-4
    assert page.input_value("[data-pick=heads]") == "rollout"
    first = opened(path, "#view=head&entry=0&heads=rollout")
    assert first.input_value("[data-pick=heads]") == "0"  # one layer has nothing to roll out


def test_every_layer_shows_the_mean_of_its_heads(opened: Opened, patterns: Path) -> None:
    page = opened(patterns, "#view=overview")
    page.click(".overview-mean")
    until(page, "() => /heads=mean/.test(location.hash)")
    assert page.is_visible(".matrix-canvas")


def test_a_brush_reads_the_mean_of_a_stretch(opened: Opened, story: Path) -> None:
    page = opened(story, "#view=text&entry=0&heads=1")
    words = page.locator(".card:not(.held) .word")
    first, last = (words.nth(n).bounding_box() for n in (1, 3))
    page.mouse.move(first["x"] + 5, first["y"] + 5)
    page.mouse.down()
    page.mouse.move(last["x"] + 5, last["y"] + 5, steps=4)
    page.mouse.up()
    until(page, "() => /row=1/.test(location.hash) && /through=3/.test(location.hash)")
    until(page, "() => document.querySelector('.cards').textContent.includes('mean of 3 tokens')")
    rows = numbers(page, [(0, "1", f"row({n})") for n in (1, 2, 3)])
    most = float(np.mean(rows, 0).max())
    told = float(page.locator(".card:not(.held) .top .weight").first.text_content())
    assert told == pytest.approx(most, abs=0.006)
    words.nth(5).click()
    until(page, "() => /row=5/.test(location.hash) && !/through/.test(location.hash)")
    words.nth(6).click(modifiers=["Shift"])
    until(page, "() => /row=5/.test(location.hash) && /through=6/.test(location.hash)")
