"""Handing a call over: what a source cannot read is missed, and never stops the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from intently.observe.watching.call import Call
from intently.observe.watching.recorder import Recorder
from intently.observe.watching.watch import inside


def tell(
    recorders: Sequence[Recorder],
    source: str,
    module: nn.Module | None,
    make: Callable[[], Call | str],
) -> None:
    """Hand over the call that ``make`` returns, or say why there is none: its text, its error."""
    with torch._C.DisableTorchFunction():  # what is computed here is none of a mode's calls
        _tell(recorders, source, module, make)


def as_without(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call what was replaced: subclasses and modes are handed itself, and not the replacement."""
    given = (*args, *kwargs.values())
    if not torch.compiler.is_compiling() and has_torch_function(given):
        return handle_torch_function(function, given, *args, **kwargs)
    return function(*args, **kwargs)


def _tell(
    recorders: Sequence[Recorder],
    source: str,
    module: nn.Module | None,
    make: Callable[[], Call | str],
) -> None:
    try:
        with torch.no_grad(), inside():
            call = make()
    except Exception as error:  # whatever a model hands to its attention
        call = f"{type(error).__name__}: {error}"
    with inside():  # what a recorder computes itself is nothing to record
        for recorder in recorders:
            if isinstance(call, str):
                recorder.miss(module, source, call)
            else:
                recorder.see(call)
