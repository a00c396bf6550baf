"""The page of an examination in a real browser: two tables, shaded, dark; three verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.checker import Report, check

Opened = Callable[..., Any]


def ahead(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = q @ k.mT
    seen = torch.ones(z.shape[-2:]).tril(1).bool()
    return z.masked_fill(~seen, -torch.inf).softmax(-1) @ v


@pytest.fixture(scope="module")
def examined(tmp_path_factory: Any) -> Path:
    report = check(ahead, mask=it.causal())
    assert {x.name for x in report.mistakes} == {"no-scale", "causal-off-by-one"}
    return report.page(tmp_path_factory.mktemp("examined") / "a check #1.html")


def test_what_was_expected_stands_beside_what_was_found(examined: Path, opened: Opened) -> None:
    page = opened(examined, java_script_enabled=False)
    assert page.locator(".finding").count() == 3
    assert page.locator(".finding table").count() == 4
    assert page.text_content(".verdict").startswith("2 mistakes, 1 hazard: no-scale")
    boxes = [page.locator(".finding table").nth(n).bounding_box() for n in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    assert "uery 0 gives key 1 the weight" in page.locator(".reading").nth(1).text_content()
    assert "keeps the diagonal" in page.locator(".cure").nth(1).text_content()


def test_the_cell_that_tells_is_framed_and_weights_are_shaded(
    examined: Path, opened: Opened
) -> None:
    page = opened(examined)
    expected, found = (page.locator(".finding table").nth(n) for n in (2, 3))
    first = expected.locator("tr").nth(1).locator("td")
    assert [first.nth(n).text_content() for n in (0, 1)] == ["1.000", "0.000"]
    assert [first.nth(n).get_attribute("class") for n in (0, 1)] == ["w7", "w0 tells"]
    told = found.locator(".tells")
    assert told.count() == 1 and 0 < float(told.text_content()) < 1


def test_it_is_dark_where_the_system_is_and_fits_a_phone(examined: Path, opened: Opened) -> None:
    page = opened(examined, width=390, height=844, color_scheme="dark")
    ground = "getComputedStyle(document.querySelector('.intently')).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 23, 28)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page = opened(examined, color_scheme="light")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_paper_keeps_the_shading(examined: Path, opened: Opened) -> None:
    page = opened(examined, color_scheme="dark")
    page.emulate_media(media="print")
    cell = page.locator("td.w7").first
    style = "getComputedStyle(td)"
    seen = cell.evaluate(f"td => [{style}.printColorAdjust, {style}.backgroundColor]")
    assert seen == ["exact", "rgb(8, 48, 107)"]


def test_what_is_right_has_a_page_too(tmp_path: Path, opened: Opened) -> None:
    right = torch.nn.functional.scaled_dot_product_attention
    report = check(lambda q, k, v: right(q, k, v), mask=None)
    page = opened(report.page(tmp_path / "right.html"))
    assert page.text_content(".verdict") == "No mistake found"
    assert page.locator(".finding").count() == 0 and page.locator(".tried li").count() > 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_was_not_measured_looks_neither_right_nor_wrong(
    examined: Path, tmp_path: Path, opened: Opened, scheme: str
) -> None:
    report = Report("takes x", ("4 heads of 8",), (), (), "Mine")
    paths = [
        report.page(tmp_path / "right.html"),
        replace(report, unmeasured=("pool: no <b>values</b>",)).page(tmp_path / "half.html"),
        examined,
    ]
    style = "getComputedStyle(document.querySelector('.verdict'), '::before')"
    seen = []
    for path in paths:
        page = opened(path, color_scheme=scheme)
        seen.append(page.evaluate(f"[{style}.content, {style}.color]"))
        listed = page.locator(".reasons li span").all_text_contents()
        assert listed == (["pool: no <b>values</b>"] if path == paths[1] else [])
    assert [x for x, _ in seen] == ['"✓ "', '"– "', '"✗ "']
    assert len({colour for _, colour in seen}) == 3


def test_names_are_no_markup(tmp_path: Path, opened: Opened) -> None:
    def hostile(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    hostile.__name__ = "</script><img src=x onerror=alert(1)>"
    page = opened(check(hostile).page(tmp_path / "a.html"))
    assert page.locator("img").count() == 0
