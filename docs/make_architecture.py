"""Draw the rooms of the package, layer by layer: ``python docs/make_architecture.py``.

Layers, rooms and arrows are read from the code: the layers from ``tests/test_layers.py``, the
arrows from the imports. An arrow is left out where a longer way of arrows says the same. All rooms
stand on the foundation; arrows to the rooms of the idea end at their layer.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "intently"
NAMES = {
    "base": "foundation",
    "L0": "the idea",
    "L1": "blocks",
    "L2": "models",
    "L3a": "text and search",
    "L3b": "train, watch, show",
    "L4": "applications",
    "L5": "commands",
}
SHADES = ("#eef1f5", "#e3edf7", "#d9e8f5", "#d0e3f2", "#e6f0e4", "#ddebd9", "#f6ecd9", "#f3e2dc")


def rooms() -> dict[str, list[Path]]:
    """Folders and modules at the top of the package, with their files."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if not name.startswith("__"):
            found[name].append(path)
    return found


def uses(files: list[Path]) -> set[str]:
    """The rooms that some files import, at the top of a module or within a function."""
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("intently."):
                found.add(str(node.module).split(".")[1])
    return found


def reduced(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows without those that a longer way replaces."""

    def reach(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        return {name}.union(*(reach(n, seen | {name}) for n in arrows[name] - seen - {name}))

    return {
        name: {end for end in ends if not any(end in reach(other) for other in ends - {end, name})}
        for name, ends in arrows.items()
    }


def draw(save: Path) -> None:
    """Write the picture."""
    sys.path.insert(0, str(ROOT / "tests"))
    from test_layers import EXCEPTIONS, LAYERS

    found = rooms()
    layers = {key: [name for name in parts if name in found] for key, parts in LAYERS.items()}
    level = {name: n for n, parts in enumerate(layers.values()) for name in parts}
    allowed = {(a.split(".")[1], b.split(".")[1]) for a, b in EXCEPTIONS}
    arrows = {
        name: {
            end
            for end in uses(files)
            if 0 < level.get(end, 99) < level[name] and (name, end) not in allowed
        }
        for name, files in found.items()
        if name in level
    }
    figure = Figure(figsize=(11, 1.15 * len(layers)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 110), ylim=(-11.5 * len(layers), 0))
    axes.axis("off")
    middle: dict[str, tuple[float, float]] = {}
    for n, (key, names) in enumerate(layers.items()):
        top = -11.5 * n
        axes.add_patch(FancyBboxPatch((1, top - 10.2), 108, 8.9, fc=SHADES[n], ec="none"))
        axes.text(2, top - 5.8, NAMES[key], va="center", fontsize=10, color="#445")
        width = min(14.0, 88 / max(1, len(names)))
        for i, name in enumerate(names):
            x = 21 + i * width
            axes.add_patch(
                FancyBboxPatch(
                    (x, top - 8.7), width - 2, 5.6, fc="white", ec="#567", lw=0.8, zorder=2
                )
            )
            files = len(found[name])
            axes.text(
                x + (width - 2) / 2,
                top - 5,
                name.replace("_", "\n"),
                ha="center",
                zorder=3,
                va="center",
                fontsize=8 if len(name) < 11 else 6.5,
            )
            if files > 1:
                axes.text(
                    x + (width - 2) / 2,
                    top - 7.7,
                    f"{files} files",
                    ha="center",
                    zorder=3,
                    va="center",
                    fontsize=6,
                    color="#778",
                )
            middle[name] = (x + (width - 2) / 2, top - 5.8)
    for name, ends in reduced(arrows).items():
        for end in ends:
            (x, y), (u, v) = middle[name], middle[end]
            if level[end] == 1:
                u, v = x, -11.5 * level[end] - 6.9
            axes.add_patch(
                FancyArrowPatch(
                    (x, y + 3),
                    (u, v - 3.4),
                    arrowstyle="->",
                    mutation_scale=8,
                    lw=0.7,
                    color="#7a97a8",
                    connectionstyle=f"arc3,rad={0.08 if level[name] - level[end] > 1 else 0}",
                    zorder=1.5,
                )
            )
    figure.savefig(save, dpi=130)


if __name__ == "__main__":
    draw(ROOT / "docs" / "pictures" / "architecture.png")
