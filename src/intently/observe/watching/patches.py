"""Replacing functions by name: counted, so that watches nest, and undone by the last of them.

All watches share one replacement, which asks at each call who watches
(`intently.observe.watching.scope.current`), so that other threads and tasks pass through.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.overrides import handle_torch_function, has_torch_function

Function = Callable[..., Any]


@dataclass(frozen=True)
class Target:
    """Replace ``owner.name`` by ``wrap(original)``; with ``everywhere`` its from-imports too.

    A dict or list is an owner too, whose names are its keys or indices.
    """

    owner: Any
    name: Any
    wrap: Callable[[Function], Function]
    everywhere: bool = False


@dataclass
class _Patch:
    original: Function
    replacement: Function
    inherited: bool
    count: int = 0


_lock = threading.Lock()
_patches: dict[tuple[int, Any], _Patch] = {}
_left: deque[list[Target]] = deque()
"""Targets that are still to be removed."""
_bound: dict[int, tuple[list[Any], list[tuple[dict[str, Any], str]]]] = {}
"""For a function by id: the modules that were searched, and where they bind it."""


def install(targets: Iterable[Target]) -> list[Target]:
    """Replace every target; count targets that are replaced already once more.

    Returns the targets for `remove`; if one fails, none stays.
    """
    done: list[Target] = []
    try:
        with _lock:
            for target in targets:
                _install(target)
                done.append(target)
    except BaseException:
        remove(done)
        raise
    _settle()
    return done


def remove(targets: Iterable[Target]) -> None:
    """Count every target down, and restore the original if nobody is left.

    The garbage collector may call this at any time, even while targets are installed: whoever holds
    the lock then removes them afterwards.
    """
    _left.append(list(targets))
    _settle()


def _settle() -> None:
    while _left and _lock.acquire(blocking=False):
        try:
            while _left:
                _remove(_left.popleft())
        finally:
            _lock.release()


def _remove(targets: list[Target]) -> None:
    for target in reversed(targets):
        key = id(target.owner), target.name
        patch = _patches[key]
        patch.count -= 1
        if not patch.count:
            del _patches[key]
            _restore(target, patch)


def active() -> int:
    """How many names are replaced at the moment."""
    return len(_patches)


def names_beside(model: nn.Module | None) -> list[dict[str, Any]]:
    """The globals of the files that define the classes of a model, except PyTorch's."""
    modules = () if model is None else model.modules()
    files = {kind.__module__ for kind in {type(m) for m in modules} for kind in kind.__mro__}
    ours = [name for name in sorted(files) if name.split(".")[0] not in ("torch", "builtins")]
    return [vars(sys.modules[name]) for name in ours if name in sys.modules]


def known_to_scripts(replacement: Function, original: Function) -> None:
    """Let `torch.jit.script` take a replacement, which has to live forever, for the original."""
    known = _find_builtin(original)
    if known is not None:
        _register_builtin(replacement, known)


def _install(target: Target) -> None:
    key = id(target.owner), target.name
    patch = _patches.get(key)
    if patch is None:
        own = _own(target.owner)
        inherited = target.name not in own
        original = getattr(target.owner, target.name) if inherited else own[target.name]
        patch = _Patch(original, target.wrap(original), inherited)
        _set(target.owner, target.name, patch.replacement)
        _patches[key] = patch
    patch.count += 1
    if target.everywhere:  # again for each watch: modules may have been imported since
        _rebind(patch.original, patch.replacement, id(patch.original))


def _restore(target: Target, patch: _Patch) -> None:
    if _own(target.owner).get(target.name) is patch.replacement:
        if patch.inherited:
            delattr(target.owner, target.name)
        else:
            _set(target.owner, target.name, patch.original)
    if target.everywhere:
        _rebind(patch.replacement, patch.original, id(patch.original))


def _own(owner: Any) -> Mapping[Any, Any]:
    """The own entries of an owner, by name, key or index."""
    if isinstance(owner, list):
        return dict(enumerate(owner))
    return owner if isinstance(owner, dict) else vars(owner)


def _set(owner: Any, name: Any, x: Any) -> None:
    if isinstance(owner, (dict, list)):
        owner[name] = x
    else:
        setattr(owner, name, x)


def _rebind(old: Function, new: Function, which: int) -> None:
    """Change the globals of all modules that are bound to ``old``, ``which`` by id.

    If the modules are those of the last search, only the places found then and ``__main__``, where
    people type, are searched. Names in ``torch._C``, by which PyTorch's compiler knows functions,
    stay.
    """
    searched, places = _bound.get(which, ([], []))
    named = dict(sys.modules)
    modules = list(named.values())
    if len(modules) != len(searched) or not all(map(is_, modules, searched)):
        kept = [m for name, m in named.items() if not name.startswith("torch._C")]
        places = [place for module in kept for place in _places(module, old)]
        _bound[which] = modules, places
    for names, name in [*places, *_places(sys.modules["__main__"], old)]:
        if names.get(name) is old:
            names[name] = new


def _places(module: Any, x: Function) -> Iterator[tuple[dict[str, Any], str]]:
    names = getattr(module, "__dict__", None)
    if isinstance(names, dict):
        yield from [(names, name) for name, held in list(names.items()) if held is x]


def as_without(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call the original: subclasses and modes get the original, and not the replacement."""
    given = (*args, *kwargs.values())
    if not torch.compiler.is_compiling() and has_torch_function(given):
        return handle_torch_function(function, given, *args, **kwargs)
    return function(*args, **kwargs)
