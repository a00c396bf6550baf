"""Figures on dark paper: each colour of our style becomes its counterpart in the dark."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from intently.show.style import DARK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def dress(figure: Figure) -> None:
    """Give every artist that has a colour of the light style the one of the dark style.

    Maps of colours and the ink on their shades are chosen for the paper when they are made.
    """
    from matplotlib.text import Text

    found = figure.findobj()
    arrows = [getattr(artist, "arrow_patch", None) for artist in found]  # findobj leaves them out
    for artist in (*found, *filter(None, arrows)):
        light = _counterparts(isinstance(artist, Text))
        for part in PARTS:
            read = getattr(artist, f"get_{part}", None)
            if read is not None:
                given = read()
                dark = _dark(given, light)
                if dark is not None:
                    getattr(artist, f"set_{part}")(dark)


@cache
def _counterparts(text: bool) -> dict[str, str]:
    """Return the table of colours; white letters stand on a shade, and stay."""
    from matplotlib.colors import to_hex

    table = {to_hex(light): dark for light, dark in DARK.items()}
    return {light: dark for light, dark in table.items() if not (text and light == "#ffffff")}


def _dark(given: Any, counterparts: dict[str, str]) -> Any:
    """Return the colour, or the colours of a collection, in the dark; None if none changes."""
    from matplotlib.colors import to_hex, to_rgba, to_rgba_array

    if isinstance(given, str) and given in ("none", "auto"):
        return None
    many = not isinstance(given, str | tuple)
    colours = [tuple(colour) for colour in to_rgba_array(given)]
    changed = [
        to_rgba(counterparts[to_hex(colour)], colour[3])
        if to_hex(colour) in counterparts
        else colour
        for colour in colours
    ]
    if changed == colours:
        return None
    return changed if many else changed[0]
