"""Sites that edits change: at once, or, where gradients flow, when their function has returned.

The trace sees operations below autograd, where a result can be changed but not its gradient. Above
it, overwriting what an operation wrote is an operation like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from intently.observe.trace.calls import BY_HAND, call_of
from intently.observe.trace.sites import Site
from intently.observe.watching.call import Call
from intently.observe.watching.modules import storage_of
from intently.observe.watching.scope import current, tell

LATE = "aten.{} read the output within the function that computed it, so that no gradient follows"
OWN_BACKWARD = "it ran in a torch.autograd.Function, which computes its gradient itself"


@dataclass
class Waiting:
    """A site of a module that an edit changes; it is found ``again`` above autograd.

    ``graded`` says that gradients flow; ``refused`` is why it cannot be changed, ``more`` that its
    call was changed before, with different values.
    """

    module: nn.Module | None
    site: Site
    again: Callable[[], Site | None]
    graded: bool
    more: bool = False
    refused: str | None = None

    def reads(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Hear of an operation that runs before the function has returned."""
        place = storage_of(self.site.contraction.result)
        given = (storage_of(x) for x in args if isinstance(x, Tensor))
        if place is not None and any(x is not None and x._cdata == place._cdata for x in given):
            if name == "_unsafe_view":  # the same memory, and another tensor for autograd
                self.site.into = result
            else:
                self.refused = self.refused or LATE.format(name)

    def tell(self) -> None:
        """Let edits change it, and others hear of it."""
        again = self.more or bool(self.site.again)
        tell(current(), BY_HAND, self.module, self._call, again=again)

    def _call(self) -> Call | str:
        if self.refused is not None:
            return self.refused
        site = self.again() if self.graded else self.site
        assert site is not None
        return replace(call_of(replace(site, into=self.site.into)), again=self.more)


class AfterFunctions(TorchFunctionMode):
    """Tells the sites that are ``waiting`` as soon as the function that computed them returns."""

    def __init__(self, waiting: list[Waiting]) -> None:
        super().__init__()
        self._waiting = waiting

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        while self._waiting:
            self._waiting.pop(0).tell()
        return result


def has_own_backward() -> bool:
    """Whether the forward of a `torch.autograd.Function` runs, other than that of a checkpoint."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return False
    if torch._C._is_fwd_grad_enabled():  # `torch.no_grad` leaves it
        return False
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back
    return frame is None
