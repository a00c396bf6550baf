"""Replacing functions by name: counted, so that watches nest, and undone by the last of them.

What replaces a function stays the same for all watches; whether it does anything is asked at each
call (`intently.observe.watch.current`), so that other threads and tasks pass through.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True)
class Target:
    """Replace ``owner.name`` by ``wrap(original)``; with ``everywhere`` its from-imports too."""

    owner: Any
    name: str
    wrap: Callable[[Function], Function]
    everywhere: bool = False


@dataclass
class _Patch:
    original: Function
    replacement: Function
    inherited: bool
    count: int = 0


_lock = threading.RLock()
_patches: dict[tuple[int, str], _Patch] = {}
_searched: dict[int, tuple[int, tuple[str, ...]]] = {}
"""Globals of modules by id: how many names they had when searched, and which were bound."""


def install(targets: Iterable[Target]) -> list[Target]:
    """Replace every target, or count once more where it is replaced already.

    Returns what was installed, to be handed to `remove`; if one fails, none stays.
    """
    done: list[Target] = []
    with _lock:
        try:
            for target in targets:
                _install(target)
                done.append(target)
        except BaseException:
            remove(done)
            raise
    return done


def remove(targets: Iterable[Target]) -> None:
    """Count every target down, and put the original back where nobody is left."""
    with _lock:
        for target in reversed(list(targets)):
            key = id(target.owner), target.name
            patch = _patches[key]
            patch.count -= 1
            if not patch.count:
                del _patches[key]
                _restore(target, patch)


def active() -> int:
    """How many names are replaced at the moment."""
    return len(_patches)


def _install(target: Target) -> None:
    key = id(target.owner), target.name
    patch = _patches.get(key)
    if patch is None:
        inherited = target.name not in vars(target.owner)
        original = (
            getattr(target.owner, target.name) if inherited else vars(target.owner)[target.name]
        )
        patch = _Patch(original, target.wrap(original), inherited)
        setattr(target.owner, target.name, patch.replacement)
        _patches[key] = patch
    patch.count += 1
    if target.everywhere:  # again for each watch: modules may have been imported since
        _rebind(patch.original, patch.replacement)


def _restore(target: Target, patch: _Patch) -> None:
    if vars(target.owner).get(target.name) is patch.replacement:
        if patch.inherited:
            delattr(target.owner, target.name)
        else:
            setattr(target.owner, target.name, patch.original)
    if target.everywhere:
        _rebind(patch.replacement, patch.original)


def _rebind(old: Function, new: Function) -> None:
    """Change the globals of all modules that are bound to ``old``.

    Modules are searched once, and again when they have more names than before.
    """
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        size, held = _searched.get(id(names), (0, ()))
        if size != len(names):
            held = tuple(name for name, x in list(names.items()) if x is old or x is new)
            _searched[id(names)] = len(names), held
        for name in held:
            if names.get(name) is old:
                names[name] = new

