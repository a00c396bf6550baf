"""Masks and biases as the native kernel reads them.

A mask becomes a program in postfix order: ``(kind, a, b, n, x, y)``, one step for each rule and for
each ``&``, ``|`` and ``~``. A bias becomes a tensor that broadcasts to (…, t, s), or, if it depends
on the distance alone, a profile (…, 1, t + s − 1) whose entry i − j + s − 1 belongs to query i and
key j. Every tensor has two axes after the leading ones, which broadcast from the right.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from intently.core.biases import Bias, ByDistance, Sum, TensorBias
from intently.core.kernels.problem import Problem
from intently.core.masks import Geometry, Mask
from intently.core.masks.by_position import Band, Dilated
from intently.core.masks.mask import Allowed, Both, Either, Not
from intently.core.masks.ragged import First, Segments, is_sorted

BAND, FIRST, SEGMENTS, DILATED, ENTRIES, AND, OR, NOT = range(8)

STEPS, DEPTH = 32, 8
"""Steps of a program, and results that it holds at once, at most."""

BIASES = 4
"""Tensors in a sum of biases at most; profiles are added up."""

OUTSIDE = 2**48
"""Positions are cut to it, beyond all keys and small beside the farthest reach of a mask."""

WRITTEN = 2**20
"""Entries up to which a rule without a description is written out."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

Step: TypeAlias = tuple[int, int, int, int, Tensor | None, Tensor | None]


def unknown_mask(mask: Mask | None, g: Geometry) -> str | None:
    """Why a mask has no program; None if it has one. Looks at types and shapes only."""
    if mask is None:
        return None
    steps, depth, reason = _size(mask, g)
    return "the mask joins too many rules" if steps > STEPS or depth > DEPTH else reason


def _size(mask: Mask, g: Geometry) -> tuple[int, int, str | None]:
    """Steps and depth of the program of a mask, and why it has none."""
    if isinstance(mask, (Both, Either)):
        (a, deep, reason), (b, deeper, other) = _size(mask.left, g), _size(mask.right, g)
        return a + b + 1, max(deep, deeper + 1), reason or other
    if isinstance(mask, Not):
        steps, depth, reason = _size(mask.inner, g)
        return steps + 1, depth, reason
    if isinstance(mask, (Band, First, Segments, Dilated, Allowed)):
        return 1, 1, None
    large = math.prod(mask.lead()) * g.t * g.s > WRITTEN
    return 1, 1, f"it has no description of {type(mask).__name__}" if large else None


def program(mask: Mask | None, g: Geometry) -> tuple[Step, ...]:
    """The steps that evaluate a mask for a block of the matrix ``g``."""
    return () if mask is None else tuple(_steps(mask, g))


def _steps(mask: Mask, g: Geometry) -> list[Step]:
    if isinstance(mask, (Both, Either)):
        join = AND if isinstance(mask, Both) else OR
        return [*_steps(mask.left, g), *_steps(mask.right, g), (join, 0, 0, 0, None, None)]
    if isinstance(mask, Not):
        return [*_steps(mask.inner, g), (NOT, 0, 0, 0, None, None)]
    if isinstance(mask, Band):
        return [(BAND, mask.before, mask.after, *_number(mask.start(g)), None)]
    if isinstance(mask, Dilated):
        return [(DILATED, mask.step, 0, *_number(mask.start(g)), None)]
    if isinstance(mask, First):
        n = mask.n if isinstance(mask.n, int) else mask.counts(g)
        return [(FIRST, 0, 0, *_number(n), None)]
    if isinstance(mask, Segments):
        q, k = mask.sides(g)
        ordered = is_sorted(k)
        ids = q.long()[..., :, None].contiguous(), k.long()[..., None, :].contiguous()
        return [(SEGMENTS, int(ordered), 0, 0, *ids)]
    entries = mask.laid(g) if isinstance(mask, Allowed) else mask.dense(g)
    return [(ENTRIES, 0, 0, 0, _two_axes(entries), None)]


def _number(n: int | Tensor) -> tuple[int, Tensor | None]:
    """A number for all rows of a batch, or a tensor (…, 1, 1) of them."""
    if isinstance(n, int):
        return max(-OUTSIDE, min(n, OUTSIDE)), None
    if n.numel() == 1:
        return max(-OUTSIDE, min(int(n), OUTSIDE)), None
    return 0, n.long().clamp(-OUTSIDE, OUTSIDE)


def unknown_bias(bias: Bias | None, g: Geometry) -> str | None:
    """Why a bias has no description; None if it has one."""
    if bias is None:
        return None
    parts = list(_parts(bias))
    if sum(not isinstance(part, ByDistance) for part in parts) > BIASES:
        return f"the bias is a sum of more than {BIASES} tensors"
    for part in parts:
        if not isinstance(part, (TensorBias, ByDistance)) and g.t * g.s > WRITTEN // 16:
            return f"it has no description of {type(part).__name__}"
    return None


def _parts(bias: Bias | None) -> list[Bias]:
    if bias is None:
        return []
    return [*_parts(bias.left), *_parts(bias.right)] if isinstance(bias, Sum) else [bias]


def biases(p: Problem) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors and the profiles of a bias, differentiable in what it holds."""
    g = p.geometry
    tensors, profiles = [], []
    for part in _parts(p.bias):
        if isinstance(part, ByDistance):
            profiles.append(profile(part, g))
        elif isinstance(part, TensorBias):
            x = part.tensor if part.tensor.dtype in FLOATS else part.tensor.float()
            tensors.append(_two_axes(x))
        else:
            i, j = (torch.arange(n, device=g.device) for n in (g.t, g.s))
            tensors.append(_two_axes(part.tile(g, i, j, torch.float32)))
    return tensors, [sum(profiles[1:], profiles[0])] if profiles else []


def profile(bias: ByDistance, g: Geometry) -> Tensor:
    """The numbers of a bias by distance, (…, 1, t + s − 1), from the farthest key ahead on."""
    start = bias.start(g)
    start = start[..., 0] if isinstance(start, Tensor) else start
    apart = torch.arange(g.s - 1, -g.t, -1, device=g.device) - start
    return bias.profile(g, apart, torch.float32)[..., None, :].contiguous()


def _two_axes(x: Tensor) -> Tensor:
    return x.reshape((1,) * max(0, 2 - x.ndim) + tuple(x.shape))
