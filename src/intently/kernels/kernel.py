"""What every kernel can do, with the answers that most of them give."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from intently.kernels.problem import Problem


class Kernel:
    """One way to compute weights @ v; ``name``, ``note``, ``memory``, ``multiply`` are its own."""

    name: ClassVar[str]
    note: ClassVar[str]
    """Which derivatives and transforms it can, and what they cost."""
    device: ClassVar[str | None] = None
    """The kind of device it runs on, None for every kind."""

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Why it cannot serve the call; None where it can."""

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """Why a later kernel is the better choice; None where this one is."""

    def writes(self, problem: Problem, v: Tensor) -> str | None:
        """What of size t × s it writes out; None where it writes nothing of the kind."""

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes it needs beside its inputs."""
        raise NotImplementedError

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """The product (…, t, e) in the dtype of q."""
        raise NotImplementedError
