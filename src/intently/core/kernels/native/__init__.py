"""The native kernel: attention in C++ for CPUs, in tiles that never leave the cache.

float32 and the half types; masks as descriptions, whose empty blocks are never touched; biases,
softcap, sinks, dropout; gradients of all of them. `source/` holds the C++, `describing` the form in
which masks and biases reach it, `operator` the gradients, `measuring` the statistics.

It is built when Intently is installed where a C++ compiler is there; elsewhere the other kernels
serve every call.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from intently.core.kernels.native import describing, measuring, operator
from intently.core.kernels.native.describing import SMALL, WIDEST, instructions, loaded, quick
from intently.core.kernels.operands import (
    forward_mode,
    needs_gradients,
    opaque,
    recording,
    transformed,
)
from intently.core.kernels.problem import Kernel, Problem
from intently.core.scores import Dot

__all__ = ["Native", "instructions", "loaded", "measuring", "quick", "unserved"]

AXES = 9
"""Leading axes at most."""


class Native(Kernel):
    """y = weights @ v in C++: O(t) memory, forward and backward."""

    name = "native"
    note = "first derivatives in O(t) memory, second derivatives build the t × s matrix"
    device = "cpu"

    def present(self) -> bool:
        return loaded.module is not None

    def refuses(self, problem: Problem, v: Tensor) -> str | None:
        return unserved(problem, v)

    def serves(self, problem: Problem, v: Tensor) -> bool:
        """The same as that of every kernel, the cheaper question first."""
        return self.yields(problem, v) is None and unserved(problem, v) is None

    def yields(self, problem: Problem, v: Tensor) -> str | None:
        """Small calls with gradients: their derivatives cost more to set up than to compute."""
        p = problem
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        if not needs_gradients((*p.tensors(), v)):
            return None
        plain = p.bias is None and (p.mask is None or p.is_causal())
        small = SMALL if plain else SMALL // 16  # others cost PyTorch a written mask
        if math.prod(p.geometry.shape) * p.q.shape[-1] >= small:
            return None
        return "the call is small and needs gradients"

    def memory(self, problem: Problem, v: Tensor) -> int:
        rows = math.prod(problem.geometry.shape[:-1])
        return rows * (v.shape[-1] * problem.q.element_size() + 8)

    def multiply(self, problem: Problem, v: Tensor) -> Tensor:
        return operator.product(problem.shared_by(v), v)


def unserved(p: Problem, v: Tensor) -> str | None:
    """Why the kernel cannot serve a product; looks at no entry of any tensor."""
    if loaded.module is None:
        return loaded.reason
    if p.q.device.type != "cpu":
        return "it runs on the CPU"
    if type(p.score) is not Dot:
        return f"score is {type(p.score).__name__}, not the dot product"
    if p.q.dtype not in describing.FLOATS:
        return f"dtype is {p.q.dtype}"
    if not (p.q.numel() and p.k.numel() and v.numel()):
        return "a dimension is empty"
    if max(p.q.shape[-1], v.shape[-1]) > WIDEST:
        return f"d={p.q.shape[-1]} or e={v.shape[-1]} is above {WIDEST}"
    lead = p.geometry.lead
    if len(lead) > AXES:
        return f"{len(lead)} leading axes are more than {AXES}"
    if v.ndim - 2 > len(lead):
        return "v has leading axes that the matrix does not have"
    reason = describing.unknown_mask(p.mask, p.geometry)
    reason = reason or describing.unknown_bias(p.bias, p.geometry)
    if reason is not None:
        return reason
    if recording():
        return "a trace or an ONNX export records PyTorch's own operations only"
    if transformed():
        return "torch.func has no rule for it"
    given = (*p.tensors(), v)
    if forward_mode(given):
        return "it has no forward-mode derivative"
    if opaque(given):
        for rule in (p.mask, p.bias):
            if rule is not None and not rule.remade():
                return "the parts of a rule do not make it again"
    return None
