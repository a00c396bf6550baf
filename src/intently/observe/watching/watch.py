"""`watch`: a context manager that keeps what a model attends, and changes nothing.

Functions are replaced by name while anybody watches. `scope` knows who watches this thread or task;
for everybody else, the replacements call the originals.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Literal
from weakref import finalize

import torch
from torch import nn

from intently.errors import KernelError, build
from intently.observe.recording.labels import Tokens
from intently.observe.recording.recording import Recording
from intently.observe.watching import patches
from intently.observe.watching.patches import Function, Target
from intently.observe.watching.recorder import COMPILED, Recorder
from intently.observe.watching.scope import begin, current, leave, tell_elsewhere
from intently.observe.watching.searched import Searched

FIX_COMPILED = (
    "watch the model that was compiled (model._orig_mod), or run it within "
    'torch.compiler.set_stance("force_eager")'
)


class watch:  # noqa: N801 - used as a function: `with it.watch(model) as seen:`
    """Keep the queries and keys of every attention of ``model`` while the block runs.

    Without a model, all attention of this thread or task is kept. ``layers`` are names of modules
    or patterns such as "decoder.layers.*.self_attn" (a name includes all modules in it); ``tokens``
    label the matrices, ``(source, target)`` the two sides of an encoder and decoder; ``store`` is
    "copy" (own copies of q and of new key rows), "reference" (the tensors themselves, refused once
    they were changed in place) or "disk" (a temporary file that is mapped into memory); ``dtype``
    is a floating-point type to store in; ``gradients`` keeps v, and after a backward pass the
    gradient of the output. Attention that is written by hand is followed within the modules whose
    code makes weights; ``deep`` follows every operation of the model, which makes it slower.

    Outputs are the same bit for bit. With ``deep`` every operation passes through Python; the last
    bits differ if PyTorch picks another kernel because of that. A generator that holds a watch open
    shares it, while it waits, with whoever runs it, like `torch.no_grad`. A watch that is dropped
    without being left is undone when it is collected. Raises `ArgumentError` with the nearest names
    for patterns that match nothing, and `KernelError` for a compiled model, whose calls cannot be
    seen, for a watch that is entered twice, and for one that is left without being entered.

    >>> import torch, intently as it
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.zeros(1, 3, 8)
    >>> with it.watch() as seen:
    ...     y = it.attention(x, x, x, mask=it.causal())
    >>> seen["attention"].dense()
    tensor([[[1.0000, 0.0000, 0.0000],
             [0.5000, 0.5000, 0.0000],
             [0.3333, 0.3333, 0.3333]]])
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        layers: str | Sequence[str] | None = None,
        tokens: Tokens | None = None,
        store: Literal["copy", "reference", "disk"] = "copy",
        dtype: torch.dtype | None = None,
        gradients: bool = False,
        deep: bool = False,
    ) -> None:
        self._options = (model, layers, tokens, store, dtype, gradients, deep)
        self._model, self._deep = model, deep
        self._recorder: Recorder | None = None
        self._undo: finalize[..., watch] | None = None

    def __enter__(self) -> Recording:
        if self._recorder is not None:
            expected, got = "one block for each watch", "one that was entered before"
            fix = "write `with it.watch(model) as seen:` again"
            raise build(KernelError, "watch", expected, got, fix=fix)
        recorder = Recorder(*self._options)
        _refuse_compiled(recorder.names.modules)
        with ExitStack() as undo:  # undone whatever fails, here or at the end
            undo.callback(recorder.close)
            undo.callback(_compiler_forgets, _compiler_knows())
            targets = _targets(Searched.of(recorder.names.modules))
            undo.callback(patches.remove, patches.install(targets))
            undo.callback(leave, recorder)
            begin(recorder)
            if self._deep:
                from intently.observe.sources import by_hand

                undo.enter_context(by_hand.whole_model())
            self._undo = finalize(self, undo.pop_all().close)  # where it is dropped and never left
            self._undo.atexit = False
        self._recorder = recorder
        return recorder.recording

    def __exit__(self, *raised: Any) -> None:
        if self._recorder is None or self._undo is None or not self._undo.alive:
            got = "one that was not entered" if self._recorder is None else "one that was left"
            fix = "write `with it.watch(model) as seen:`, which enters and leaves it"
            raise build(KernelError, "watch", "the end of a block that runs", got, fix=fix)
        self._undo()
        if self._recorder.ran_compiled and raised[0] is None:
            _say_compiled(self._recorder)


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

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        recorders = current()
        if not recorders:
            if not torch.compiler.is_compiling():
                tell_elsewhere(self)
            return original(self, *args, **kwargs)
        for recorder in recorders:
            recorder.running.append(self)
            recorder.ran.here.add(self)
        try:
            with by_hand.around(self, recorders) or as_before:
                try:
                    return original(self, *args, **kwargs)
                finally:
                    by_hand.ended(self)
        finally:
            for recorder in recorders:
                recorder.running.pop()

    return call


def _compiled_region(original: Function) -> Function:
    def _callback_from_stance(callback: Any) -> Any:
        found = original(callback)
        if callable(found):
            for recorder in current():
                recorder.compiled()
        return found

    return _callback_from_stance


def _say_compiled(recorder: Recorder) -> None:
    """Raise if only compiled code attended, warn if other modules did, too."""
    if recorder.recording.calls:
        warnings.warn(COMPILED, stacklevel=3)
        return
    expected, got = "attention that runs module by module", "none that could be seen"
    raise build(KernelError, "watch", expected, got, COMPILED, FIX_COMPILED)


def _refuse_compiled(names: Mapping[nn.Module, str]) -> None:
    if _forced_eager():
        return
    for module, name in names.items():
        if "_orig_mod" in module._modules or module._compiled_call_impl:
            got = f"{name}, compiled by torch.compile"
            cause = "what a compiled graph attends passes no function that could be watched"
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
