"""Figures survive hostile words and every script; files are whole and repeatable."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch

import intently as it
from intently import show
from intently.core.matrix import Dense
from intently.errors import ArgumentError, KindError, WriteError
from intently.show import style

from .drawing import GOLD, extents, milk, model, shaded, ticks, weights, written
from .drawing import quiet as quiet

# --- hostile words --------------------------------------------------------------------------------
HOSTILE = ("$x^2$", "\\alpha", "a\nb", "", "x" * 10_000, "\x1b[31m", "_a^b_", "\u202eabc", "\ud800")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_hostile_words_are_drawn_as_they_are(tmp_path, suffix):
    A = Dense(torch.eye(9), labels=(HOSTILE, HOSTILE))
    figure = show.heatmap(A, margins=False, title="$\\frac$ \\alpha", save=tmp_path / f"a{suffix}")
    shown = ticks(figure.axes[0], "y")
    assert shown[:4] == ["$x^2$", "\\alpha", "a⏎b", "∅"]
    assert shown[4] == "x" * 23 + "…"
    assert shown[5:] == ["⟨U+001B⟩[31m", "_a^b_", "⟨U+202E⟩abc", "⟨U+D800⟩"]
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())
    assert written(figure) == ["$\\frac$ \\alpha"]
    show.heatmap(A, title="$", save=tmp_path / f"h{suffix}")
    show.heads(
        {"encoder.0.self_attention": Dense(torch.eye(9)[None], labels=(HOSTILE, HOSTILE))},
        title="$",
    )


def test_fonts_that_matplotlib_has_not_listed_yet_are_found(monkeypatch):
    from matplotlib import font_manager

    style.find_new_fonts()
    every = list(font_manager.fontManager.ttflist)
    cjk = {font.name for font in every if "CJK" in font.name}
    if not cjk:
        pytest.skip("no font for Chinese, Japanese and Korean is installed")
    monkeypatch.setattr(
        font_manager.fontManager, "ttflist", [font for font in every if font.name not in cjk]
    )
    style.find_new_fonts.cache_clear()
    assert set(style.families("語")) & cjk


@pytest.mark.parametrize("word", ["お元気ですか", "שלום", "مرحبا", "नमस्ते", "👍🏽"])
def test_every_script_is_drawn_without_a_warning(tmp_path, word):
    A = Dense(torch.eye(2), labels=((word, "?"), (word, "?")))
    figure = show.heatmap(A, margins=False, title=word, save=tmp_path / "a.png")
    assert ticks(figure.axes[0], "y") == [word, "?"]
    figure.savefig(tmp_path / "again.pdf")  # later drawing, outside the style, is as quiet


def test_fonts_are_added_only_for_characters_that_need_them():
    assert style.families("plain, déjà vu, שלום") == ["DejaVu Sans"]
    assert style.families("か")[0] == "DejaVu Sans"
    assert len(style.families("か")) > 1


def test_weights_that_are_no_number_are_hatched_and_counted():
    values = weights(4, 4)
    values[1, 2] = math.nan
    values[3] = math.inf
    for figure in [show.heatmap(Dense(values))]:
        assert np.isnan(shaded(figure.axes[0])).sum() == 5
        assert "hatched: 5 of 16 weights are not finite" in "\n".join(written(figure))
        assert any(patch.get_hatch() for patch in figure.axes[0].patches)
    everything = Dense(torch.full((2, 2), math.nan))
    assert "4 of 4" in written(show.heatmap(everything))[-1]
    show.heatmap(everything, scale="log")


HISTORY = [{"step": n, "seconds": n / 10, "loss": 4 / n} for n in range(1, 50)]


DRAWINGS = {
    "alignment": lambda **how: show.heatmap(milk(), gold=GOLD, margins=False, **how),
    "bias": lambda **how: show.bias(it.alibi(3), 9, **how),
    "curves": lambda **how: show.curves({"$x$": [(9, 8, 10), 6]}, ["1–5", ">5"], **how),
    "embeddings": lambda **how: show.embeddings(weights(5, 7), list("abcde"), **how),
    "heads": lambda **how: show.heads(model(), **how),
    "heatmap": lambda **how: show.heatmap(milk(), **how),
    "lines": lambda **how: show.lines(milk(), "du", **how),
    "mask": lambda **how: show.mask(it.causal(), 9, **how),
    "overlay": lambda **how: show.overlay(Dense(weights(5, 5)), np.eye(8), 0, **how),
    "positions": lambda **how: show.positions(it.sinusoidal(30, 8), **how),
    "text": lambda **how: show.text(milk(), "du", **how),
    "tokens": lambda **how: show.text("a b", {"words": str.split}, **how),
    "training": lambda **how: show.curves(HISTORY, **how),
}


@pytest.mark.parametrize("name", [name for name in DRAWINGS if name != "embeddings"])
def test_no_text_is_cut_and_none_lies_on_another(name):
    figure = DRAWINGS[name](title="A title that is longer than most of the figures are wide here")
    width, height = figure.canvas.get_width_height()
    boxes = [box.padded(-1) for box in extents(figure)]
    for n, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        assert not any(box.overlaps(other) for other in boxes[:n])


# --- files ----------------------------------------------------------------------------------------
HEADER = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [*((name, ".png") for name in DRAWINGS), ("heatmap", ".svg"), ("heatmap", ".pdf")],
)
def test_files_are_whole_and_equal_for_equal_input(tmp_path, name, suffix):
    first, second = tmp_path / "new" / "folder" / f"a{suffix}", tmp_path / f"b{suffix.upper()}"
    DRAWINGS[name](save=first)
    with matplotlib.rc_context({"font.size": 30, "text.usetex": True, "axes.grid": True}):
        DRAWINGS[name](save=str(second))
    assert first.read_bytes().startswith(HEADER[suffix])
    assert len(first.read_bytes()) > 2500
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", DRAWINGS)
def test_an_svg_holds_its_texts_as_texts_and_its_heading_as_title(tmp_path, name):
    figure = DRAWINGS[name](title="a < heading", save=tmp_path / "a.svg")
    page = ElementTree.parse(tmp_path / "a.svg").getroot()
    found = {name: page.iter(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("text", "title")}
    assert (next(found["title"]).text or "").startswith("a < heading")
    said = {text.text for text in found["text"]}
    assert said >= {line for text in written(figure) for line in text.split("\n")}


@pytest.mark.parametrize("name", DRAWINGS)
def test_unknown_suffixes_and_folders_are_refused_before_drawing(tmp_path, name):
    for wrong in ("picture.jpg", "picture", "picture.png.gz"):
        with pytest.raises(ArgumentError, match=r"save: expected a file name that ends in \.png"):
            DRAWINGS[name](save=tmp_path / wrong)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ArgumentError, match=r"save: .*A folder of this name"):
        DRAWINGS[name](save=tmp_path / "folder.png")
    (tmp_path / "file").write_text("")
    for place, cause in (
        (tmp_path / "file" / "a.png", "Not a directory"),
        (tmp_path / ("a" * 300 + ".png"), "File name too long"),
        (str(tmp_path / "a\0.png"), "null byte"),
        ("/proc/a.png", "No such file"),
    ):
        with pytest.raises(ArgumentError, match=rf"save: expected a file that can.*(?i:{cause})"):
            DRAWINGS[name](save=place)
    for wrong in (3, b"a.png"):
        with pytest.raises(KindError, match="save: expected a path; got"):
            DRAWINGS[name](save=wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


def test_the_path_is_checked_before_drawing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("intently.show.figures.heatmap.one_of", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ArgumentError, match="Not a directory"):
        show.heatmap(milk(), save=tmp_path / "file" / "a.png")


def test_what_fails_while_writing_is_told(tmp_path):
    with pytest.raises(WriteError, match=r"png: expected a place where the file can be .*too long"):
        show.heatmap(milk(), save=tmp_path / "new" / ("a" * 300 + ".png"))


@pytest.mark.parametrize("name", DRAWINGS)
def test_titles_are_texts(name):
    with pytest.raises(KindError, match="title: expected a text; got int"):
        DRAWINGS[name](title=3)


def test_the_package_loads_no_matplotlib():
    code = (
        "import sys, intently.show; sys.exit('matplotlib' in sys.modules or 'rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_figure_shows_itself_in_a_notebook_without_a_backend():
    figure = show.mask(it.causal(), 4, 4)
    assert figure._repr_png_().startswith(b"\x89PNG")
    again = pickle.loads(pickle.dumps(figure))
    assert again.get_size_inches().tolist() == figure.get_size_inches().tolist()
