"""Our own products, ``A @ v``; and caches that a beam search reorders, ours and transformers'.

How rows are reordered tells which row of a step continues which. The keys of self-attention tell
that, too; where it is not watched, only this does.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from intently.kernels.problem import Problem
from intently.observe.watching.call import AttentionSpec, Call
from intently.observe.watching.patches import Function, Target
from intently.observe.watching.scope import current, inside, tell


def targets(model: nn.Module | None) -> list[Target]:
    """The one function that every product of ours passes, and what reorders caches, if imported."""
    theirs = sys.modules.get("transformers.cache_utils")
    ours = sys.modules.get("intently.models.transformer")
    found = [Target(sys.modules["intently.attention_matrix"], "_product", _wrap)]
    if ours is not None:
        found.append(Target(ours.DecoderCache, "reorder_targets", _reordering))
    if theirs is not None:
        kinds = (theirs.Cache, theirs.EncoderDecoderCache)
        found += [Target(kind, "reorder_cache", _reordering) for kind in kinds]
    return found


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


def _reordering(original: Function) -> Function:
    def reorder(*args: Any, **kwargs: Any) -> Any:
        recorders = () if torch.compiler.is_compiling() else current()
        if not recorders:
            return original(*args, **kwargs)
        with inside():  # one for the decoder and the encoder is made of two
            result = original(*args, **kwargs)
        for index in (*args[1:], *kwargs.values()):
            for recorder in recorders:
                recorder.reordered(index)
        return result

    return reorder
