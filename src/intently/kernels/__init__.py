"""The kernels, and the one function that chooses between them.

A kernel is an object with ``name``, ``note``, ``refuses``, ``memory`` and ``multiply``; adding one
is one file and one entry in ``_KERNELS``, fastest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from intently.errors import ArgumentError, KernelError, build
from intently.kernels.eager import Eager
from intently.kernels.problem import Problem
from intently.kernels.torch_fused import TorchFused


@runtime_checkable
class Kernel(Protocol):
    """One way to compute weights @ v."""

    name: str
    note: str

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        """Why it cannot serve the call, None where it can."""
        ...

    def memory(self, problem: Problem, v: Tensor) -> int:
        """Bytes it needs beside its inputs."""
        ...

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        """The product (…, t, e)."""
        ...


_KERNELS: tuple[Kernel, ...] = (TorchFused(), Eager())
_forced: ContextVar[str | None] = ContextVar("intently_kernel", default=None)


def available() -> tuple[str, ...]:
    """Names of the kernels, fastest first.

    >>> available()
    ('torch_fused', 'eager')
    """
    return tuple(kernel.name for kernel in _KERNELS)


@contextmanager
def use(name: str) -> Iterator[None]:
    """Within the block every ``A @ v`` runs the kernel ``name`` or raises `KernelError` with why.

    >>> import torch, intently as it
    >>> with use("eager"):
    ...     it.attend(torch.ones(2, 4), torch.ones(2, 4)).plan().kernel
    'eager'
    """
    if name not in available():
        raise build(ArgumentError, "name", f"one of {', '.join(available())}", repr(name))
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


@dataclass(frozen=True)
class Plan:
    """What ``A @ v`` will run: the kernel, why not a faster one, the bytes beside the inputs."""

    kernel: str
    memory: int
    refused: dict[str, str]
    note: str
    builds_matrix: bool

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.memory / 2**20:.1f} MiB beside the inputs; {self.note}"]
        if self.builds_matrix:
            lines.append("builds the whole t × s matrix")
        lines += [f"not {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join(lines)


def choose(problem: Problem, v: Tensor) -> Kernel:
    """Return the first kernel that serves the call, or the one that `use` asks for."""
    forced = _forced.get()
    for kernel in _KERNELS:
        if forced is not None and kernel.name != forced:
            continue
        reason = kernel.refuses(problem, v)
        if reason is None:
            return kernel
        if forced is not None:
            raise build(
                KernelError, "kernel", f"a call that {forced} can serve", reason,
                fix="leave the `with it.kernels.use(…)` block, or change the call",
            )  # fmt: skip
    raise AssertionError("eager serves every call")


def plan(problem: Problem, v: Tensor) -> Plan:
    """Describe what `choose` picks and why the faster kernels were passed over."""
    kernel = choose(problem, v)
    refused: dict[str, str] = {}
    for faster in _KERNELS:
        if faster is kernel:
            break
        refused[faster.name] = faster.refuses(problem, v) or "another kernel was asked for"
    return Plan(
        kernel.name, kernel.memory(problem, v), refused, kernel.note, kernel.name == "eager"
    )
