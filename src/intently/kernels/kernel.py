"""The interface of all kernels, with common defaults."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from intently.kernels.problem import Problem


class Kernel:
    """One way to compute weights @ v; ``name``, ``note``, ``memory``, ``multiply`` are its own."""

    name: ClassVar[str]
    note: ClassVar[str]
    """Which derivatives and transforms it can, and what they cost."""
    device: ClassVar[str | None] = None
    """The kind of device it runs on, None for every kind."""

    def present(self) -> bool:
        """Whether this machine can run it."""
        return self.device is None or getattr(torch, self.device).is_available()

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Why it cannot run the call; None if it can."""

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """Why a later kernel is the better choice; None if this one is."""

    def serves(self, problem: Problem, v: Tensor) -> bool:
        """Whether it can run the call and no later kernel is better."""
        return self.refuses(problem, v) is None and self.yields(problem, v) is None

    def writes(self, problem: Problem, v: Tensor) -> str | None:
        """What it materialises at size t × s; None if nothing."""

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes it needs beside its inputs."""
        raise NotImplementedError

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """The product (…, t, e) in the dtype of q."""
        raise NotImplementedError
