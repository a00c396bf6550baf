"""What the page says is so: names, scales, digits, cells, weight outside the view, paper."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently.show.page import items_of, save_page

from ...show.page_reader import Page
from .driving import asked, status, until
from .pages import made

Opened = Callable[..., Any]

SENTENCE = "the rows of a causal model are one softmax each and softmax rows sum to one ."
WORDS = tuple(SENTENCE.split(" "))
"""Rows of a decoder: each word writes the next."""

NOW = ".card:not(.held)"

LONG = 900
"""Tokens of a text that is longer than what lines draw, or a small sheet."""


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = 2 * made(1, 2, len(WORDS), 16)
    A = it.attend(x, x, mask=it.causal()).label((*WORDS[1:], ""), WORDS)
    return save_page({"decoder.0": A}, tmp_path_factory.mktemp("truth") / "causal.html", "full")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    q, k = 2 * made(1, 2, LONG, 16), made(1, 2, LONG, 16, seed=1)
    A = it.attend(q, k, mask=it.causal())
    return save_page({"h.0": A}, tmp_path_factory.mktemp("truth") / "long.html", "full")


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["head", "text"])
def test_a_row_has_one_name_in_every_view(causal: Path, opened: Opened, view: str) -> None:
    page = opened(causal, f"#view={view}&row=10&column=4")
    status(page, "query ‘and (writes softmax)’ → key ‘")
    if view == "head":
        assert page.text_content(".beside-pair").startswith("and (writes softmax) → causal")
    else:
        assert page.text_content(f"{NOW} h2") == "‘and (writes softmax)’ looks at"
        page.keyboard.press("f")  # who looks at it
        until(page, f"document.querySelector('{NOW} .top').textContent.includes('(writes ')")


def test_queries_after_a_cache_are_named_by_their_own_tokens(
    tmp_path: Path, opened: Opened
) -> None:
    q, k = made(1, 3, 4), made(1, 6, 4, seed=1)
    A = it.attend(q, k, mask=it.causal()).label(("e", "f", ""), tuple("abcdef"))
    page = opened(save_page(A, tmp_path / "cache.html"), "#view=head&row=0&column=0")
    status(page, "query ‘d (writes e)’ → key ‘a’")


# --- scales ---------------------------------------------------------------------------------------

SCALES = """
const head = await headSource(stored).open(0, 0, "0");
let state = { scale: "linear", sink: "show", cells: "mean", range: "head" };
const seen = looking(1e-7, () => state, () => {});
const [all, part] = [{ r0: 0, r1: ROWS, c0: 0, c1: ROWS }, { r0: 200, r1: 206, c0: 10, c1: 16 }];
const pixels = { high: 100, wide: 100 };
const found = [];
for (const [window, range] of [[all, "head"], [part, "head"], [part, "view"], [part, "head"]]) {
    state = { ...state, range };
    seen.rescale();
    await seen.look(head, window, pixels);
    found.push([seen.known.scale.high, seen.said(window !== all), unitOf(seen.known.exact)]);
}
seen.forget();
await seen.look(head, part, pixels); // a link into the middle of a matrix
found.push([seen.known.scale.high, seen.said(true), unitOf(seen.known.exact)]);
return found;
""".replace("ROWS", str(LONG))


def test_the_scale_of_a_head_is_the_same_at_every_zoom(long: Path, opened: Opened) -> None:
    whole, near, view, back, linked = asked(opened(long), SCALES)
    assert whole[1:] == ["", "mean of 9 × 9 weights"]
    fixed = [whole[0], "scale of the whole head", "weight"]
    assert near == back == linked == fixed
    assert view[0] != whole[0] and view[1] == "scale of this view only"


def test_the_switches_stand_where_they_change_something(long: Path, opened: Opened) -> None:
    page = opened(long, "#view=head", width=700)
    rescale, largest = (page.locator(f"[data-adjust={key}]") for key in ("range", "cells"))
    largest.wait_for(state="visible")
    assert not rescale.is_visible()
    largest.click()
    until(page, "location.hash.includes('cells=max')")
    page.locator(".matrix-canvas").focus()
    for _ in range(9):
        page.keyboard.press("+")
    rescale.wait_for(state="visible")
    rescale.click()
    until(page, "location.hash.includes('range=view')")
    assert rescale.get_attribute("aria-pressed") == "true"


def test_no_numbers_of_a_scale_overlap(causal: Path, opened: Opened) -> None:
    tops = [digit * 10.0**power for digit in (1, 1.5, 2.5, 8) for power in range(-14, 4)]
    placed = asked(
        opened(causal),
        f"""
        const tops = {tops};
        return [120, 132].flatMap((wide) => tops.flatMap((high) => [true, false].flatMap((log) =>
            [1e-1, 1e-3, 1e-6].map((step) => placedTicks(
                {{ log, low: log ? high * step : 0, high, beyond: true }}, wide)))));
    """,
    )
    assert len(placed) == 2 * len(tops) * 2 * 3
    for ticks in placed:
        assert len(ticks) >= 2
        for one, other in itertools.pairwise(ticks):
            assert one["left"] + one["size"] <= other["left"]


# --- digits ---------------------------------------------------------------------------------------


def test_no_digit_is_below_the_error(causal: Path, opened: Opened) -> None:
    errors = [1e-7, 2e-6, 1.9e-4, 6.2e-4, 1e-3, 3.5e-3, 0.02]
    values = [1e-21, 1e-9, 3e-8, 4e-6, 4.4e-4, 0.0007, 0.0042, 0.00951, 0.0123, 0.5, 1, 12.34]
    said = asked(opened(causal), f"return {errors}.map((e) => {values}.map((v) => format(v, e)));")
    for error, row in zip(errors, said):
        for value, text in zip(values, row):
            below = re.fullmatch(r"< (?:10(⁻\d*[⁰¹²³⁴⁵⁶⁷⁸⁹]+)|([\d.]+))", text)
            if below:
                assert value < error * 10
                continue
            digits, _, power = text.replace("−", "-").partition("e")
            unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
            assert unit >= error * (1 - 1e-9), (value, error, text)
            assert float(text.replace("−", "-")) == pytest.approx(value, abs=0.5001 * unit)
    assert [row[0] for row in said] == [
        "< 10⁻⁷",
        "< 10⁻⁵",
        "< 0.001",
        "< 0.001",
        "< 0.001",
        "< 0.01",
        "< 0.1",
    ]


def test_cells_below_the_error_say_so(opened: Opened, tmp_path: Path) -> None:
    A = it.Dense(torch.tensor([[0.7003, 0.29969, 1e-5]] * 3))
    page = opened(save_page(A, tmp_path / "half.html"), "#view=head&row=0&column=2")
    read = Page.read(tmp_path / "half.html")
    bound = read.meta["bound"]["weights"]
    assert read.weights(0)[0, 0, 2] < bound < 0.01
    said = f"{10.0 ** math.ceil(math.log10(bound)):.7f}".rstrip("0")
    until(page, "document.querySelector('.beside-weight strong')?.textContent")
    assert page.text_content(".beside-weight strong") == f"< {said}"
    assert not re.search(r"\de−", page.text_content(".beside"))


# --- cells of several weights ---------------------------------------------------------------------


def test_cells_have_the_largest_of_their_weights(long: Path, opened: Opened) -> None:
    w = Page.read(long).weights(0)[1]
    found = asked(
        opened(long),
        """
        const head = await headSource(stored).open(0, 0, "1");
        return Array.from(await head.pooled(0, 900, 0, 900, 30, 20, "max"));
    """,
    )
    right = w.reshape(30, 30, 20, 45).max((1, 3))
    np.testing.assert_allclose(np.reshape(found, (30, 20)), right, atol=1e-6)


# --- weight that is not drawn ---------------------------------------------------------------------


def test_a_list_adds_up(long: Path, opened: Opened) -> None:
    page = opened(long, "#view=text&row=250&heads=1")
    page.wait_for_selector(f"{NOW} .top .others")
    told = page.locator(f"{NOW} .top .weight").all_inner_texts()
    assert sum(float(text) for text in told) == pytest.approx(1, abs=0.05)
    assert re.fullmatch(r"\d+ more words", page.text_content(f"{NOW} .top .others b"))


def test_a_sink_that_is_no_key_is_told(tmp_path: Path, opened: Opened) -> None:
    x = made(1, 1, 5, 8)
    A = it.attend(x, x, sinks=it.attend(x, x).dense().new_tensor([2.0]))
    page = opened(save_page(A, tmp_path / "sink.html", "full"), "#view=text&row=1")
    rest = 1 - float(A.dense()[0, 0, 1].sum())
    until(page, f"document.querySelector('{NOW} .numbers').textContent.includes('no key')")
    said = page.text_content(f"{NOW} .numbers")
    assert f"; {rest:.2f} of the weight lies on no key" in said


# --- two readings ---------------------------------------------------------------------------------


def two_texts(path: Path, first: str, second: str, *looked: str) -> Path:
    """A page of two texts, in which all words look most at one word each."""
    items = []
    for text, most in zip((first, second), looked):
        words = tuple(text.split())
        row = [0.75 if word == most else 0.25 / (len(words) - 1) for word in words]
        looks = [row] * len(words)
        items += items_of(it.Dense(torch.tensor(looks)).label(words, words), text)
    return save_page(items, path, "full")


def test_two_texts_are_compared_by_their_words(tmp_path: Path, opened: Opened) -> None:
    """At other places the same word is looked at: nothing has changed for a reader."""
    path = two_texts(
        tmp_path / "two.html", "the road was wide", "but wide was the road", "road", "road"
    )
    page = opened(path, "#view=text&item=1&row=2&pin=0.0.0.at.2")
    until(page, "!document.querySelector('.apart').hidden")
    said = page.text_content(".apart")
    assert said.startswith("‘was’ looks most at ‘road’ 0.75; ‘was’ looks most at ‘road’ 0.75 · ")
    assert "94 % of the weight on the same words" in said


def test_other_words_at_the_same_place_are_no_agreement(tmp_path: Path, opened: Opened) -> None:
    texts = "the road was wide", "the lake was wide", "road", "lake"
    path = two_texts(tmp_path / "two.html", *texts)
    page = opened(path, "#view=text&item=1&row=2&pin=0.0.0.at.2")
    until(page, "!document.querySelector('.apart').hidden")
    said = page.text_content(".apart")
    assert said.startswith("‘was’ looks most at ‘road’ 0.75; ‘was’ looks most at ‘lake’ 0.75 · ")
    assert "25 % of the weight on the same words" in said
    assert "most apart: ‘road’ 0.75 → 0, ‘lake’ 0 → 0.75" in said


# --- paper ----------------------------------------------------------------------------------------

READ = """() => {
    window.printed = [];
    const canvas = document.querySelector(".matrix-base");
    const light = () => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let [sum, count] = [0, 0];
        for (let at = 0; at < data.length; at += 4) if (data[at + 3]) [sum, count] = [sum + data[at], count + 1];
        return count ? sum / count : -1;
    };
    addEventListener("beforeprint", () => {
        const words = [...document.querySelectorAll("section[data-view=text] .word")];
        window.printed.push({
            theme: document.querySelector(".intently").dataset.theme, light: light(),
            words: words.map(({ style }) => [style.backgroundColor, style.color]),
        });
    });
}"""  # noqa: E501


@pytest.mark.parametrize("view", ["head", "text"])
def test_paper_is_light_and_keeps_the_shading(causal: Path, opened: Opened, view: str) -> None:
    page = opened(causal, f"#view={view}&row=10&column=4", color_scheme="dark")
    status(page, "query ‘and (writes softmax)’ → key ‘")
    page.evaluate(READ)
    assert page.pdf(print_background=False)
    (seen,) = page.evaluate("window.printed")
    assert seen["theme"] == "light"
    assert page.evaluate("document.querySelector('.intently').dataset.theme") == "dark"
    page.emulate_media(media="print")
    style = "getComputedStyle(document.querySelector('.intently'))"
    assert page.evaluate(f"{style}.printColorAdjust") == "exact"
    assert not page.locator(".controls").is_visible()
    if view == "head":
        assert seen["light"] > 150
    else:
        grounds = [[int(n) for n in re.findall(r"\d+", ground)] for ground, _ in seen["words"]]
        assert all(max(ground) > 200 for ground in grounds[11:])  # paper
        assert min(grounds[10]) < 160  # the word that is looked at most keeps its shade
