"""What a watch searches: the modules of a model, their classes, and the files that define them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Searched:
    """All modules of a model, the classes of which they are, and the globals of their files.

    The classes include all bases, the files none of PyTorch's.
    """

    modules: tuple[nn.Module, ...] = ()
    kinds: tuple[type, ...] = ()
    files: tuple[dict[str, Any], ...] = ()

    @staticmethod
    def of(modules: Iterable[nn.Module]) -> Searched:
        """What belongs to these modules."""
        modules = tuple(modules)
        kinds = {kind: None for own in dict.fromkeys(map(type, modules)) for kind in own.__mro__}
        names = sorted({kind.__module__ for kind in kinds})
        theirs = [name for name in names if name.split(".")[0] not in ("torch", "builtins")]
        files = tuple(vars(sys.modules[name]) for name in theirs if name in sys.modules)
        return Searched(modules, tuple(kinds), files)
