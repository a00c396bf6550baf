"""The doors through which models attend: functions that are replaced while anybody listens.

All watches share one replacement, which asks at each call who watches (`scope.current`), so that
watches nest, and other threads and tasks call the originals. They are undone after the last watch.

Ctrl-C may interrupt at any instruction. A patch is therefore noted before its name is replaced, and
forgotten after the name is restored; whatever nobody claims is restored by whoever comes next.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import nn

from intently.errors import KernelError, build
from intently.observe import sources
from intently.observe.sources import by_hand
from intently.observe.watching.modules import Inputs
from intently.observe.watching.scope import (
    Function,
    Listener,
    Target,
    begin,
    current,
    leave,
    tell_elsewhere,
)

FIX_COMPILED = (
    "watch the model that was compiled (model._orig_mod), or run it within "
    'torch.compiler.set_stance("force_eager")'
)


def listen(listener: Listener, undo: ExitStack) -> None:
    """Tell a listener of every attention of this thread or task, until ``undo`` is closed.

    Raises `KernelError` for a compiled model, whose calls pass no function.
    """
    _refuse_compiled(listener.names.modules)
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        undo.callback(_compiler_forgets)
    else:
        rules.get_torch_obj_rule_map()  # before they are replaced
    modules = listener.names.modules
    same = (other.targets for other in current() if other.names.modules == modules)
    listener.targets = next(same, None) or _targets(modules)
    claim = Claim(listener.targets)
    for _ in range(2):  # the second does what an interrupt made the first leave out
        undo.callback(remove, claim)
        undo.callback(leave, listener)
    install(claim)
    begin(listener)


def _targets(modules: Mapping[nn.Module, str]) -> list[Target]:
    """The targets of every source, and the calls of modules, which tell those that run.

    The calls are those of `nn.Module`, and of classes of the model that are called in a way of
    their own. Python updates every subclass if ``nn.Module.__call__`` changes, up to thousands; a
    compiled module, which a stance makes run, is called by nothing else.
    """
    kinds = dict.fromkeys([k for own in dict.fromkeys(map(type, modules)) for k in own.__mro__])
    found = [
        Target(kind, "__call__", _named)
        for kind in kinds
        if kind is not nn.Module and "__call__" in vars(kind) and issubclass(kind, nn.Module)
    ]
    compiled = not modules or [x for x in modules if x._compiled_call_impl is not None]
    found.append(Target(nn.Module, "__call__" if compiled else "_call_impl", _named))
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        found.append(Target(frames, "_callback_from_stance", _compiled_region))
    return found + sources.targets(modules, kinds)


def _named(original: Function) -> Function:
    as_before = nullcontext()

    @wraps(original)  # a host may look up what its processor takes
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        listeners = current()
        if not listeners:
            if not torch.compiler.is_compiling():
                tell_elsewhere(self)
            return original(self, *args, **kwargs)
        inputs, result = Inputs(self, args, kwargs), None
        for listener in listeners:
            listener.running.enter(inputs)
            listener.ran.here.add(self)
            if len(listener.running) == 1:
                listener.called(args, kwargs)
        try:
            with by_hand.around(self, listeners, (*args, *kwargs.values())) or as_before:
                try:
                    result = original(self, *args, **kwargs)
                finally:
                    by_hand.ended(self, (*args, *kwargs.values()), result)
                return result
        finally:
            for listener in listeners:
                listener.running.leave(result)

    return call


def _compiled_region(original: Function) -> Function:
    def _callback_from_stance(callback: Any) -> Any:
        found = original(callback)
        if callable(found):
            for listener in current():
                listener.compiled()
        return found

    return _callback_from_stance


def _refuse_compiled(names: Mapping[nn.Module, str]) -> None:
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None and frames._stance.stance == "force_eager":
        return
    for module, name in names.items():
        if "_orig_mod" in module._modules or module._compiled_call_impl:
            got = f"{name}, compiled by torch.compile"
            cause = "what a compiled graph attends to passes no function that could be watched"
            expected = "a model that runs module by module"
            raise build(KernelError, "model", expected, got, cause, FIX_COMPILED)


def _compiler_forgets() -> None:
    """Let torch.compile look functions up again: it was loaded while they were replaced."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.get_torch_obj_rule_map.cache_clear()


# --- replacing by name ----------------------------------------------------------------------------


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

    def put(self, function: Function) -> None:
        """Let the name stand for a function."""
        owner, name = self.target.owner, self.target.name
        if isinstance(owner, (dict, list)):
            owner[name] = function
        else:
            setattr(owner, name, function)


def _own(target: Target) -> Any:
    """What an owner itself has by a name; None if it has nothing."""
    owner = target.owner
    try:
        return (owner if isinstance(owner, (dict, list)) else vars(owner))[target.name]
    except LookupError:
        return None


_lock: Any = threading.RLock()
_claims: list[ref[Claim]] = []
_patches: dict[tuple[int, Any], _Patch] = {}
_searched: list[Any] = []
"""The modules in which functions were searched last."""
_bound: dict[int, list[tuple[dict[str, Any], str]]] = {}
"""For a function by id: where these modules bind it."""


STAY = "torch._C", "intently.observe.sources"
"""Where names stay: those by which PyTorch's compiler and pickle know functions."""


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


def active() -> int:
    """How many names are replaced at the moment."""
    return len(_patches)


def _settle() -> None:
    while _patches and not _lock._is_owned() and _unclaimed():
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


def _unclaimed() -> dict[tuple[int, Any], _Patch]:
    """The patches that nobody wants any more, the last first."""
    left = dict(reversed(list(_patches.items())))
    for one in list(_claims):
        claim = one()
        if claim is not None and claim.wanted:
            for target in claim.targets:
                left.pop((id(target.owner), target.name), None)
    return left


def _claim(claim: Claim) -> None:
    if _patches:
        _mend()
    _claims.append(ref(claim))
    patches: list[_Patch] = []
    for target in claim.targets:
        key, own = (id(target.owner), target.name), _own(target)
        if key not in _patches:
            original = getattr(target.owner, target.name) if own is None else own
            _patches[key] = _Patch(target, original, target.wrap(original), own is None)
        patches.append(patch := _patches[key])
        if own is None or own is patch.original:
            patch.put(patch.replacement)
    _rebind([(x.original, x.original, x.replacement) for x in patches if x.target.everywhere])


def _mend() -> None:
    """Restore and forget what nobody claims."""
    gone = _unclaimed()
    for patch in gone.values():
        if _own(patch.target) is not patch.replacement:
            continue
        if patch.inherited:
            delattr(patch.target.owner, patch.target.name)
        else:
            patch.put(patch.original)
    patches = gone.values()
    _rebind([(x.original, x.replacement, x.original) for x in patches if x.target.everywhere])
    for key in gone:
        del _patches[key]
    _claims[:] = [x for x in _claims if (claim := x()) is not None and claim.wanted]


def _rebind(changes: list[tuple[Function, Function, Function]]) -> None:
    """Change the globals of all modules that are bound to an old function to a new one.

    The first of three is the original. This is done again for each watch, as modules may have been
    imported since. If they are those of the last search, only the places found then and
    ``__main__``, where people type, are searched.
    """
    modules = list(sys.modules.values())
    if modules != _searched:
        _bound.clear()
        _searched[:] = modules
    found = {id(old): (id(x), []) for x, old, _ in changes if id(x) not in _bound}
    for name, module in list(sys.modules.items()) if found else ():
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and not name.startswith(STAY):
            for key, x in list(names.items()):
                if id(x) in found:
                    found[id(x)][1].append((names, key))
    _bound.update(found.values())
    main = vars(sys.modules["__main__"])
    for original, old, new in changes:
        for names, key in _bound[id(original)]:
            if names.get(key) is old:
                names[key] = new
        for key, x in list(main.items()):
            if x is old:
                main[key] = new
