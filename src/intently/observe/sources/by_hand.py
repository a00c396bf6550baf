"""Attention written by hand: when the trace is on.

It costs some ten microseconds an operation, so it is on only within the modules whose code makes
weights by hand, or the functions in which alone they do, and off again within the layers that they
call. A softmax that nobody expected turns it on until its module returns, with the weights as they
are, and from then on for all modules of that class. ``deep=True`` follows the whole model.

The results are the same, except where PyTorch picks another kernel under a dispatch mode, as under
any.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from intently.observe.trace.calls import BY_HAND
from intently.observe.trace.follow import Trace
from intently.observe.trace.waiting import AfterFunctions
from intently.observe.watching.call import traced
from intently.observe.watching.scope import Changing, Listener, current, tell
from intently.observe.watching.unseen import Softmax, read


class mode:  # noqa: N801 - used as a function: `with by_hand.mode():`
    """Sees hand-written attention while entered; whoever turned the mode on turns it off."""

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._turned_on = not _is_on()
        _here.count += 1
        edited = any(isinstance(x, Changing) for x in current())
        self._after = AfterFunctions(_here.trace.waiting) if edited else nullcontext()
        self._after.__enter__()
        if self._turned_on:
            _here.trace.graded = torch.is_grad_enabled()
            _here.trace.__enter__()

    def __exit__(self, *error: Any) -> None:
        if threading.get_ident() != self._thread:  # the stack of another thread is out of reach
            return
        _here.trace.finish() if _here.count == 1 else _here.trace.flush(ended=True)
        _here.count -= 1
        self._after.__exit__(*error)
        if self._turned_on and not _here.whole and _is_on():
            _leave()
        if not _here.count and not _here.whole:
            _here.trace.forget()


class whole_model:  # noqa: N801 - as `mode`
    """Follows everything until the last watch with ``deep=True`` is left, in any order."""

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        _here.whole += 1
        if not _is_on():
            _here.trace.__enter__()

    def __exit__(self, *error: object) -> None:
        if threading.get_ident() != self._thread:
            return
        _here.trace.finish()
        _here.whole -= 1
        if not _here.whole and _is_on():
            _leave()
            _here.trace.forget()


class _paused:  # noqa: N801 - as `mode`
    """Nothing is followed within; what the module makes of its arguments is noted."""

    def __init__(self, module: nn.Module, given: Iterable[Any]) -> None:
        self._module, self._given = module, given

    def __enter__(self) -> None:
        self._was_on = _is_on()
        if self._was_on:
            _leave()

    def __exit__(self, *error: object) -> None:
        if self._was_on and not _is_on():
            _here.trace.__enter__()


class _Here(threading.local):
    """The trace of a thread, and how many modules and whole models are followed."""

    def __init__(self) -> None:
        self.trace, self.count, self.whole = Trace(), 0, 0
        self.late: dict[nn.Module, mode] = {}


_here = _Here()


def around(
    module: nn.Module, listeners: Sequence[Listener], given: Iterable[Any]
) -> AbstractContextManager[None] | None:
    """How the forward of a module runs while somebody watches; None for as it would.

    Modules whose code makes weights by hand are followed; the layers that they call are not, but
    for a softmax, a dropout and others that hold nothing, and those that are ``given`` weights.
    """
    plain, why = listeners[-1].plain, traced()
    if why is not None:
        if attends_by_hand(module):
            tell(listeners, BY_HAND, module, lambda: why)
        return _paused(module, ())
    if isinstance(module, torch.jit.ScriptModule):  # which no dispatch mode can follow
        return _paused(module, ())
    if module not in plain:
        if not attends_by_hand(module):
            plain.add(module)
        elif any(x.wants(module) for x in listeners):
            return None if _here.whole else mode()
    if _here.whole:
        return None
    if not _here.count or not _holds(module):
        return None
    return None if _here.trace.holds_weights(given) else _paused(module, given)


def _holds(module: nn.Module) -> bool:
    """Whether a module or one of its parts has parameters or buffers."""
    if module._parameters or module._buffers:
        return True
    return any(_holds(x) for x in module._modules.values() if x is not None)


def attends_by_hand(module: nn.Module) -> bool:
    """Whether a module is followed."""
    if type(module) in _caught:
        return True
    known = _known.get(module)
    if known is None:
        ours = type(module).__module__.split(".")[0] in ("intently", "torch")
        known = _known[module] = not ours and read(module).writes
    return known


def ended(module: nn.Module, given: Sequence[Any], result: Any) -> None:
    """The forward of a module ended with a result; None if it raised."""
    if _here.count or _here.whole:
        _here.trace.flush(ended=True)
        _here.trace.made(module, given, result)
    late = _here.late.pop(module, None)
    if late is not None:
        late.__exit__(None, None, None)


def told(weights: Tensor, axis: int) -> None:
    """Hear of a softmax that somebody called by name; follow its weights if nobody does yet."""
    if _is_on() or traced():
        return
    softmax = Softmax(tuple(weights.shape))
    for listener in current():
        module = listener.softmax(weights, softmax)
        if module is not None and listener.wants(module):
            softmax.module = module
            _follow_from(module, weights, axis, softmax)
            return


def _follow_from(module: nn.Module, weights: Tensor, axis: int, softmax: Softmax) -> None:
    """Follow weights that a softmax made unexpectedly, until the forward of ``module`` ends."""
    _caught.add(type(module))
    for listener in current():
        listener.plain.clear()
    if _here.whole or _is_on():
        return
    late = mode()
    late.__enter__()
    _here.late[module] = late
    _here.trace.begins(weights, axis, softmax)


_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether the code of a module attends by hand, as far as it tells."""
_caught: WeakSet[type[nn.Module]] = WeakSet()
"""Classes whose code did not tell, and that were caught with a softmax."""


def _is_on() -> bool:
    return _here.trace in _get_current_dispatch_mode_stack()


def _leave() -> None:
    above: list[Any] = []  # modes that were entered since, and stay
    while _get_current_dispatch_mode() is not _here.trace:
        above.append(_pop_mode())
    _here.trace.__exit__(None, None, None)
    for other in reversed(above):
        _push_mode(other)
