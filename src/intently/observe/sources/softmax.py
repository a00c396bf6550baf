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

from intently.observe.sources import by_hand
from intently.observe.watching.patches import Function, Target, as_without, known_to_scripts
from intently.observe.watching.scope import current
from intently.observe.watching.searched import Searched

FUNCTION = torch.softmax


def targets(searched: Searched) -> list[Target]:
    """The function, the method, and the names of the function where the model is written."""
    return [Target(torch, "softmax", _wrap), Target(Tensor, "softmax", _wrap)] + [
        Target(names, name, lambda x: softmax)
        for names in searched.files
        for name, x in list(names.items())
        if x is FUNCTION or x is softmax
    ]


@cache
def _wrap(original: Function) -> Function:
    def softmax(*args: Any, **kwargs: Any) -> Any:
        """See the original; whoever watches is told the result."""
        return _told(as_without(original, args, kwargs), args, kwargs)

    if original is FUNCTION:
        softmax.__qualname__ = softmax.__name__  # pickle finds it below
        known_to_scripts(softmax, FUNCTION)
    return softmax


def _told(weights: Any, args: Any, kwargs: Any) -> Any:
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if current() and isinstance(weights, Tensor) and isinstance(axis, int):
        with torch._C.DisableTorchFunction():
            by_hand.told(weights, axis)
    return weights


softmax = _wrap(FUNCTION)
