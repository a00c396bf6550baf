"""Run code whose views raise: tensors that are not contiguous are reshaped in their place."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

OURS = ("torch", "intently")
"""The packages whose lines are not the subject's."""


class Reshaped(TorchFunctionMode):
    """Reshapes where a view raises; ``places`` are the lines in which it does."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            if func is not Tensor.view:
                raise
            self.places.append(_place())
            return Tensor.reshape(*args, **(kwargs or {}))


def _place() -> str:
    """The innermost line that is the subject's own, as ``file:line: code``."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in OURS:
            file, line = frame.f_code.co_filename, frame.f_lineno
            return f"{Path(file).name}:{line}: `{linecache.getline(file, line).strip()}`"
        frame = frame.f_back
    return "its code"
