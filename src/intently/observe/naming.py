"""Names of modules, patterns over them, and which of them might have attended unseen."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from intently.errors import ArgumentError, KindError, build

OUTSIDE = "attention"
"""The name of attention that no module runs."""


class Names:
    """The names of a model's modules, or of whatever runs where no model is watched.

    Raises `ArgumentError` for patterns that match nothing, with the nearest names, and `KindError`
    for anything but a module.
    """

    def __init__(self, model: nn.Module | None, layers: str | Sequence[str] | None) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise build(
                KindError, "model", "an nn.Module, or None for all attention",
                type(model).__name__, fix="hand in the module inside it, such as pipeline.unet",
            )  # fmt: skip
        self._model = model
        self._names = {} if model is None else _named(model)
        self._patterns = None if layers is None else _patterns(layers)
        for pattern in self._patterns or ():
            if model is not None:
                self._check(pattern)

    def of(self, module: nn.Module | None, running: Sequence[nn.Module]) -> str | None:
        """The name of ``module``, else of the innermost running one; None outside of the model."""
        if self._model is None:
            return _free_name(module, running)
        if module is not None and module in self._names:
            return self._names[module]
        for candidate in reversed(running):
            if candidate in self._names:
                return self._names[candidate]
        return None

    def wanted(self, name: str) -> bool:
        """Whether a pattern asks for the module."""
        return self._patterns is None or any(_matches(name, p) for p in self._patterns)

    def unseen(self, seen: Iterable[str]) -> dict[str, str]:
        """Modules that look like attention and were not seen, with the likely reason."""
        found: dict[str, str] = {}
        known, fixed = set(seen), list[set[nn.Module]]()
        for module, name in self._names.items():
            above = any(module in other for other in fixed)
            why = None if above else _fixed_graph(module)
            if why is not None:
                fixed.append(set(module.modules()))
                if self.wanted(name) and name not in known:
                    found[name] = why
            if above or why is not None:
                continue
            kind = type(module).__name__.lower()
            if not ("attention" in kind or "attn" in kind) or not self.wanted(name):
                continue
            inside = {self._names[m] for m in module.modules() if m in self._names}
            above = any(name.startswith(f"{other}.") for other in known)
            below = any("attention" in type(m).__name__.lower() for m in list(module.modules())[1:])
            if not (inside & known or above or below):
                found[name] = (
                    "no call of an attention function was seen: it did not run, or it computes by "
                    "hand (watch with deep=True)"
                )
        return found

    def _check(self, pattern: str) -> None:
        names = list(self._names.values())
        if not any(_matches(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, 3, 0.3)
            raise build(
                ArgumentError, "layers", "names of modules, or patterns that match some",
                repr(pattern),
                fix=f"the nearest are {', '.join(map(repr, near))}" if near else None,
            )  # fmt: skip


def _named(model: nn.Module) -> dict[nn.Module, str]:
    """The names of all modules; Keras' models keep their layers to themselves."""
    names = {m: name or type(m).__name__ for name, m in model.named_modules()}
    for layer in getattr(model, "_flatten_layers", list)():
        if layer not in names:
            path = layer.path or layer.name
            names[layer] = path.removeprefix(f"{getattr(model, 'name', '')}/").replace("/", ".")
    return names


def _fixed_graph(module: nn.Module) -> str | None:
    """Why a graph with attention in it cannot be watched; None for all other modules."""
    if isinstance(module, torch.jit.ScriptModule):
        graph, kind = str(getattr(module, "inlined_graph", "")), "a ScriptModule of torch.jit"
    elif isinstance(module, torch.fx.GraphModule):
        calls = (node.target for node in module.graph.nodes if node.op == "call_function")
        graph, kind = " ".join(map(str, calls)), "an exported or traced graph"
    else:
        return None
    product = any(word in graph for word in ("matmul", "bmm", "einsum"))
    if "attention" not in graph and not ("softmax" in graph and product):
        return None
    return f"it is {kind}, which calls no function that could be watched: watch the model behind it"


def _free_name(module: nn.Module | None, running: Sequence[nn.Module]) -> str:
    """The class of the outermost running module, and the path to the innermost."""
    if not running:
        return OUTSIDE if module is None else type(module).__name__
    root = running[0]
    names = _named(root) | {root: ""}
    inner = next(m for m in (module, *reversed(running)) if m in names)
    return ".".join(filter(None, (type(root).__name__, names[inner])))


def _patterns(layers: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (layers,) if isinstance(layers, str) else tuple(layers)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise build(
                KindError, "layers", "names of modules as text, or patterns of them",
                type(pattern).__name__,
            )  # fmt: skip
    return patterns


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the name of a module, or of one that holds it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: n + 1]), pattern) for n in range(len(parts)))
