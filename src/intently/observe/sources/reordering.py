"""Caches that a beam search reorders: which row of a step continues which.

The keys of self-attention tell that, too; where it is not watched, only this does.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from intently.observe.watching.patches import Function, Target
from intently.observe.watching.watch import current, inside


def targets(model: nn.Module | None) -> list[Target]:
    """What reorders the caches of transformers and of our own models, where they are imported."""
    theirs = sys.modules.get("transformers.cache_utils")
    ours = sys.modules.get("intently.models.transformer")
    found = [] if ours is None else [Target(ours.DecoderCache, "reorder_targets", _wrap)]
    if theirs is not None:
        kinds = (theirs.Cache, theirs.EncoderDecoderCache)
        found += [Target(kind, "reorder_cache", _wrap) for kind in kinds]
    return found


def _wrap(original: Function) -> Function:
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
