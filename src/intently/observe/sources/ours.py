"""Our own products: every ``A @ v``, `attention` and `scaled_dot_product_attention` of ours."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from intently.kernels.problem import Problem
from intently.observe.sources.telling import tell
from intently.observe.watching.call import AttentionSpec, Call
from intently.observe.watching.patches import Function, Target
from intently.observe.watching.watch import current, inside


def targets(model: nn.Module | None) -> list[Target]:
    """The one function that every product of ours passes."""
    return [Target(sys.modules["intently.attention_matrix"], "_product", _wrap)]


def _wrap(original: Function) -> Function:
    def product(problem: Problem, v: Tensor, autocast: bool) -> Tensor:
        if torch.compiler.is_compiling():
            return original(problem, v, autocast)
        recorders = current()
        if not recorders:
            return original(problem, v, autocast)
        with inside():
            y = original(problem, v, autocast)
        p = problem
        how = AttentionSpec(p.score, p.mask, p.bias, p.scale, p.softcap, p.sinks, p.dropout)
        tell(recorders, "intently", None, lambda: Call(p.q, p.k, v, y, how, "intently"))
        return y

    return product
