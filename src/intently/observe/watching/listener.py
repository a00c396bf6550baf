"""`Listener`: whoever is told of the attention calls of a thread or task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from intently.observe.watching.call import Call
from intently.observe.watching.naming import Names, Running
from intently.observe.watching.patches import Target
from intently.observe.watching.unseen import Ran, Softmax

Made: TypeAlias = "Callable[[], Call | str]"
"""Makes a call, or the text that says why there is none."""


class Listener(ABC):
    """Knows which modules run and which of them it wants; a watch keeps calls, edits change them.

    ``plain`` are modules whose code does not attend by hand, ``targets`` the doors that are open.
    """

    def __init__(self, names: Names) -> None:
        self.names, self.running, self.ran = names, Running(), Ran()
        self.plain: set[nn.Module] = set()
        self.targets: list[Target] = []
        self._open, self.closed = True, False

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
        return self._open and self._named(module) is not None

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
