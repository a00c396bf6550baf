"""Attention written by hand: when the trace is on, and the softmax that nobody expected.

The trace costs some ten microseconds an operation, so it is on only within the modules whose code
makes weights by hand, and off again within the layers that they call. Such a softmax turns it on
until its module returns, with the weights as they are, and from then on for all modules of that
class. ``deep=True`` follows the whole model. The results are the same, except where PyTorch picks
another kernel under a dispatch mode, as under any.

`F.softmax` and `nn.Softmax` end in `Tensor.softmax`. PyTorch's compiler accepts only a function as
the replacement. A model that was built during a watch keeps it for good, and is pickled with its
name in this file.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from intently.observe.sources.functional import known_to_scripts
from intently.observe.trace.calls import BY_HAND, AfterFunctions
from intently.observe.trace.follow import Trace
from intently.observe.watching.call import traced
from intently.observe.watching.scope import Changing, Function, Listener, Target, current, tell
from intently.observe.watching.unseen import Softmax, read


class following:  # noqa: N801 - used as a function: `with by_hand.following():`
    """Sees hand-written attention while entered; whoever turned the trace on turns it off.

    A ``whole`` model is followed until the last such block is left, in any order.
    """

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole

    def __enter__(self) -> following:
        self._thread, self._turns = threading.get_ident(), not _is_on()
        self._after: AfterFunctions | None = None
        _here.whole += self._whole
        _here.count += not self._whole
        if not self._whole:
            if any(isinstance(x, Changing) for x in current()):
                self._after = AfterFunctions(_here.trace.waiting)
                self._after.__enter__()
            _here.trace.graded = torch.is_grad_enabled()
        if self._turns:
            _here.trace.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if threading.get_ident() != self._thread:  # the stack of another thread is out of reach
            return
        if self._whole or _here.count == 1:
            _here.trace.finish()
        else:
            _here.trace.flush(ended=True)
        _here.whole -= self._whole
        _here.count -= not self._whole
        if self._after is not None:
            self._after.__exit__(*error)
        if not _here.whole:
            if self._whole or self._turns:
                _turn_off()
            if not _here.count:
                _here.trace.forget()


class _paused:  # noqa: N801 - as `following`
    """Nothing is followed within."""

    def __enter__(self) -> None:
        self._was_on = _turn_off()

    def __exit__(self, *error: object) -> None:
        if self._was_on and not _is_on():
            _here.trace.__enter__()


class _Here(threading.local):
    """The trace of a thread, and how many modules and whole models are followed."""

    def __init__(self) -> None:
        self.trace, self.count, self.whole = Trace(), 0, 0
        self.late: dict[nn.Module, following] = {}


_here = _Here()
_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether the code of a module attends by hand, as far as it tells."""
_caught: WeakSet[type[nn.Module]] = WeakSet()
"""Classes whose code did not tell, and that were caught with a softmax."""


def around(
    module: nn.Module, listeners: Sequence[Listener], given: Sequence[Any]
) -> AbstractContextManager[Any] | None:
    """How the forward of a module runs while somebody watches; None for as it would.

    Modules whose code makes weights by hand are followed; the layers that they call are not, but
    for a softmax, a dropout and others that hold nothing, and those that are ``given`` weights.
    """
    plain, why = listeners[-1].plain, traced()
    if why is not None:
        if _attends_by_hand(module):
            tell(listeners, BY_HAND, module, lambda: why)
        return _paused()
    if isinstance(module, torch.jit.ScriptModule):  # which no dispatch mode can follow
        return _paused()
    if _here.whole:
        changed = any(isinstance(x, Changing) for x in listeners)
        return following() if changed and not _here.count else None
    if module not in plain:
        if not _attends_by_hand(module):
            plain.add(module)
        elif any(x.wants(module) for x in listeners):
            return following()
    if not _here.count or _here.trace.holds_weights(given):
        return None
    holds = any(x._parameters or x._buffers for x in module.modules())
    return _paused() if holds else None


def _attends_by_hand(module: nn.Module) -> bool:
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


def _told(weights: Tensor, axis: int) -> None:
    """Hear of a softmax that somebody called by name.

    If nobody follows its weights yet, they are followed until the forward of their module ends.
    """
    if _is_on() or traced():
        return
    softmax = Softmax(tuple(weights.shape))
    for listener in current():
        module = listener.softmax(weights, softmax)
        if module is not None and listener.wants(module):
            softmax.module = module
            _caught.add(type(module))
            for other in current():
                other.plain.clear()
            if not _here.whole:
                _here.late[module] = following().__enter__()
                _here.trace.begins(weights, axis, softmax)
            return


def _is_on() -> bool:
    return _here.trace in _get_current_dispatch_mode_stack()


def _turn_off() -> bool:
    """Turn the trace off; modes that were entered since stay. Whether it was on."""
    if not _is_on():
        return False
    above: list[Any] = []
    while _get_current_dispatch_mode() is not _here.trace:
        above.append(_pop_mode())
    _here.trace.__exit__(None, None, None)
    for other in reversed(above):
        _push_mode(other)
    return True


FUNCTION = torch.softmax


@cache
def _wrap(original: Function) -> Function:
    def softmax(*args: Any, **kwargs: Any) -> Any:
        """See the original; whoever watches is told the result."""
        given = (*args, *kwargs.values())
        if not torch.compiler.is_compiling() and has_torch_function(given):
            # subclasses and modes get the original, and not the replacement
            weights = handle_torch_function(original, given, *args, **kwargs)
        else:
            weights = original(*args, **kwargs)
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if isinstance(weights, Tensor) and isinstance(axis, int) and current():
            with torch._C.DisableTorchFunction():
                _told(weights, axis)
        return weights

    if original is FUNCTION:
        softmax.__qualname__ = softmax.__name__  # pickle finds it below
        known_to_scripts(softmax, FUNCTION)
    return softmax


softmax = _wrap(FUNCTION)

TARGETS = [Target(torch, "softmax", _wrap, everywhere=True), Target(Tensor, "softmax", _wrap)]
