"""Who watches this thread or task, and how sources hand them a call.

The watches are in a `ContextVar`: one that a thread or task opened sees nothing of another.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)

from intently.core.kernels.operands import in_autocast, no_autocast
from intently.observe.watching.call import Call
from intently.observe.watching.modules import Names, Running
from intently.observe.watching.unseen import Ran, Softmax

Function: TypeAlias = Callable[..., Any]
Made: TypeAlias = "Callable[[], Call | str]"
"""Makes a call, or the text that says why there is none."""


@dataclass(frozen=True)
class Target:
    """Replace ``owner.name`` by ``wrap(original)``; with ``everywhere`` its from-imports too.

    A dict or list is an owner too, whose names are its keys or indices; a text is the name of a
    module, with a class in it after a colon, whose function is replaced if it is imported.
    """

    owner: Any
    name: Any
    wrap: Callable[[Function], Function]
    everywhere: bool = False


class Listener(ABC):
    """Knows which modules run and which of them it wants; a watch keeps calls, edits change them.

    ``plain`` are modules whose code does not attend by hand, ``targets`` the doors that are open,
    and ``home`` the thread and task that it watches.
    """

    def __init__(self, names: Names) -> None:
        self.names, self.running, self.ran = names, Running(), Ran()
        self.plain: set[nn.Module] = set()
        self.targets: list[Target] = []
        self._open = True
        self.home: tuple[int, asyncio.Task[Any] | None] = 0, None

    @abstractmethod
    def see(self, call: Call) -> None:
        """Hear of a call."""

    @abstractmethod
    def miss(self, module: nn.Module | None, source: str, why: str) -> None:
        """Hear that a source saw a call that it cannot read, and why."""

    def suspect(self, module: nn.Module | None, source: str, why: str) -> None:
        """Hear that a source saw what may be a part of attention that is not seen, and why."""
        self.miss(module, source, why)

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Hear of the arguments of the outermost module that runs; most do not care."""
        del args, kwargs

    @abstractmethod
    def mixed(self, module: nn.Module | None, what: str) -> None:
        """Hear that a module mixes parts of a model, and does not attend to rows."""

    @abstractmethod
    def compiled(self) -> None:
        """Hear that code compiled by torch.compile begins to run."""

    @abstractmethod
    def reordered(self, index: object) -> None:
        """Hear that a cache goes on with the rows ``index`` (b,) of the step before."""

    def softmax(self, weights: Tensor, softmax: Softmax) -> nn.Module | None:
        """Note a softmax outside of all functions that are seen, and return whose it is."""
        if not self._open or in_backward():
            return None
        return self.ran.weights(self.running, weights, softmax)

    def wants(self, module: nn.Module) -> bool:
        """Whether calls of a module are wanted."""
        return self._named(module) is not None

    def _named(self, module: nn.Module | None) -> str | None:
        """The name of a call's module; None for a call that is not wanted."""
        name = self.names.of(module, self.running) if self._open else None
        return name if name is not None and self.names.wanted(name) else None


class Changing(Listener):
    """A listener that changes calls before others hear of them."""

    @abstractmethod
    def changed(
        self, module: nn.Module | None, source: str, make: Made, result: Any
    ) -> tuple[Any, Made]:
        """Return the result that the model gets instead, and what makes the call with it."""


def in_backward() -> bool:
    """Whether a backward pass runs in this thread."""
    return torch._C._current_graph_task_id() != -1


PASSED = ("torch", "intently", "einops", "einx", "opt_einsum")
"""Packages whose own code is no model's."""

_scope: ContextVar[tuple[Listener, ...]] = ContextVar("intently_watch", default=())
_open: set[Listener] = set()


def begin(listener: Listener) -> None:
    """Let a listener watch this thread or task, beside others."""
    listener.home = threading.get_ident(), _task()
    _scope.set((*current(), listener))
    _open.add(listener)


def leave(listener: Listener) -> None:
    """Let a listener stop watching; another thread may ask for it, and ask again."""
    listener.home = 0, None
    _open.discard(listener)
    listeners = _scope.get()
    if listener in listeners:
        _scope.set(tuple([x for x in listeners if x is not listener]))


def current() -> tuple[Listener, ...]:
    """Who watches this thread or task; nobody within `inside`, torch.compile and child tasks."""
    if torch.compiler.is_compiling():
        return ()
    listeners, outside = _scope.get(), (threading.get_ident(), None)
    if all(x.home == outside for x in listeners):
        return listeners
    return tuple(filter(_is_here, listeners))


def _is_here(listener: Listener) -> bool:
    thread, task = listener.home
    return thread == threading.get_ident() and (task is None or task is _task())


def _task() -> asyncio.Task[Any] | None:
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def tell_elsewhere(module: nn.Module) -> None:
    """Tell the watches of other threads and tasks that a module of theirs runs here."""
    for listener in list(_open):
        if module in listener.names and not _is_here(listener) and not in_backward():
            listener.ran.elsewhere.add(module)


def running() -> nn.Module | None:
    """The innermost running module, None outside of modules or if nobody watches."""
    return next(iter(around()[-1:]), None)


def around() -> list[nn.Module]:
    """All running modules, the innermost last."""
    listeners = _scope.get()
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
        self._token: Token[tuple[Listener, ...]] = _scope.set(())
        waits = getattr(_get_current_dispatch_mode(), "waits_inside", False)
        self._mode = _pop_mode() if waits else None

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            _push_mode(self._mode)
        _scope.reset(self._token)


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

    def made() -> Call | str:
        try:
            call = make()
            if isinstance(call, Call):
                call.module = module
            return call
        except Exception as error:  # whatever a model hands to its attention
            return f"{type(error).__name__}: {error}"

    # neither a user's mode nor a watch sees what is computed here
    with torch._C.DisableTorchFunction(), inside():
        for listener in (x for x in listeners if isinstance(x, Changing)):
            result, made = listener.changed(module, source, made, result)
        rest = [x for x in listeners if not isinstance(x, Changing)]
        if not rest:
            return result
        with torch.no_grad():
            call = made()
            for listener in rest:
                if not isinstance(call, str):
                    listener.see(replace(call, again=again) if again else call)
                elif not again:
                    listener.miss(module, source, call)
    return result


# --- computing beside a model -----------------------------------------------------------------


def alone(device: torch.device) -> AbstractContextManager[None]:
    """Compute without gradients, autocast and modes of the user."""
    modes = torch._C._len_torch_dispatch_stack() + torch._C._is_torch_function_enabled()
    modes += torch.is_grad_enabled() + torch.is_inference_mode_enabled()
    return _changed(device) if modes or in_autocast(device) else nullcontext()


@contextmanager
def _changed(device: torch.device) -> Iterator[None]:
    modes = torch._C._len_torch_dispatch_stack()
    none = _disable_current_modes() if modes else nullcontext()
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        no_autocast(device),
        torch._C.DisableTorchFunction(),
        none,
    ):
        yield
