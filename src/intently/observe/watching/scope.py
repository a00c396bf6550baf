"""Who watches this thread or task, and how sources hand them a call.

The watches are in a `ContextVar`: one that a thread or task opened sees nothing of another.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from intently.observe.watching.call import Call
from intently.observe.watching.listener import Changing, Listener, Made, in_backward
from intently.observe.watching.patches import Function


class _Scope(NamedTuple):
    listeners: tuple[Listener, ...]
    thread: int
    task: asyncio.Task[Any] | None


PASSED = ("torch", "intently", "einops", "einx", "opt_einsum")
"""Packages whose own code is no model's."""

_NOBODY = _Scope((), 0, None)
_scope: ContextVar[_Scope] = ContextVar("intently_watch", default=_NOBODY)
_open: dict[Listener, _Scope] = {}
"""The thread and task in which each watch was opened."""


def current() -> tuple[Listener, ...]:
    """Who watches this thread or task; nobody within `inside`, torch.compile and child tasks."""
    if torch.compiler.is_compiling():
        return ()
    scope = _scope.get()
    if not scope.listeners or not _here(scope):
        return ()
    for listener in scope.listeners:
        if listener.closed:  # by another thread, which cannot change what this one watches
            return _keep(scope, [x for x in scope.listeners if not x.closed])
    return scope.listeners


def _keep(scope: _Scope, listeners: list[Listener]) -> tuple[Listener, ...]:
    _scope.set(scope._replace(listeners=tuple(listeners)) if listeners else _NOBODY)
    return tuple(listeners)


def running() -> nn.Module | None:
    """The innermost running module, None outside of modules or if nobody watches."""
    listeners = _scope.get().listeners
    return listeners[-1].running[-1] if listeners and listeners[-1].running else None


def around() -> list[nn.Module]:
    """All running modules, the innermost last."""
    listeners = _scope.get().listeners
    return list(listeners[-1].running) if listeners else []


def line_of_code() -> str:
    """The file and line of a model's code that runs: neither of PyTorch nor of ours."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in PASSED:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class inside:  # noqa: N801 - used as a function: `with inside():`
    """Calls made within are not recorded: they belong to a call that a source saw already.

    The mode of ``deep=True`` is suspended, so that the same operations run as without it.
    """

    def __enter__(self) -> None:
        self._token: Token[_Scope] = _scope.set(_NOBODY)
        waits = getattr(_get_current_dispatch_mode(), "waits_inside", False)
        self._mode = _pop_mode() if waits else None

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            _push_mode(self._mode)
        _scope.reset(self._token)


def _here(scope: _Scope) -> bool:
    return scope.thread == threading.get_ident() and (scope.task is None or scope.task is _task())


def _task() -> asyncio.Task[Any] | None:
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def begin(listener: Listener) -> None:
    """Let a listener watch this thread or task, beside others."""
    before = _scope.get()
    mine = before.listeners if _here(before) else ()
    _scope.set(_Scope((*mine, listener), threading.get_ident(), _task()))
    _open[listener] = _Scope((listener,), threading.get_ident(), _task())


def leave(listener: Listener) -> None:
    """Let a listener stop watching."""
    _open.pop(listener, None)
    scope = _scope.get()
    if listener in scope.listeners:
        _keep(scope, [x for x in scope.listeners if x is not listener])


def tell_elsewhere(module: nn.Module) -> None:
    """Tell the watches of other threads and tasks that a module of theirs runs here."""
    for listener, scope in list(_open.items()):
        if module in listener.names and not _here(scope) and not in_backward():
            listener.ran.elsewhere.add(module)


# --- handing over ---------------------------------------------------------------------------------


def told(
    original: Function,
    source: str,
    read: Callable[..., Call | str],
    caller: Callable[..., nn.Module | None] = lambda *args, **kwargs: None,
) -> Function:
    """Wrap a function so that whoever listens is told ``read(result, *args, **kwargs)``, its call.

    ``caller`` of the same arguments is the module that made the call, if it is known.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        listeners = current()
        if not listeners:
            return original(*args, **kwargs)
        with inside():
            result = original(*args, **kwargs)
        module = caller(*args, **kwargs)
        return tell(listeners, source, module, lambda: read(result, *args, **kwargs), result)

    return function


def tell(
    listeners: Sequence[Listener],
    source: str,
    module: nn.Module | None,
    make: Made,
    result: Any = None,
    again: bool | None = None,
) -> Any:
    """Hand over the call that ``make`` returns, or its text or error: why there is none.

    Returns the ``result`` of the function that attended, or what edits make of it. A call that a
    source cannot read is missed, and never stops the model, unless it was to be edited. The call
    ran ``again`` if a checkpoint computed it in the backward pass.
    """
    again = in_backward() if again is None else again
    editors = [x for x in listeners if isinstance(x, Changing)]
    made = partial(_made, make, module)
    # neither a user's mode nor a watch sees what is computed here
    with torch._C.DisableTorchFunction(), inside():
        for editor in editors:
            result, made = editor.changed(module, source, made, result)
        if len(editors) < len(listeners):
            with torch.no_grad():
                call = made()
                for listener in listeners:
                    if isinstance(listener, Changing):
                        continue
                    if not isinstance(call, str):
                        listener.see(replace(call, again=again) if again else call)
                    elif not again:
                        listener.miss(module, source, call)
    return result


def _made(make: Made, module: nn.Module | None) -> Call | str:
    try:
        call = make()
        if isinstance(call, Call):
            call.module = module
        return call
    except Exception as error:  # whatever a model hands to its attention
        return f"{type(error).__name__}: {error}"
