"""Where attention is seen: one file for each library, each with the functions it replaces."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import nn

from intently.observe.sources import by_hand, functional, native, ours, transformers
from intently.observe.watching.scope import Target

EVERY = (functional, ours, native, transformers, by_hand)


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
    names = {kind.__module__: None for kind in kinds}
    files = [
        vars(sys.modules[name])
        for name in names
        if name in sys.modules and name.split(".")[0] not in ("torch", "builtins")
    ]
    compiled = "torch._dynamo.eval_frame" in sys.modules  # else nothing was
    return found + functional.held([*modules, *kinds, *files], compiled)
