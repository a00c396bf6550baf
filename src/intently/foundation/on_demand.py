"""Imports on first use: the names of a package (PEP 562), and the libraries of extras."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from intently.errors import MissingLibraryError, build


def names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose modules ``homes`` hold these public names.

    The package's own modules are found as well. No module may share its name with a public
    attribute: the import system would replace the attribute with the module.

    >>> find = names("intently", {"core.masks": ("causal",)})
    >>> find("causal")(), find("errors").__name__
    (causal(), 'intently.errors')
    >>> find("casual")
    Traceback (most recent call last):
    ...
    AttributeError: module 'intently' has no attribute 'casual'
    """
    home = {name: module for module, held in homes.items() for name in held}

    def find(name: str) -> Any:
        if name in home:
            value = getattr(import_module(f"{package}.{home[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def listed(package: str, *more: str) -> Callable[[], list[str]]:
    """Return the ``__dir__`` of a package: its public names and these packages, used or not.

    >>> listed("intently.tasks.text")()[:3]
    ['EOS', 'KINDS', 'PAD']
    """
    return lambda: sorted({*sys.modules[package].__all__, *more})


def require(library: str, does: str) -> None:
    """Raise `MissingLibraryError` unless a library is installed; its extra has the same name.

    ``does`` completes the sentence "the library, which …".

    >>> require("transformers", "reads such folders")
    """
    if find_spec(library) is None:
        raise build(
            MissingLibraryError,
            library,
            f"{library}, which {does}",
            "an environment without it",
            fix=f"install it by pip install 'intently[{library}]'",
        )
