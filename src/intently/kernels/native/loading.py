"""The compiled module, if it was built and loads on this machine."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any, NamedTuple

from intently.foundation import forks


class Loaded(NamedTuple):
    """The module, or the reason why there is none."""

    module: ModuleType | None
    reason: str | None


def _load() -> Loaded:
    if os.environ.get("INTENTLY_NATIVE") == "off":
        return Loaded(None, "INTENTLY_NATIVE=off is set")
    try:
        module = importlib.import_module("intently.kernels.native._native")
    except ModuleNotFoundError:
        return Loaded(None, "it was not built: no C++ compiler was found, or it failed")
    except ImportError as error:
        return Loaded(None, f"it does not load: {error}")
    if forks.is_fork:  # of a process that may have used PyTorch's threads
        module.forked()
    return Loaded(module, None)


loaded = _load()
"""Read when the package is imported; ``INTENTLY_NATIVE`` names an instruction set, or ``off``."""


def library() -> Any:
    """Return the module; only called where `loaded` has one."""
    assert loaded.module is not None
    return loaded.module


def instructions() -> str | None:
    """Return the instruction set in use, such as ``"avx512"``; None without the module."""
    return None if loaded.module is None else library().instructions()
