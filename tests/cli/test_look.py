"""`intently look`: a text, two texts, a picture, as a page; refusals that say what to do."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ..command_line import Command, refused
from ..show.page_reader import Page
from .conftest import save_recurrent

WIDE = "The animal didn't cross the road because it was too wide."
TIRED = "The animal didn't cross the road because it was too tired."


@pytest.fixture
def look(intently: Command) -> Command:
    return partial(intently, "look")


def meta(path: Path) -> dict[str, Any]:
    return Page.read(path).meta


@pytest.fixture(scope="session")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny vision model as save_pretrained writes it, and a picture."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "dog"},
    )
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    Image.linear_gradient("L").resize((60, 40)).save(folder / "slope.png")
    return folder


def test_a_text_becomes_a_page_of_every_head(look: Command, tmp_path: Path) -> None:
    outcome = look(WIDE)
    assert outcome.status == 0 and outcome.err == ""
    translation, last = outcome.out.splitlines()
    assert re.fullmatch(r"look\.html: 24 heads, 0\.\d MB", last)
    told = meta(tmp_path / "look.html")
    (item,) = told["items"]
    assert (told["title"], item["name"], item["note"]) == (WIDE, WIDE, translation)
    assert len(item["entries"]) == 6 and told["precision"] == "half"
    state = told["state"]  # a telling head, and why
    assert state["view"] == "head" and item["entries"][state["entry"]]["kind"] == "cross"
    (said,) = [
        mark["text"]
        for mark in told["highlights"]
        if [mark["entry"], str(mark["head"])] == [state["entry"], state["heads"]]
    ]
    share = float(re.search(r"each word puts (0\.\d\d) of its weight on a single word", said)[1])
    statistics = item["entries"][state["entry"]]["statistics"]
    assert share == pytest.approx(statistics["confidence"][int(state["heads"])], abs=0.006)


def test_two_texts_open_where_they_are_read_most_differently(look: Command, tmp_path: Path) -> None:
    outcome = look(WIDE, TIRED, "--out", "new/two.html", "--full")
    assert outcome.out.splitlines()[-1].startswith("new/two.html: 2 texts, 24 heads, ")
    told = meta(tmp_path / "new" / "two.html")
    assert [item["name"] for item in told["items"]] == [WIDE, TIRED]
    assert told["precision"] == "full"
    state = told["state"]
    row, entry, head = state["row"], state["entry"], state["heads"]
    assert state == {
        **{"view": "text", "item": 1, "entry": entry, "heads": head, "row": row},
        "pin": f"0.{entry}.{head}.at.{row}",
    }
    reads = [item["entries"][entry] for item in told["items"]]
    assert [about["kind"] for about in reads] == ["cross", "cross"]
    first, second = (about["row_labels"] for about in reads)  # where the translations part
    assert first[:row] == second[:row] and {first[row], second[row]} == {"il", "elle"}
    assert look("I drink milk.", WIDE, "--layers", "decoder.1.*").status == 0  # other lengths
    told = meta(tmp_path / "look.html")
    assert told["state"] == {"view": "text"}
    names = [entry["name"] for entry in told["items"][0]["entries"]]
    assert names == ["decoder.1.self_attention", "decoder.1.cross_attention"]


def test_one_head_is_no_plural_and_a_browser_opens_it(
    look: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_recurrent("luong", "dot")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    outcome = look("I drink milk.", "--model", "luong")
    assert ": 1 head, " in outcome.out.splitlines()[-1] and opened == []
    look("I drink milk.", "--model", "luong", "--open")
    assert opened == [(tmp_path / "look.html").as_uri()]


def test_a_picture_is_shown_as_the_model_read_it(
    look: Command, vision: Path, tmp_path: Path
) -> None:
    outcome = look("--image", vision / "slope.png", "--model", vision)
    assert outcome.status == 0, outcome.err
    assert re.match(r"(cat|dog), \d+%\n", outcome.out)
    told = meta(tmp_path / "look.html")
    (item,) = told["items"]
    side = item["sides"][0]
    assert (side["kind"], side["rows"], side["columns"], side["before"]) == ("picture", 4, 4, 1)
    assert side["image"].startswith("data:image/png;base64,")
    assert [(e["t"], e["rows"], e["columns"]) for e in item["entries"]] == [(17, 0, 0)] * 2
    assert told["state"] == {"view": "text", "entry": 1, "heads": "mean", "row": 0}
    assert item["name"] == "slope.png"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "TEXT, --image: expected a text or a picture; got neither"),
        (("a", "--image", "b.png"), "TEXT, --image: expected a text or a picture; got both"),
        (
            ("--image", "b.png"),
            "--model: expected the folder of a model that reads pictures; got no",
        ),
        (("--image", "b.png", "--model", "."), "b.png: No such file"),
        (("",), "TEXT: expected a text of at least one token; got none"),
        (("a", "--model", "nowhere"), "got no such folder"),
        (("a", "--layers", "x.*"), "layers: expected names of modules"),
    ],
)
def test_refusals(look: Command, arguments: tuple[str, ...], message: str) -> None:
    outcome = look(*arguments)
    assert outcome.out == "" and message in refused(outcome)


def test_pictures_and_models_that_do_not_fit(look: Command, vision: Path, tmp_path: Path) -> None:
    (tmp_path / "b.png").write_text("hello")
    outcome = look("--image", "b.png", "--model", vision)
    assert "b.png: expected a picture that Pillow reads, such as PNG or JPEG" in outcome.err
    (tmp_path / "empty").mkdir()
    outcome = look("--image", vision / "slope.png", "--model", "empty")
    assert "config.json: expected the config of a transformers model; got no such" in outcome.err
    assert outcome.status == 2 and not (tmp_path / "look.html").exists()
