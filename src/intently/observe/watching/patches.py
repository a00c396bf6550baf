"""Replacing functions by name: counted, so that watches nest, and undone by the last of them.

All watches share one replacement, which asks at each call who watches
(`intently.observe.watching.scope.current`), so that other threads and tasks pass through.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
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
_searched: list[Any] = []
"""The modules in which functions were searched last."""
_bound: dict[int, list[tuple[dict[str, Any], str]]] = {}
"""For a function by id: where these modules bind it."""


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
            # again for each watch: modules may have been imported since
            found = [(x, _patches[id(x.owner), x.name]) for x in done if x.everywhere]
            _rebind([(id(x.original), x.original, x.replacement) for _, x in found])
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
    gone: list[_Patch] = []
    for target in reversed(targets):
        key = id(target.owner), target.name
        patch = _patches[key]
        patch.count -= 1
        if not patch.count:
            del _patches[key]
            _restore(target, patch)
            gone += [patch] if target.everywhere else []
    _rebind([(id(x.original), x.replacement, x.original) for x in gone])


def active() -> int:
    """How many names are replaced at the moment."""
    return len(_patches)


def is_replaced(owner: Any, name: Any) -> bool:
    """Whether a name is replaced at the moment."""
    return (id(owner), name) in _patches


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


def _restore(target: Target, patch: _Patch) -> None:
    if _own(target.owner).get(target.name) is patch.replacement:
        if patch.inherited:
            delattr(target.owner, target.name)
        else:
            _set(target.owner, target.name, patch.original)


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


def _rebind(changes: list[tuple[int, Function, Function]]) -> None:
    """Change the globals of all modules: for a function by id, those bound to one to the other.

    If the modules are those of the last search, only the places found then and ``__main__``, where
    people type, are searched. Names in ``torch._C``, by which PyTorch's compiler knows functions,
    stay.
    """
    if not changes:
        return
    modules = list(sys.modules.values())
    if modules != _searched:
        _searched[:] = modules
        _bound.clear()
    left = {id(old): which for which, old, _ in changes if which not in _bound}
    if left:
        _bound.update({which: [] for which in left.values()})
        for name, module in list(sys.modules.items()):
            if not name.startswith("torch._C"):
                for names, key, x in _held(module, left):
                    _bound[left[id(x)]].append((names, key))
    for which, old, new in changes:
        typed = [(names, key) for names, key, _ in _held(sys.modules["__main__"], {id(old)})]
        for names, key in [*_bound[which], *typed]:
            if names.get(key) is old:
                names[key] = new


def _held(module: Any, ids: Container[int]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The globals of a module that are objects of these ids."""
    names = getattr(module, "__dict__", None)
    if isinstance(names, dict):
        yield from [(names, key, x) for key, x in list(names.items()) if id(x) in ids]


def as_without(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call the original: subclasses and modes get the original, and not the replacement."""
    given = (*args, *kwargs.values())
    if not torch.compiler.is_compiling() and has_torch_function(given):
        return handle_torch_function(function, given, *args, **kwargs)
    return function(*args, **kwargs)
