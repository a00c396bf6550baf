"""Masks as pictures in notebooks."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch

import intently as it
from intently.core.masks import Geometry, indexed

from .test_blocks import CPU


class TestPicture:
    def tree(self, mask: it.Mask) -> ET.Element:
        html = mask._repr_html_()
        assert "script" not in html
        assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
        return ET.fromstring(html.replace("<br>", "<br/>"))

    def cells(self, mask: it.Mask) -> list[str]:
        """Draw what the SVG shows, a character a cell."""
        svg = self.tree(mask).find("{http://www.w3.org/2000/svg}svg")
        assert svg is not None
        _, _, width, height = map(int, svg.attrib["viewBox"].split())
        shown = [["?"] * width for _ in range(height)]
        tones = {"0.07": "·", "0.4": "▒", "0.85": "█"}
        for path in svg:
            assert path.attrib["fill"] == "currentColor"
            for x, y, w in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v", path.attrib["d"]):
                for at in range(math.floor(float(x)), math.ceil(float(x) + float(w))):
                    assert shown[int(float(y))][at] == "?"
                    shown[int(float(y))][at] = tones[path.attrib["fill-opacity"]]
        return ["".join(row) for row in shown]

    @pytest.mark.parametrize(
        ("mask", "t", "s"),
        [
            (it.causal(), 16, 16),
            (it.causal() & ~it.window(3, 0), 16, 16),
            (it.allowed(torch.eye(5, 9, dtype=torch.bool)), 5, 9),
            (it.allowed(torch.ones(2, 1, 1, 7, dtype=torch.bool)), 7, 7),
            (it.allowed(torch.ones((), dtype=torch.bool)), 16, 16),
            (it.segments(torch.tensor([0, 0, 1])), 3, 3),
            (it.grid(3, 4, 1), 12, 12),
            (it.segments(torch.tensor([[1, 2]]), torch.tensor([[2, 1, 0]])), 2, 3),
            (it.padding(torch.tensor([3, 20])), 20, 20),
            (it.padding(torch.tensor([0])), 16, 16),
            (it.prefix(20), 40, 40),
            (it.window(20, 0), 40, 40),
            (~it.dilated(3), 16, 16),
            (it.allowed(torch.rand(60, 70) > 0.5) | it.prefix(2), 60, 70),
        ],
        ids=lambda x: repr(x)[:40],
    )
    def test_it_shows_what_draw_shows(self, mask: it.Mask, t: int, s: int) -> None:
        assert self.cells(mask) == mask.draw(t, s).replace(" ", "").split("\n")
        assert f"{t} queries (down) × {s} keys (across)</" in mask._repr_html_()

    def test_picked_heads_show_the_first(self) -> None:
        mask = it.padding(torch.tensor([2, 3]))
        g = Geometry((2, 2), 4, 4, CPU)
        picked = indexed(mask, g, (torch.tensor([1, 0]),))
        assert repr(picked) == "(padding([2, 3]))[2×2 picked]"
        assert self.cells(picked) == ["███"] * 3

    def test_large_ones_are_drawn_by_blocks(self) -> None:
        ids = torch.arange(300) // 100
        shown = self.cells(it.segments(ids))
        assert len(shown) == len(shown[0]) == 100
        assert shown[0] == "█" * 33 + "▒" + "·" * 66
        assert (
            "300 queries (down) × 300 keys (across), one cell for 3 × 3<"
            in it.segments(ids)._repr_html_()
        )

    def test_the_caption_is_what_was_written(self) -> None:
        caption = self.tree(it.causal() & ~it.window(1, 0)).find(".//figcaption/code")
        assert caption is not None
        assert caption.text == "causal() & ~window(1, 0)"
        long = it.causal() & it.prefix(1)
        for n in range(40):
            long = long & it.prefix(n)
        text = self.tree(long).findtext(".//figcaption/code")
        assert text is not None
        assert len(text) == 160
        assert text.endswith("…")

    def test_rules_that_fit_no_matrix_are_only_written(self) -> None:
        mask = it.grid(2, 2, 1) & it.grid(3, 3, 1)
        assert mask._repr_html_() == "<code>grid(2, 2, 1) &amp; grid(3, 3, 1)</code>"
