"""The softmax of code that attends by hand: the module in which it ran, not its weights.

`F.softmax` and `nn.Softmax` end in `Tensor.softmax`. A softmax within a function that was seen
belongs to it; `coverage()` names the modules of the others.

PyTorch's compiler accepts only a function as the replacement. A model that was built during a watch
keeps it for good, and is pickled with its name in this file.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from intently.observe.sources import by_hand
from intently.observe.sources.functional import known_to_scripts
from intently.observe.watching.scope import Function, Target, current

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
                by_hand.told(weights, axis)
        return weights

    if original is FUNCTION:
        softmax.__qualname__ = softmax.__name__  # pickle finds it below
        known_to_scripts(softmax, FUNCTION)
    return softmax


softmax = _wrap(FUNCTION)

TARGETS = [Target(torch, "softmax", _wrap, everywhere=True), Target(Tensor, "softmax", _wrap)]
