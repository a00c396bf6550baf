"""Who watches this thread or task, and how sources hand them a call.

The watches are in a `ContextVar`: one that a thread or task opened sees nothing of another.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from intently.observe.watching.call import Call
from intently.observe.watching.patches import Function
from intently.observe.watching.recorder import Recorder, in_backward


class _Scope(NamedTuple):
    recorders: tuple[Recorder, ...]
    thread: int
    task: asyncio.Task[Any] | None


_NOBODY = _Scope((), 0, None)
_scope: ContextVar[_Scope] = ContextVar("intently_watch", default=_NOBODY)
_open: dict[Recorder, _Scope] = {}
"""The thread and task in which each watch was opened."""


def current() -> tuple[Recorder, ...]:
    """Who watches this thread or task; nobody within `inside`, torch.compile and child tasks."""
    if torch.compiler.is_compiling():
        return ()
    scope = _scope.get()
    if not scope.recorders or not _here(scope):
        return ()
    for recorder in scope.recorders:
        if recorder.closed:  # by another thread, which cannot change what this one watches
            return _keep(scope, [x for x in scope.recorders if not x.closed])
    return scope.recorders


def _keep(scope: _Scope, recorders: list[Recorder]) -> tuple[Recorder, ...]:
    _scope.set(scope._replace(recorders=tuple(recorders)) if recorders else _NOBODY)
    return tuple(recorders)


def running() -> nn.Module | None:
    """The innermost running module, None outside of modules or if nobody watches."""
    recorders = _scope.get().recorders
    return recorders[-1].running[-1] if recorders and recorders[-1].running else None


def around() -> list[nn.Module]:
    """All running modules, the innermost last."""
    recorders = _scope.get().recorders
    return list(recorders[-1].running) if recorders else []


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


def begin(recorder: Recorder) -> None:
    """Let a recorder watch this thread or task, beside others."""
    before = _scope.get()
    mine = before.recorders if _here(before) else ()
    _scope.set(_Scope((*mine, recorder), threading.get_ident(), _task()))
    _open[recorder] = _Scope((recorder,), threading.get_ident(), _task())


def leave(recorder: Recorder) -> None:
    """Let a recorder stop watching."""
    _open.pop(recorder, None)
    scope = _scope.get()
    if recorder in scope.recorders:
        _keep(scope, [x for x in scope.recorders if x is not recorder])


def tell_elsewhere(module: nn.Module) -> None:
    """Tell the watches of other threads and tasks that a module of theirs runs here."""
    for recorder, scope in list(_open.items()):
        if module in recorder.names and not _here(scope) and not in_backward():
            recorder.ran.elsewhere.add(module)


# --- handing over ---------------------------------------------------------------------------------


def told(
    original: Function,
    source: str,
    read: Callable[..., Call | str],
    caller: Callable[..., nn.Module | None] = lambda *args, **kwargs: None,
) -> Function:
    """Wrap a function so that whoever watches is told ``read(result, *args, **kwargs)``, its call.

    ``caller`` of the same arguments is the module that made the call, if it is known.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        recorders = current()
        if not recorders:
            return original(*args, **kwargs)
        with inside():
            result = original(*args, **kwargs)
        module = caller(*args, **kwargs)
        tell(recorders, source, module, lambda: read(result, *args, **kwargs))
        return result

    return function


def tell(
    recorders: Sequence[Recorder],
    source: str,
    module: nn.Module | None,
    make: Callable[[], Call | str],
) -> None:
    """Hand over the call that ``make`` returns, or its text or error: why there is none.

    A call that a source cannot read is missed, and never stops the model.
    """
    # neither a user's mode nor a watch sees what is computed here
    with torch._C.DisableTorchFunction(), inside(), torch.no_grad():
        try:
            call = make()
            if isinstance(call, Call):
                call.module = module
        except Exception as error:  # whatever a model hands to its attention
            call = f"{type(error).__name__}: {error}"
        for recorder in recorders:
            if isinstance(call, str):
                recorder.miss(module, source, call)
            else:
                recorder.see(call)
