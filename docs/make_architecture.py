"""Draw the rooms of the package and which imports which: ``python docs/make_architecture.py``.

Rooms and arrows are read from the code: the order from ``tests/test_layers.py``, the arrows from
the imports. An arrow is left out where a longer way of arrows says the same.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "intently"
WORDS = {
    "foundation": "arrays, checks, files",
    "core": "compute: the lazy matrix, masks, biases, kernels",
    "nn": "build: attention with parameters, blocks, models",
    "observe": "look inside: watch, edit, effects",
    "show": "see: figures, diagrams, stories, the page",
    "interop": "exchange: weights of other libraries",
    "checker": "trust: which mistake an attention makes",
    "tasks": "use: text, training, decoding, translation, demo",
    "cli": "commands",
}
SHADES = ("#eef1f5", "#dbe8f4", "#dbe8f4", "#ddebd9", "#ddebd9", "#ddebd9", "#ddebd9", "#f6ecd9")


def uses(room: str) -> set[str]:
    """The rooms that a room imports, at the top of a module or within a function."""
    found = set()
    for path in (SOURCE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("intently."):
                found.add(str(node.module).split(".")[1])
    return found - {room}


def arrows() -> dict[str, set[str]]:
    """From each room to those it imports, without arrows that a longer way replaces."""
    sys.path.insert(0, str(ROOT / "tests"))
    from test_layers import EXCEPTIONS

    allowed = {(a.split(".")[1], b.split(".")[1]) for a, b in EXCEPTIONS}
    direct = {
        room: {x for x in uses(room) & WORDS.keys() if (room, x) not in allowed} for room in WORDS
    }

    def reach(room: str) -> set[str]:
        return {room}.union(*(reach(x) for x in direct[room]))

    return {
        room: {x for x in ends if not any(x in reach(y) for y in ends - {x})}
        for room, ends in direct.items()
    }


def draw(save: Path) -> None:
    """Write the picture: the rooms from top to bottom, arrows upward on the right."""
    figure = Figure(figsize=(7, 6.2))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 70), ylim=(-10 * len(WORDS), 0))
    axes.axis("off")
    places = {room: -10 * n - 5 for n, room in enumerate(WORDS)}
    for n, (room, y) in enumerate(places.items()):
        look = {"fc": SHADES[min(n, len(SHADES) - 1)], "ec": "#567", "lw": 0.8}
        axes.add_patch(FancyBboxPatch((3, y - 3), 56, 6, boxstyle="round,pad=0.6", **look))
        axes.text(5, y, f"{room}/", va="center", weight="bold", fontsize=11)
        axes.text(19, y, WORDS[room], va="center", fontsize=9)
        files = len(list((SOURCE / room).rglob("*.py")))
        axes.text(58.5, y, f"{files} files", va="center", ha="right", fontsize=7, color="#778")
    for room, ends in arrows().items():
        for end in ends:
            bend = min(0.55, 0.25 + (places[end] - places[room]) / 200)
            look = {"arrowstyle": "-|>", "mutation_scale": 9, "lw": 0.9, "color": "#5b7c90"}
            style = f"arc3,rad={bend}"
            start, stop = (59.8, places[room] + 1), (59.8, places[end] - 1)
            axes.add_patch(FancyArrowPatch(start, stop, connectionstyle=style, **look))
    figure.savefig(save, dpi=130)


if __name__ == "__main__":
    draw(ROOT / "docs" / "pictures" / "architecture.png")
