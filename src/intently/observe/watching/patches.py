"""Replacing functions by name: claimed, so that watches nest, and undone after the last of them.

All watches share one replacement, which asks at each call who watches
(`intently.observe.watching.scope.current`), so that other threads and tasks pass through.

Ctrl-C may interrupt at any instruction. A patch is therefore noted before its name is replaced, and
forgotten after the name is restored; whatever nobody claims is restored by whoever comes next.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

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


@dataclass(eq=False)
class Claim:
    """Targets that are to be replaced as long as this object lives and is ``wanted``."""

    targets: list[Target]
    wanted: bool = True


@dataclass
class _Patch:
    target: Target
    original: Function
    replacement: Function
    inherited: bool
    claims: list[ref[Claim]] = field(default_factory=list)

    def wanted(self) -> list[ref[Claim]]:
        """The claims on it that hold."""
        return [x for x in self.claims if (claim := x()) is not None and claim.wanted]


_lock: Any = threading.RLock()
_patches: dict[tuple[int, Any], _Patch] = {}
_searched: list[Any] = []
"""The modules in which functions were searched last."""
_bound: dict[int, list[tuple[dict[str, Any], str]]] = {}
"""For a function by id: where these modules bind it."""


def install(claim: Claim) -> None:
    """Replace every target of a claim; if one fails, none stays."""
    try:
        _alone(lambda: _claim(claim))
    except BaseException:
        remove(claim)
        raise
    _settle()


def remove(claim: Claim) -> None:
    """Give up a claim, and restore what nobody else claims; doing it again changes nothing.

    The garbage collector may call this at any time, even while targets are installed: whoever holds
    the lock then restores them afterwards.
    """
    claim.wanted = False
    _settle()


def _settle() -> None:
    while not (_lock._is_owned() or all(x.wanted() for x in list(_patches.values()))):
        if not _alone(_mend, blocking=False):
            break


def _alone(work: Callable[[], None], *, blocking: bool = True) -> bool:
    """Do something while no other thread changes patches; False if one does and it may not wait."""
    try:
        if not _lock.acquire(blocking):
            return False
        work()
        _lock.release()
    except BaseException:  # an interrupt may come right before the release, or after it
        if _lock._is_owned():
            _lock.release()
        raise
    return True


def _claim(claim: Claim) -> None:
    _mend()
    for target in claim.targets:
        _replace(target, claim)
    # again for each watch: modules may have been imported since
    found = [_patches[id(x.owner), x.name] for x in claim.targets if x.everywhere]
    _rebind([(id(x.original), x.original, x.replacement) for x in found])


def _mend() -> None:
    """Restore and forget what nobody claims."""
    gone = {key: x for key, x in reversed(_patches.items()) if not x.wanted()}
    for patch in gone.values():
        _restore(patch)
    everywhere = [x for x in gone.values() if x.target.everywhere]
    _rebind([(id(x.original), x.replacement, x.original) for x in everywhere])
    for key in gone:
        del _patches[key]


def active() -> int:
    """How many names are replaced at the moment."""
    return len(_patches)


def known_to_scripts(replacement: Function, original: Function) -> None:
    """Let `torch.jit.script` take a replacement, which has to live forever, for the original."""
    known = _find_builtin(original)
    if known is not None:
        _register_builtin(replacement, known)


def _replace(target: Target, claim: Claim) -> None:
    key = id(target.owner), target.name
    own = _own(target.owner)
    if key not in _patches:
        inherited = target.name not in own
        original = getattr(target.owner, target.name) if inherited else own[target.name]
        _patches[key] = _Patch(target, original, target.wrap(original), inherited)
    patch = _patches[key]
    patch.claims = [*patch.wanted(), ref(claim)]
    if own.get(target.name, patch.original) is patch.original:
        _set(target.owner, target.name, patch.replacement)


def _restore(patch: _Patch) -> None:
    owner, name = patch.target.owner, patch.target.name
    if _own(owner).get(name) is patch.replacement:
        if patch.inherited:
            delattr(owner, name)
        else:
            _set(owner, name, patch.original)


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
        _bound.clear()
        _searched[:] = modules
    left = {id(old): which for which, old, _ in changes if which not in _bound}
    if left:
        found: dict[int, list[tuple[dict[str, Any], str]]] = {x: [] for x in left.values()}
        for name, module in list(sys.modules.items()):
            if not name.startswith("torch._C"):
                for names, key, x in _held(module, left):
                    found[left[id(x)]].append((names, key))
        _bound.update(found)
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
