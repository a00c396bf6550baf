"""The player of a story in a real browser: steps, keys, colours, and nothing from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently.nn import convolution_as_attention
from intently.show import animate
from intently.show.animate.animation import Animation
from intently.show.animate.stage import CellGrid, StoryScene, Words

from .driving import WAIT, until

STILL = {"reduced_motion": "reduce"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    words = ("Je", "bois", "du", "</script><img src=x onerror=alert(1)>")
    A = it.attend(x, x, mask=it.causal()).label(words, words)
    animate.product(A, x, query=1, save=tmp_path / "story.html")
    return tmp_path / "story.html"


def at(page: Any) -> str:
    return page.inner_text("#count")


def pixel(page: Any, x: float, y: float) -> list[int]:
    """The colour of a place of the story, in the story's own pixels."""
    return page.evaluate(
        """([x, y]) => {
            const canvas = document.querySelector("canvas");
            const story = JSON.parse(document.getElementById("story").textContent);
            const zoom = canvas.width / story.width;
            const left = Math.floor((x - story.left) * zoom);
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const pen = copy.getContext("2d", { willReadFrequently: true });
            pen.drawImage(canvas, 0, 0);
            return [...pen.getImageData(left, Math.floor(y * zoom), 1, 1).data];
        }""",
        [x, y],
    )


def test_buttons_keys_and_the_slider_go_from_step_to_step(opened: Any, path: Path) -> None:
    page = opened(path, **STILL)
    assert at(page).startswith("1 of ")
    count = int(at(page).split()[-1])
    first = page.inner_text("#said")
    page.click("#next")
    assert at(page) == f"2 of {count}" and page.inner_text("#said") != first
    page.keyboard.press("ArrowRight")
    assert at(page) == f"3 of {count}"
    page.keyboard.press("ArrowLeft")
    page.click("#back")
    assert at(page) == f"1 of {count}" and page.get_attribute("#back", "aria-disabled") == "true"
    page.keyboard.press("End")
    assert (
        at(page) == f"{count} of {count}" and page.get_attribute("#next", "aria-disabled") == "true"
    )
    page.focus("#next")
    page.keyboard.press("Enter")
    assert at(page) == f"{count} of {count}"
    assert page.evaluate("document.activeElement.id") == "next"
    assert page.get_attribute("canvas", "aria-label") == page.inner_text("#said")
    page.keyboard.press("Home")
    page.locator("#at").fill("4")
    assert at(page) == f"4 of {count}"
    assert page.get_attribute("#at", "aria-valuetext").startswith(f"step 4 of {count}: ")


def test_it_waits_where_motion_is_not_wanted_and_plays_elsewhere(opened: Any, path: Path) -> None:
    still = opened(path, **STILL)
    still.wait_for_timeout(400)
    assert at(still).startswith("1 of")
    assert still.get_attribute("#play", "aria-label") == "play"
    page = opened(path)
    assert page.get_attribute("#play", "aria-label") == "pause"
    until(page, "() => !document.getElementById('count').textContent.startsWith('1 of')")
    page.keyboard.press(" ")
    assert page.get_attribute("#play", "aria-label") == "play"
    stopped = at(page)
    page.wait_for_timeout(1500)
    assert at(page) == stopped


def test_played_to_its_end_it_stops_and_starts_again(opened: Any, tmp_path: Path) -> None:
    scenes = tuple(StoryScene(f"step {n}", (Words("a", 20, 20, str(n)),), 0.1) for n in range(3))
    Animation("short", scenes, (200, 60)).save(tmp_path / "short.html")
    page = opened(tmp_path / "short.html")
    until(page, "() => document.getElementById('play').getAttribute('aria-label') === 'play'")
    assert at(page) == "3 of 3"
    page.click("#play")
    until(page, "() => document.getElementById('count').textContent === '3 of 3'")


@pytest.mark.parametrize(
    ("scheme", "paper", "half", "below"),
    [
        ("light", (255, 255, 255), (112, 174, 216), (143, 106, 30)),
        ("dark", (20, 23, 28), (39, 115, 169), (176, 144, 74)),
    ],
)
def test_shades_have_the_colours_of_the_theme(
    opened: Any, tmp_path: Path, scheme: str, paper: Any, half: Any, below: Any
) -> None:
    boxes = (
        CellGrid("a", 20, 10, (30, 30), ((0.0, 0.5, -0.75),), edge=""),
        CellGrid("b", 120, 10, (30, 30), ((None,),), edge=""),
    )
    Animation("colours", (StoryScene("said", boxes, 1),), (200, 60)).save(tmp_path / "c.html")
    page = opened(tmp_path / "c.html", color_scheme=scheme, **STILL)
    for n, wanted in enumerate((paper, half, below)):
        found = pixel(page, 20 + 30 * n + 15, 25)
        assert np.abs(np.array(found[:3]) - wanted).max() <= 2 and found[3] == 255
    assert pixel(page, 135, 25)[3] == 0  # clear


def test_between_two_steps_things_are_on_their_way(opened: Any, tmp_path: Path) -> None:
    scenes = tuple(
        StoryScene("go", (CellGrid("a", x, 10, (20, 30), ((1.0,),), edge=""),), 5)
        for x in (20, 420)
    )
    Animation("way", scenes, (460, 60)).save(tmp_path / "w.html")
    page = opened(tmp_path / "w.html")
    seen = page.evaluate(
        """() => {
            const canvas = document.querySelector("canvas");
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const pen = copy.getContext("2d", { willReadFrequently: true });
            const left = () => {
                pen.clearRect(0, 0, copy.width, copy.height);
                pen.drawImage(canvas, 0, 0);
                const row = pen.getImageData(0, canvas.height >> 1, canvas.width, 1).data;
                for (let x = 0; x < canvas.width; x++) if (row[4 * x + 3]) return x;
            };
            let [now, frames] = [0, []]; // a clock of its own, whatever the machine does meanwhile
            performance.now = () => now;
            window.requestAnimationFrame = (step) => frames.push(step);
            window.cancelAnimationFrame = () => { frames = []; };
            const found = [left()];
            document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
            for (let n = 0; frames.length && n < 1000; n++) {
                now += 50;
                const due = frames;
                frames = [];
                for (const step of due) step(now);
                found.push(left());
            }
            return found;
        }"""
    )
    assert len(set(seen)) >= 4 and seen == sorted(seen)
    assert seen[-1] - seen[0] > 300  # it arrives


def test_a_phone_sees_the_whole_scene(opened: Any, path: Path) -> None:
    page = opened(path, width=390, height=780, **STILL)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for name in ("canvas", "#back", "#play", "#next", "#at"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_the_theme_may_change_while_it_is_open(opened: Any, tmp_path: Path) -> None:
    box = CellGrid("a", 20, 10, (30, 30), ((0.5,),), edge="")
    Animation("theme", (StoryScene("said", (box,), 1),), (200, 60)).save(tmp_path / "t.html")
    page = opened(tmp_path / "t.html", color_scheme="light", **STILL)
    before = pixel(page, 35, 25)
    page.emulate_media(color_scheme="dark")
    for _ in range(WAIT // 50):
        if pixel(page, 35, 25) != before:
            break
        page.wait_for_timeout(50)
    assert pixel(page, 35, 25) != before


def test_the_largest_stories_move_without_a_long_frame(opened: Any, tmp_path: Path) -> None:
    conv = torch.nn.Conv2d(4, 1, 5, padding=2)
    image = torch.rand(4, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        conv.weight.fill_(0.1)
    path = tmp_path / "c.html"
    animate.convolution(convolution_as_attention(conv), image, save=path)
    page = opened(path, **STILL)
    times = page.evaluate(
        """async () => {
            const found = [];
            for (let n = 0; n < 10; n++) {
                const start = performance.now();
                document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
                found.push(performance.now() - start);
                await new Promise((done) => setTimeout(done, 20));
            }
            return found.sort((a, b) => a - b);
        }"""
    )
    assert times[0] < 50, times  # the least: others may be using the machine
