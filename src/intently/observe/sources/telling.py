"""Handing a call over: what a source cannot read is missed, and never stops the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from intently.observe.call import Call
from intently.observe.recorder import Recorder
from intently.observe.watch import inside


def tell(
    recorders: Sequence[Recorder],
    source: str,
    module: nn.Module | None,
    make: Callable[[], Call | str],
) -> None:
    """Hand over the call that ``make`` returns, or say why there is none: its text, its error."""
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
