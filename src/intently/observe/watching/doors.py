"""The doors through which models attend: functions that are replaced while anybody listens.

`scope` knows who listens in this thread or task; for everybody else, the replacements call the
originals.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import nn

from intently.errors import KernelError, build
from intently.observe.watching import patches
from intently.observe.watching.inputs import Inputs
from intently.observe.watching.listener import Listener
from intently.observe.watching.patches import Function, Target
from intently.observe.watching.scope import begin, current, leave, tell_elsewhere
from intently.observe.watching.searched import Searched

FIX_COMPILED = (
    "watch the model that was compiled (model._orig_mod), or run it within "
    'torch.compiler.set_stance("force_eager")'
)


def listen(listener: Listener, undo: ExitStack) -> None:
    """Tell a listener of every attention of this thread or task, until ``undo`` is closed.

    Raises `KernelError` for a compiled model, whose calls pass no function.
    """
    _refuse_compiled(listener.names.modules)
    undo.callback(_compiler_forgets, _compiler_knows())
    modules = listener.names.modules
    same = (other.targets for other in current() if other.names.modules == modules)
    listener.targets = next(same, None) or _targets(Searched.of(modules))
    claim = patches.Claim(listener.targets)
    for _ in range(2):  # the second does what an interrupt made the first leave out
        undo.callback(patches.remove, claim)
        undo.callback(leave, listener)
    patches.install(claim)
    begin(listener)


def _targets(searched: Searched) -> list[Target]:
    """The targets of every source, and the calls of modules, which tell those that run."""
    from intently.observe import sources

    found = _calls(searched)
    for targets in sources.every():
        found += targets(searched)
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        found.append(Target(frames, "_callback_from_stance", _compiled_region))
    return found


def _calls(searched: Searched) -> list[Target]:
    """The calls of `nn.Module`, and of classes of the model that are called in a way of their own.

    Python updates every subclass if ``nn.Module.__call__`` changes, up to thousands; a compiled
    module, which a stance makes run, is called by nothing else.
    """
    own = [kind for kind in searched.kinds if kind is not nn.Module and "__call__" in vars(kind)]
    found = [Target(kind, "__call__", _named) for kind in own if issubclass(kind, nn.Module)]
    compiled = any(module._compiled_call_impl for module in searched.modules)
    name = "__call__" if compiled or not searched.modules else "_call_impl"
    return [*found, Target(nn.Module, name, _named)]


def _named(original: Function) -> Function:
    from intently.observe.sources import by_hand

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
    if _forced_eager():
        return
    for module, name in names.items():
        if "_orig_mod" in module._modules or module._compiled_call_impl:
            got = f"{name}, compiled by torch.compile"
            cause = "what a compiled graph attends to passes no function that could be watched"
            expected = "a model that runs module by module"
            raise build(KernelError, "model", expected, got, cause, FIX_COMPILED)


def _forced_eager() -> bool:
    """Whether torch.compile is told to run everything module by module."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and frames._stance.stance == "force_eager"


def _compiler_knows() -> bool:
    """Let torch.compile look up PyTorch's functions before they are replaced, if it is loaded."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.get_torch_obj_rule_map()
    return rules is not None


def _compiler_forgets(knew: bool) -> None:
    """Let torch.compile look them up again, if it was loaded while they were replaced."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not knew:
        rules.get_torch_obj_rule_map.cache_clear()
