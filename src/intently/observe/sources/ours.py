"""Our own products, ``A @ v``, and caches that a beam search reorders, ours and transformers'.

The order of the rows tells which row of a step continues which. The keys of self-attention tell it
too, but only if self-attention is watched.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from intently.core.kernels.problem import Problem
from intently.observe.watching.call import AttentionSpec, Call, itself
from intently.observe.watching.scope import Function, Target, current, inside, told


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
        for listener in listeners:
            for index in (*args[1:], *kwargs.values()):
                listener.reordered(index)
        with inside():  # a cache for decoder and encoder is made of two
            return original(*args, **kwargs)

    return reorder


TARGETS = [
    Target("intently.core.attention", "_product", _wrap),
    Target("intently.nn.models.transformer:DecoderCache", "reorder_targets", _reordering),
    Target("transformers.cache_utils:Cache", "reorder_cache", _reordering),
    Target("transformers.cache_utils:EncoderDecoderCache", "reorder_cache", _reordering),
]
