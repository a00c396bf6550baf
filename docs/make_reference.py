"""The reference of the site: a page for each public package, from its docstrings."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

PACKAGES = (
    *(
        "intently",
        "intently.core.masks",
        "intently.core.biases",
        "intently.core.scores",
        "intently.core.positions",
    ),
    *(
        "intently.core.matrix",
        "intently.core.matrix.patterns",
        "intently.core.kernels",
        "intently.reference",
    ),
    *("intently.nn", "intently.nn.models", "intently.tasks.text", "intently.tasks.corpora"),
    *(
        "intently.tasks.language",
        "intently.tasks.decoding",
        "intently.tasks.training",
        "intently.tasks.translation",
    ),
    *("intently.tasks.recipes", "intently.observe", "intently.observe.edits", "intently.checker"),
    *("intently.show", "intently.show.animate", "intently.show.page", "intently.tasks.play"),
    *("intently.interop.torch", "intently.interop.transformers", "intently.interop.diffusers"),
    *("intently.interop.keras", "intently.errors"),
)
"""Public packages in the order in which one meets them."""

INDEX = """Reference
=========

Every public name, from its docstring. Shapes use the letters of :doc:`../contracts`.

.. toctree::
   :maxdepth: 1

"""


def write(folder: Path) -> None:
    """Write the pages into a folder; files that would not change are left alone."""
    folder.mkdir(exist_ok=True)
    told: dict[int, str] = {}
    pages = {name: _page(name, told) for name in PACKAGES}
    pages["index"] = INDEX + "".join(f"   {name}\n" for name in PACKAGES)
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _page(name: str, told: dict[int, str]) -> str:
    """The page of a package; what an earlier page tells is named and left to it."""
    module = importlib.import_module(name)
    own: list[str] = []
    again: list[str] = []
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if not isinstance(value, ModuleType):
            first = told.setdefault(id(value), name) == name
            (own if first else again).append(public)
    page = f"{name}\n{'=' * len(name)}\n\n"
    if own:
        page += "**Names**: " + ", ".join(f":py:obj:`~{name}.{n}`" for n in own) + ".\n"
    if again:
        page += "\n**Also here**: "
        page += ", ".join(f":doc:`{n} <{told[id(getattr(module, n))]}>`" for n in again) + ".\n"
    page += f"\n.. automodule:: {name}\n   :members:\n"
    return page + (f"   :exclude-members: {', '.join(again)}\n" if again else "")
