"""`Recorder`: what a source saw, under the name of the module that ran, into a recording."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from intently.attention import attend
from intently.errors import ArgumentError, build
from intently.masks import Geometry
from intently.observe import checking
from intently.observe.call import Call, How, operand
from intently.observe.recording import Entry, Recording
from intently.observe.stores import Store

OUTSIDE = "attention"
"""The name of attention that no module runs."""


class Recorder:
    """Keeps the calls of one watch."""

    def __init__(
        self,
        model: nn.Module | None,
        layers: str | Sequence[str] | None,
        tokens: Sequence[str] | None,
        store: str,
        dtype: torch.dtype | None,
        gradients: bool,
    ) -> None:
        self.running: list[nn.Module] = []
        self._names = {} if model is None else {m: n for n, m in model.named_modules()}
        self._model, self._gradients = model, gradients
        self._patterns = _patterns(layers, list(self._names.values()) if model else None)
        self._store = Store(store, dtype)
        self.recording = Recording(tokens)
        self._open = True

    def see(self, call: Call) -> None:
        """Keep a call under the name of the module that made it."""
        if not self._open:
            return
        name = self._name(call.module)
        if name is None or not self._wanted(name):
            return
        self._keep(name, call)

    def compiled(self) -> None:
        """Code compiled by torch.compile begins to run: what it attends is not seen."""
        self.recording.compiled += 1

    def close(self) -> None:
        """Keep nothing from now on."""
        self._open = False
        self._store.forget()

    def _keep(self, name: str, call: Call) -> None:
        q, k = self._store.keep(call.q), self._store.keep(call.k)
        how = self._how(call)
        entry = Entry(name, self.recording.count(name), call.source, q, k, how)
        with torch.no_grad():
            verdict = checking.check(call, entry.attention(), entry.index)
        entry.verified, entry.why = verdict.verified, verdict.why
        self.recording.add(entry)

    def _how(self, call: Call) -> How:
        return call.how

    def _name(self, module: nn.Module | None) -> str | None:
        """The name of the module, or of the innermost running one; None outside of the model."""
        if self._model is None:
            return self._free_name(module)
        if module is not None and module in self._names:
            return self._names[module] or type(module).__name__
        for m in reversed(self.running):
            if m in self._names:
                return self._names[m] or type(m).__name__
        return None

    def _free_name(self, module: nn.Module | None) -> str:
        if not self.running:
            return OUTSIDE if module is None else type(module).__name__
        root = self.running[0]
        names = {m: n for n, m in root.named_modules()}
        inner = next(m for m in (module, *reversed(self.running)) if m in names)
        return ".".join(filter(None, (type(root).__name__, names[inner])))

    def _wanted(self, name: str) -> bool:
        return self._patterns is None or any(_matches(name, p) for p in self._patterns)


def _patterns(
    layers: str | Sequence[str] | None, names: list[str] | None
) -> tuple[str, ...] | None:
    """Check patterns; those that match no name are refused with the nearest ones."""
    if layers is None:
        return None
    patterns = (layers,) if isinstance(layers, str) else tuple(layers)
    for pattern in patterns:
        if names is not None and not any(_matches(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, 3, 0.3)
            raise build(
                ArgumentError, "layers", "names of modules, or patterns that match some",
                repr(pattern), fix=f"the nearest are {', '.join(map(repr, near))}" if near else None,
            )  # fmt: skip
    return patterns


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the name of a module, or of one that holds it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: n + 1]), pattern) for n in range(len(parts)))
