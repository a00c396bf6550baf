"""The kernels, and the one function that chooses between them.

A new kernel is a file with a subclass of `Kernel`, and an entry in ``_KERNELS``, fastest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from intently.core.kernels import eager, tiled
from intently.core.kernels.eager import Eager
from intently.core.kernels.flex import Flex
from intently.core.kernels.native import Native, measuring, quick, unserved
from intently.core.kernels.operands import differentiated, opaque, recording, wanted_kernel
from intently.core.kernels.problem import Kernel, Problem
from intently.core.kernels.tiled import TiledKernel
from intently.core.kernels.torch_fused import TorchFused
from intently.errors import KernelError, build
from intently.foundation.checks import check_word
from intently.foundation.on_demand import listed

_KERNELS: tuple[Kernel, ...] = (Native(), TorchFused(), Flex(), TiledKernel(), Eager())
__all__ = [
    "Kernel",
    "Plan",
    "available",
    "choose",
    "differentiated",
    "lse",
    "measures",
    "measuring",
    "plan",
    "quick",
    "use",
]

__dir__ = listed(__name__)


def available() -> tuple[str, ...]:
    """Names of the kernels that this machine can run, fastest first.

    ``native`` needs a C++ compiler when Intently is installed, ``flex`` needs CUDA.

    >>> [name for name in available() if name not in ("native", "flex")]
    ['torch_fused', 'tiled', 'eager']
    """
    return tuple(kernel.name for kernel in _KERNELS if kernel.present())


def _asked_for() -> str | None:
    return wanted_kernel.get()


setattr(_asked_for, "_dynamo_marked_constant", True)  # noqa: B010 - torch.compiler's own mark
"""A compiled graph keeps the kernel that it was traced with; `ContextVar` cannot be traced."""


@contextmanager
def use(name: str) -> Iterator[None]:
    """Within the block, every ``A @ v`` runs the kernel ``name`` or raises `KernelError` with a
    reason.

    A graph that torch.compile traces within the block keeps that kernel.

    >>> import torch, intently as it
    >>> with use("eager"):
    ...     it.attend(torch.ones(2, 4), torch.ones(2, 4)).plan().kernel
    'eager'
    """
    check_word(name, "name", [kernel.name for kernel in _KERNELS])
    token = wanted_kernel.set(name)
    try:
        yield
    finally:
        wanted_kernel.reset(token)


@dataclass(frozen=True)
class Plan:
    """The plan for ``A @ v``: the kernel, why not a faster one, the bytes beside the inputs.

    ``writes`` names what is materialised at size t × s; None if nothing is.
    """

    kernel: str
    memory: int
    refused: dict[str, str]
    note: str
    writes: str | None

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.memory / 2**20:.1f} MiB beside the inputs; {self.note}"]
        if self.writes:
            lines.append(self.writes)
        lines += [f"not {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join(lines)


def choose(problem: Problem, v: Tensor) -> Kernel:
    """Return the first kernel that suits the call, or the one that `use` forces."""
    forced = _asked_for()
    if forced is None:
        if recording():
            return _KERNELS[-1]
        device = problem.q.device.type
        for kernel in _KERNELS:
            if kernel.device in (None, device) and kernel.serves(problem, v):
                return kernel
    kernel = next(kernel for kernel in _KERNELS if kernel.name == forced)
    reason = kernel.refuses(problem, v)
    if reason is not None:
        fix = "leave the `with it.kernels.use(…)` block, or change the call"
        raise build(KernelError, "kernel", f"a call that {forced} can serve", reason, fix=fix)
    return kernel


def lse(problem: Problem) -> Tensor:
    """log(Σ exp z + exp sink) of each query (…, t), in O(t) memory where the matrix is large."""
    if measures(problem):
        return measuring.by_query(problem, ["lse"])["lse"]
    kernel, nothing = TiledKernel(), problem.k[..., :0]
    if kernel.refuses(problem, nothing) or kernel.yields(problem, nothing):
        return eager.lse(problem)
    return tiled.product(problem, nothing)[1]


def measures(problem: Problem) -> bool:
    """Whether the native kernel finds the statistics of a matrix: none is to be differentiated."""
    given = problem.tensors()
    if _asked_for() not in (None, "native") or differentiated(given) or opaque(given):
        return False
    return unserved(problem, problem.k) is None


def plan(problem: Problem, v: Tensor) -> Plan:
    """Describe the choice of `choose` and why it passed over faster kernels."""
    kernel = choose(problem, v)
    refused: dict[str, str] = {}
    for faster in _KERNELS:
        if faster is kernel:
            break
        if faster.device not in (None, problem.q.device.type):
            continue
        reason = faster.refuses(problem, v) or faster.yields(problem, v)
        refused[faster.name] = reason or "another kernel was asked for"
    writes = kernel.writes(problem, v)
    return Plan(kernel.name, kernel.memory(problem, v), refused, kernel.note, writes)
