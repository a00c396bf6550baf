"""The one style of all figures: ink, colours and fonts, applied without touching global settings.

White is weight 0 and dark blue weight 1, a single hue of falling lightness that every reader and
every printer tells apart; what is said *about* weights (gold links, highlights) is vermilion, the
colour of Okabe and Ito's set that stays distinct from blue in every kind of colour blindness.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

INK = "#222222"
QUIET = "#6b6b6b"
FRAME = "#b4b4b4"
GRID = "#e4e7eb"
HOLE = "#ececec"
HATCH = "#9a9a9a"
SIDES = "#8b9bb0"
ACCENT = "#d55e00"
LINES = ("#0b559f", ACCENT, "#117a5c")
WEIGHTS = ("#ffffff", "#e3eef9", "#c0daf0", "#8cc0e2", "#539ecd", "#2575b7", "#0b4f98", "#08306b")

SHEET: dict[str, object] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FRAME,
    "axes.linewidth": 0.7,
    "axes.labelsize": 9,
    "axes.unicode_minus": True,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "font.size": 9,
    "hatch.color": HATCH,
    "hatch.linewidth": 0.7,
    "text.usetex": False,
    "svg.hashsalt": "intently",
    "svg.fonttype": "path",
    "pdf.fonttype": 3,
}

BASE = "DejaVu Sans"
LAST = "Last Resort High-Efficiency"
PREFERRED = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Source Han Sans"),
    *("Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic"),
    *("IPAGothic", "TakaoGothic", "VL Gothic", "WenQuanYi Zen Hei", "Droid Sans Fallback"),
    *(
        "Noto Sans",
        "Noto Sans Arabic",
        "Noto Sans Hebrew",
        "Noto Sans Devanagari",
        "Noto Sans Thai",
    ),
    *("Arial Unicode MS", "Segoe UI Symbol", "Apple Symbols"),
)


@contextmanager
def style(texts: Iterable[str] = ()) -> Iterator[None]:
    """Draw inside this context: our style over matplotlib's own defaults, undone at its end.

    ``texts`` are the words that will be drawn; fonts are added until every character has one.
    """
    import matplotlib.style

    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)  # a font without a normal weight is good enough
    try:
        sheet = {**SHEET, "font.family": families("".join(texts))}
        with matplotlib.style.context(["default", sheet]):
            yield
    finally:
        log.setLevel(level)


def families(text: str) -> list[str]:
    """Return font families that together hold every character of the text.

    The first is matplotlib's own; others are taken from the installed ones where it lacks a
    character. What no font can say is drawn by the last resort, a box that names the script.
    """
    from matplotlib.font_manager import fontManager

    lacking = {ord(character) for character in text} - _characters(BASE)
    if not lacking:
        return [BASE]
    installed = {font.name for font in fontManager.ttflist}
    chosen = [BASE]
    for family in [name for name in PREFERRED if name in installed] + sorted(installed - {LAST}):
        if lacking and lacking & _characters(family):
            chosen.append(family)
            lacking -= _characters(family)
    return chosen + [LAST] * (LAST in installed)


@cache
def _characters(family: str) -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=[family]))).get_charmap())


@cache
def weight_map() -> Colormap:
    """Return the map from weights to colours: white, then blue; what is not finite is clear."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("intently", WEIGHTS, N=512)
    return colours.with_extremes(bad=(0, 0, 0, 0), under="white", over=WEIGHTS[-1])
