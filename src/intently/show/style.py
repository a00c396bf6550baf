"""The one style of all figures: ink, colours and fonts, applied without touching global settings.

White is weight 0 and dark blue weight 1, a single hue of falling lightness that every reader and
every printer can distinguish; annotations (gold links, highlights) are vermilion, the colour of
Okabe and Ito's set that stays distinct from blue in every kind of colour blindness. Where
matplotlib's settings ask for a dark figure, as ``plt.style.use("dark_background")`` does, the
colours are those of the page in the dark: weight 0 is the paper, and weight 1 nearly white.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

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

BELOW = ("#5a3d0c", "#8f6a1e", "#c3a35a", "#e9dcb8")
"""Numbers below 0, from the lowest: sand, which everyone can tell from blue."""

DARK_PAPER = "#14171c"
DARK = {
    INK: "#e7ebf0",
    QUIET: "#9da7b3",
    FRAME: "#3a434e",
    GRID: "#272d35",
    HOLE: "#2a2f37",
    HATCH: "#59636f",
    SIDES: "#62748a",
    ACCENT: "#ff8a3d",
    LINES[0]: "#7fbaf0",
    LINES[2]: "#4cc79f",
    "white": DARK_PAPER,
    **dict(
        zip(
            (*WEIGHTS, *BELOW),
            (
                *(DARK_PAPER, "#1a2c41", "#1b4468", "#1f6293"),
                *("#2f84bf", "#62a8db", "#a5cff0", "#eaf5fe"),
                *("#f6dfb0", "#cfa04a", "#8a6a2e", "#43371f"),
            ),
            strict=True,
        )
    ),
}
"""What each colour becomes on dark paper."""

SHEET: dict[str, object] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
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
    "svg.fonttype": "none",
    "pdf.fonttype": 3,
}

DIM = 0.18
"""Luminance under which a figure counts as dark: black and white contrast with it equally."""

BASE = "DejaVu Sans"
LAST = "Last Resort High-Efficiency"
PREFERRED = """Noto Sans CJK JP, Noto Sans CJK SC, Noto Sans JP, Noto Sans SC, Source Han Sans,
Hiragino Sans, PingFang SC, Yu Gothic, Microsoft YaHei, Malgun Gothic, IPAGothic, TakaoGothic,
VL Gothic, WenQuanYi Zen Hei, Droid Sans Fallback, Noto Sans, Noto Sans Arabic, Noto Sans Hebrew,
Noto Sans Devanagari, Noto Sans Thai, Arial Unicode MS, Segoe UI Symbol, Apple Symbols"""
"""Families that are taken before others, from first to last."""


@contextmanager
def style(texts: Iterable[str] = (), paper: str | None = None) -> Iterator[None]:
    """Apply our style over matplotlib's own defaults inside this context, light or dark.

    ``texts`` are the words to draw; fonts are added until every character has one. The paper is
    dark if the figures of matplotlib are.
    """
    import matplotlib.style
    from matplotlib import rcParams
    from matplotlib.colors import to_rgb

    dark = luminance(to_rgb(paper or rcParams["figure.facecolor"])) < DIM
    colours = {name: DARK[x] for name, x in SHEET.items() if isinstance(x, str) and x in DARK}
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)  # a font without a normal weight is good enough
    try:
        sheet = {**SHEET, **(colours if dark else {}), "font.family": families("".join(texts))}
        with matplotlib.style.context(["default", sheet]):
            yield
    finally:
        log.setLevel(level)


def light(texts: Iterable[str] = ()) -> AbstractContextManager[None]:
    """Apply our style on white paper, whatever the settings of matplotlib: for animations."""
    return style(texts, "white")


def on_dark() -> bool:
    """Whether the paper is dark in this `style`."""
    from matplotlib import rcParams

    return rcParams["figure.facecolor"] == DARK_PAPER


def families(text: str) -> list[str]:
    """Return font families that together hold every character of the text.

    The first is matplotlib's own; installed fonts are added where it lacks a character. The last
    resort draws characters without a font as a box that names the script.
    """
    from matplotlib.font_manager import fontManager

    lacking = {ord(character) for character in text} - _characters(BASE)
    if not lacking:
        return [BASE]
    find_new_fonts()
    installed = {font.name for font in fontManager.ttflist}
    chosen = [BASE]
    preferred = PREFERRED.replace("\n", " ").split(", ")
    for family in [name for name in preferred if name in installed] + sorted(installed - {LAST}):
        if lacking and lacking & _characters(family):
            chosen.append(family)
            lacking -= _characters(family)
    return chosen + [LAST] * (LAST in installed)


@cache
def find_new_fonts() -> None:
    """Add fonts that were installed after matplotlib made its list, which it never renews."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {os.path.realpath(font.fname) for font in fontManager.ttflist}
    for path in sorted(map(os.path.realpath, findSystemFonts())):
        if path not in known:
            with suppress(Exception):  # not a font, or one that FreeType cannot read
                fontManager.addfont(path)


@cache
def _characters(family: str) -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=[family]))).get_charmap())


def luminance(colour: Sequence[float]) -> float:
    """Return the relative luminance of a colour, from 0 for black to 1 for white (WCAG 2.2)."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(colour: Sequence[float]) -> str:
    """Return the first of our ink, white and black with enough contrast, 4.5 : 1 (WCAG 2.2, 1.4.3).

    >>> ink_on((1, 1, 1)), ink_on((0.03, 0.19, 0.42)), ink_on((0.2, 0.5, 0.75))
    ('#222222', 'white', 'black')
    """
    from matplotlib.colors import to_rgb

    own = DARK[INK] if on_dark() else INK
    shade = luminance(colour)
    for ink in (own, "white"):
        darker, lighter = sorted((shade, luminance(to_rgb(ink))))
        if (lighter + 0.05) / (darker + 0.05) >= 4.5:
            return ink
    return "black"


def weight_map() -> Colormap:
    """Return the map from weights to colours: white to blue; non-finite values are clear."""
    return _map("intently", WEIGHTS, 512, on_dark())


def signed_map() -> Colormap:
    """Return the map for numbers of either sign: sand below 0, white at 0, blue above."""
    return _map("signed", (*BELOW, WEIGHTS[0], *WEIGHTS[1::2]), 513, on_dark())


@cache
def _map(name: str, ramp: tuple[str, ...], shades: int, dark: bool) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    ramp = tuple(DARK[shade] for shade in ramp) if dark else ramp
    colours = LinearSegmentedColormap.from_list(name, ramp, N=shades)
    return colours.with_extremes(bad=(0, 0, 0, 0), under=ramp[0], over=ramp[-1])


# --- figures on dark paper ------------------------------------------------------------------------

PARTS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def dress(figure: Figure) -> None:
    """Give every artist that has a colour of the light style the one of the dark style.

    Maps of colours and the ink on their shades are chosen for the paper when they are made; white
    letters stand on a shade, and stay.
    """
    from matplotlib.colors import to_hex, to_rgba, to_rgba_array
    from matplotlib.text import Text

    dark = {to_hex(light): colour for light, colour in DARK.items()}
    artists = figure.findobj()
    arrows = [getattr(artist, "arrow_patch", None) for artist in artists]  # findobj leaves them out
    for artist in (*artists, *filter(None, arrows)):
        for part in PARTS:
            light = getattr(artist, f"get_{part}", str)()
            if isinstance(light, str) and light in ("", "none", "auto"):
                continue
            before = to_rgba_array(light)
            shades = [to_hex(colour) for colour in before]
            stay = {"#ffffff"} if isinstance(artist, Text) else set()
            after = [
                to_rgba(dark[shade], colour[3]) if shade in dark and shade not in stay else colour
                for shade, colour in zip(shades, before)
            ]
            if len(before) and (before != after).any():
                many = not isinstance(light, str | tuple)
                getattr(artist, f"set_{part}")(after if many else after[0])
