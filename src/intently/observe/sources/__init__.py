"""Where attention is seen: one file for each library, each with the functions it replaces."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from intently.observe.sources import flex, functional, native, ours, softmax, transformers
from intently.observe.watching.scope import Target

EVERY = (functional, ours, native, flex, transformers, softmax)


def targets(modules: Iterable[nn.Module], kinds: Iterable[type]) -> list[Target]:
    """What is replaced: functions of what is imported, and what modules and ``kinds`` hold of them.

    The classes include all bases; the files that define them are searched, but none of PyTorch's.
    """
    found: list[Target] = []
    for source in EVERY:
        for target in source.TARGETS:
            if not isinstance(target.owner, str):
                found.append(target)
                continue
            name, _, kind = target.owner.partition(":")
            owner = sys.modules.get(name)
            owner = getattr(owner, kind, None) if kind else owner
            if hasattr(owner, target.name):
                found.append(Target(owner, target.name, target.wrap, target.everywhere))
    held: list[tuple[Any, Mapping[str, Any]]] = [(module, vars(module)) for module in modules]
    classes: list[tuple[Any, Mapping[str, Any]]] = []
    files: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for kind in kinds:
        classes.append((kind, vars(kind)))
        name = kind.__module__
        if name in sys.modules and name.split(".")[0] not in ("torch", "builtins"):
            files[name] = vars(sys.modules[name]), vars(sys.modules[name])
    found += functional.held(held, classes, files.values())
    if "torch._dynamo.eval_frame" in sys.modules:  # else nothing was compiled
        found += flex.held([*held, *files.values()])
    return found
