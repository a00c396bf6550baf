"""A story that answers: numbers dragged, τ moved and words left out, in `attend`'s own values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently.show import animate
from intently.show.animate.animation import Animation, stored
from intently.show.page.script import joined

STILL = {"reduced_motion": "reduce"}
WORDS = ("Je", "bois", "du", "lait")
MODULE = joined(["dragging"])
START = "{ q: null, tau: 1, dropped: new Set() }"


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q, K, V = (drawn(4, 3, seed=n) for n in range(3))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"mask": it.causal()},
    "all": {
        "scale": 1.5,
        "softcap": 2.0,
        "bias": drawn(4, 4, seed=5),
        "sinks": torch.tensor(0.3, dtype=torch.float64),
        "mask": it.window(2, 1),
    },
    "cosine": {"score": it.scores.Cosine(), "scale": 2.0},
    "blind": {"mask": it.padding(torch.tensor(0))},
}


def product(query: int = 2, **options: Any) -> Animation:
    return animate.product(it.attend(Q, K, **options).label(WORDS, WORDS), V, query=query)


def films() -> Animation:
    users = torch.tensor([[2.0, 0.0, 1.0], [1.0, 1.0, -1.0]])
    kinds = torch.tensor([[2.0, -1.0, 0.0], [-1.0, 2.0, 1.0], [0.0, 1.0, -2.0]])
    A = it.attend(users, kinds, scale=1).label(("Ada", "Grace"), ("Alien", "Up", "Heat"))
    return animate.dictionary(A, torch.tensor([[117.0], [96.0], [170.0]]))


@pytest.fixture
def page(opened: Any, tmp_path: Path) -> Any:
    return opened(product().save(tmp_path / "p.html"), **STILL)


def weights(page: Any) -> list[float]:
    """The weights that stand on the words below the picture."""
    return [
        float(text.split()[-1]) for text in page.locator("#try [aria-pressed]").all_inner_texts()
    ]


def place(page: Any, key: str, cell: int = 0) -> tuple[float, float]:
    """The middle of a cell, or a place in a word, in pixels of the window."""
    return tuple(
        page.evaluate(
            """([key, cell]) => {
                const story = JSON.parse(document.getElementById("story").textContent);
                const shape = story.scenes[0].shapes.map((n) => story.shapes[n])
                    .find((shape) => shape.key === key);
                const box = document.querySelector("canvas").getBoundingClientRect();
                const zoom = box.width / story.width;
                const [wide, high] = shape.cell ?? [-6, 0];
                const x = shape.x + (cell + 0.5) * wide - story.left;
                return [box.left + zoom * x, box.top + zoom * (shape.y + high / 2)];
            }""",
            [key, cell],
        )
    )


def test_the_page_attends_as_attend_does(page: Any) -> None:
    asked = torch.tensor([[0.7, -1.2, 0.4]], dtype=torch.float64)
    for name, options in CASES.items():
        live = product(**options).live
        assert live is not None and bool(live["features"]) == (name != "cosine")
        own = None if name == "cosine" else asked[0].tolist()
        for q, tau, dropped in (
            (None, 1.0, []),
            (own, 1.0, []),
            (own, 0.25, [1]),
            (None, 3.0, [2, 0]),
        ):
            found = page.evaluate(
                f"""([live, q, tau, dropped]) => {{
                    {MODULE}
                    const found = attended(live, {{ q, tau, dropped: new Set(dropped) }});
                    return [found.weights, found.output];
                }}""",
                [json.loads(json.dumps(live)), q, tau, dropped],
            )
            mask = it.allowed(torch.tensor([[j not in dropped for j in range(4)]]))
            mask = mask & options["mask"] if "mask" in options else mask
            scale = options.get("scale", 3**-0.5) / tau
            queries = Q.clone()
            queries[2] = Q[2] if q is None else asked[0]
            A = it.attend(queries, K, **{**options, "mask": mask, "scale": scale})
            assert found[0] == pytest.approx(A[2, :].tolist(), abs=1e-12), name
            assert found[1] == pytest.approx((A @ V)[2].tolist(), abs=1e-12), name


def test_untouched_numbers_are_the_ones_that_stand_there(page: Any) -> None:
    for story in (*(product(**options) for options in CASES.values()), films()):
        assert story.live is not None
        opening = stored(story.scenes[:1], story.size)["shapes"]
        found = page.evaluate(
            f"([shapes, live]) => {{ {MODULE}\nreturn enlivened(shapes, live, {START}); }}",
            json.loads(json.dumps([opening, story.live])),
        )
        made = {shape["key"]: shape for shape in found}
        for shape in opening:
            if shape["key"] in (*story.live["left_out"], "head.match"):
                continue
            new = made[shape["key"]]
            for name in ("text", "texts", "colour"):
                if shape["key"].startswith("score."):
                    continue
                assert list(new.get(name, ())) == list(shape.get(name, ())), (new, shape)
            for name in ("x", "y", "cell", "shades"):
                assert np.allclose(new.get(name, 0), shape.get(name, 0), atol=0.02), new


def test_a_number_of_the_picture_is_dragged(page: Any) -> None:
    x, y = place(page, "query", 1)
    page.mouse.move(x, y)
    assert page.evaluate("document.querySelector('canvas').style.cursor") == "ew-resize"
    before = weights(page)
    page.mouse.down()
    page.mouse.move(x + 60, y)
    page.mouse.move(x + 90, y + 5)
    page.mouse.up()
    page.mouse.move(x - 90, y)  # no longer held
    moved = [
        float(text.replace("−", "-")) for text in page.locator("#try output").all_inner_texts()
    ]
    queries = Q.clone()
    queries[2, 1] = moved[1]
    assert moved[1] > Q[2, 1] + 0.5 and moved[0] == pytest.approx(float(Q[2, 0]), abs=0.01)
    wanted = it.attend(queries, K)[2, :].tolist()
    assert weights(page) == pytest.approx(wanted, abs=0.0051) and weights(page) != before
    best = WORDS[int(np.argmax(wanted))]
    said = f"With your numbers, ‘du’ takes most from ‘{best}’: {max(wanted):.2f} of its weight."
    assert page.inner_text("#said") == said == page.get_attribute("canvas", "aria-label")


def test_the_keyboard_moves_leaves_out_and_takes_back(page: Any) -> None:
    opening, before = page.inner_text("#said"), weights(page)
    page.click("#next")
    page.locator("#try input").last.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    assert page.inner_text("#count").startswith("1 of")
    assert page.locator("#try output").last.inner_text() == "16"
    assert max(weights(page)) - min(weights(page)) < max(before) - min(before)
    word = page.locator("#try [aria-pressed]").nth(1)
    word.focus()
    page.keyboard.press(" ")
    assert word.get_attribute("aria-pressed") == "true" and weights(page)[1] == 0
    assert page.inner_text("#said").startswith("With your numbers")
    page.keyboard.press("Enter")
    assert word.get_attribute("aria-pressed") == "false" and weights(page)[1] > 0
    page.locator("#reset").focus()
    page.keyboard.press("Enter")
    assert (page.inner_text("#said"), weights(page)) == (opening, before)
    assert page.locator("#try output").last.inner_text() == "1"


def test_a_finger_leaves_out_a_word(opened: Any, tmp_path: Path) -> None:
    path = product().save(tmp_path / "p.html")
    page = opened(path, width=390, height=844, has_touch=True, is_mobile=True, **STILL)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.touchscreen.tap(*place(page, "name.3"))
    assert page.locator("#try [aria-pressed=true]").all_inner_texts() == ["lait 0"]
    for box in (part.bounding_box() for part in page.locator("#try button").all()):
        assert box["height"] >= 24 and box["x"] + box["width"] <= 390


def test_stories_without_one_formula_have_nothing_to_drag(opened: Any, tmp_path: Path) -> None:
    story = animate.writing(it.attend(Q, K))
    assert story.live is None
    page = opened(story.save(tmp_path / "t.html"), **STILL)
    assert not page.is_visible("#try")
