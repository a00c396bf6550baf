"""Our own products, ``A @ v``, and caches that a beam search reorders, ours and transformers'.

The order of the rows tells which row of a step continues which. The keys of self-attention tell it
too, but only if self-attention is watched.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from intently.core.kernels.problem import Problem
from intently.observe.watching.call import AttentionSpec, Call, itself
from intently.observe.watching.patches import Function, Target
from intently.observe.watching.scope import current, inside, told
from intently.observe.watching.searched import Searched


def targets(searched: Searched) -> list[Target]:
    """The one function that every product of ours calls, and methods that reorder caches."""
    theirs = sys.modules.get("transformers.cache_utils")
    ours = sys.modules.get("intently.nn.models.transformer")
    found = [Target(sys.modules["intently.core.attention"], "_product", _wrap)]
    if ours is not None:
        found.append(Target(ours.DecoderCache, "reorder_targets", _reordering))
    if theirs is not None:
        found += [
            Target(kind, "reorder_cache", _reordering)
            for kind in (theirs.Cache, theirs.EncoderDecoderCache)
        ]
    return found


def _wrap(original: Function) -> Function:
    return told(original, "intently", _call)


def _call(y: Tensor, p: Problem, v: Tensor, autocast: bool) -> Call:
    how = AttentionSpec(p.score, p.mask, p.bias, p.scale, p.softcap, p.sinks, p.dropout)
    return Call(p.q, p.k, v, y, how, "intently", put=itself)


def _reordering(original: Function) -> Function:
    def reorder(*args: Any, **kwargs: Any) -> Any:
        listeners = current()
        if not listeners:
            return original(*args, **kwargs)
        with inside():  # a cache for decoder and encoder is made of two
            result = original(*args, **kwargs)
        for index in (*args[1:], *kwargs.values()):
            for listener in listeners:
                listener.reordered(index)
        return result

    return reorder
