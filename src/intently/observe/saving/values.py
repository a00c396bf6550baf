"""Masks, biases and scores as plain data and back: only kinds of this package, by name.

A value is ``[name, part, …]``; a part is a number, None, another value, or ``{"tensor": key}``.
Names are looked up in a short table, and never name a class, a module or a function.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from intently.core import masks
from intently.core.biases import Bias, Sum, TensorBias, alibi, relative_buckets
from intently.core.masks import Geometry, Mask
from intently.core.masks.geometry import integers
from intently.core.masks.mask import Allowed, Both, Either, Not
from intently.core.masks.ragged import Padding, RealKeys, Segments
from intently.core.matrix.blocks import InBlocks
from intently.core.scores import Additive, Cosine, Dot, General
from intently.errors import IntentlyError, MemoryRefused, build
from intently.foundation.checks import whole_number
from intently.foundation.values import Value
from intently.nn.caches.masks import KeptBias, KeptMask, SideBySide, Written
from intently.nn.recurrent import Energies

LARGEST = 2**48
"""The largest whole number of a mask or bias: positions stay far from the limits of int64."""

NODES = 64
"""Masks, biases and scores in one value at most: each is evaluated for every tile."""

WRITTEN_OUT = 2**30
"""Bytes at most of a rule without a name, which is written out."""

Tensors: TypeAlias = Callable[[str], Tensor | None]
"""Gives the tensor of a name, None for an unknown one."""


class UnreadableError(Exception):
    """Plain data that is no value; says why."""


# --- the kinds ------------------------------------------------------------------------------------


def _a(want: Any, x: Any) -> Any:
    """A part that is what its kind wants.

    That is an instance of a class, a whole number of at least ``want``, an integer tensor (``int``)
    or, if want is None, either of these.
    """
    if isinstance(want, int) or (want is None and not isinstance(x, Tensor)):
        return whole_number(x, "a number", want or 0)
    if want is int or want is None:
        return integers(x, "lengths")
    if not isinstance(x, want) or (want is Tensor and not x.is_floating_point()):
        name = "floating-point tensor" if want is Tensor else want.__name__.lower()
        raise UnreadableError(f"no {name} where one belongs")
    return x


def _buckets(table: Any, far: Any, both: Any, offset: Any) -> Bias:
    return relative_buckets(table, max_distance=far, bidirectional=bool(both), offset=offset)


def _segments(*ids: Any) -> Mask:
    if any(not (isinstance(x, Tensor) and x.ndim) for x in ids if x is not None):
        raise UnreadableError("segments without a tensor of ids (…, t)")
    return masks.segments(*ids)


def _in_blocks(weights: Tensor, rows: Tensor, columns: Tensor, t: int, s: int) -> InBlocks:
    if weights.ndim < 3:
        raise UnreadableError("blocks without weights (…, n, u, w)")
    for places, size, most in ((rows, weights.shape[-2], t), (columns, weights.shape[-1], s)):
        if places.shape != (weights.shape[-3], size):
            raise UnreadableError("blocks without the places of their rows and columns")
        if places.numel() and not -1 <= int(places.amin()) <= int(places.amax()) < most:
            raise UnreadableError("a place that is not in the matrix")
    return InBlocks(weights, rows, columns, t, s)


_KINDS: dict[str, tuple[type[Value], Callable[..., Value], list[Any] | None]] = {
    "causal": (type(masks.causal()), masks.causal, None),
    "window": (type(masks.window(0, 0)), masks.window, None),
    "dilated": (type(masks.dilated(1)), masks.dilated, None),
    "prefix": (type(masks.prefix(0)), masks.prefix, None),
    "padding": (Padding, Padding, [int]),
    "real keys": (RealKeys, masks.padding, None),
    "segments": (Segments, _segments, None),
    "grid": (type(masks.grid(1, 1, 0)), masks.grid, None),
    "allowed": (Allowed, masks.allowed, None),
    "both": (Both, Both, [Mask, Mask]),
    "either": (Either, Either, [Mask, Mask]),
    "not": (Not, Not, [Mask]),
    "written": (Written, Written, [int]),
    "kept mask": (KeptMask, KeptMask, [Mask, 0, None, 1]),
    "side by side": (SideBySide, SideBySide, [Mask, 1]),
    "alibi": (type(alibi()), alibi, None),
    "buckets": (type(relative_buckets(torch.zeros(4, 1), max_distance=9)), _buckets, None),
    "given": (TensorBias, TensorBias, None),
    "in blocks": (InBlocks, _in_blocks, [Tensor, int, int, 0, 0]),
    "sum": (Sum, Sum, [Bias, Bias]),
    "kept bias": (KeptBias, KeptBias, [Bias, 0, None, 1]),
    "dot": (Dot, Dot, []),
    "general": (General, General, None),
    "cosine": (Cosine, Cosine, []),
    "additive": (Additive, Additive, None),
    "energies": (Energies, Energies, [Tensor]),
}
"""The kinds of values by name: the class, what makes one of untrusted parts, and the parts that it
does not check itself, of which the last may be missing."""
_NAMES = {kind: name for name, (kind, *_) in _KINDS.items()}


# --- to plain data, and back ----------------------------------------------------------------------


def form(x: Value, g: Geometry, tensor: Callable[[Tensor], Any]) -> list[Any] | None:
    """A mask, bias or score of the matrix ``g`` as plain data; ``tensor`` stores and names tensors.

    Masks and biases without a name here (of the user's own classes) are written out as tensors;
    raises `MemoryRefused` if one takes more than 1 GiB. None for a score without a name.
    """
    every = _every(x, lambda one: [p for p in one.parts if isinstance(p, Value)])
    if every is None or not all(type(one) in _NAMES for one in every):
        if not isinstance(x, Mask | Bias):
            return None
        x = _written_out(x, g)

    def plain(x: Any) -> Any:
        if isinstance(x, Value):
            return [_NAMES[type(x)], *map(plain, x.parts)]
        return tensor(x) if isinstance(x, Tensor) else x

    return plain(x)


def _written_out(x: Any, g: Geometry) -> Value:
    """The same rule as a tensor; raises `MemoryRefused` if it is too large."""

    def tile(t: int, s: int) -> Tensor:
        rows, cols = torch.arange(t, device=g.device), torch.arange(s, device=g.device)
        if isinstance(x, Mask):
            return x.allow(g, rows, cols)
        return x.tile(g, rows, cols, torch.float32)

    one = tile(1, 1)
    shape = (*one.shape[:-2], g.t, g.s)
    size = one.element_size() * math.prod(shape)
    if size > WRITTEN_OUT:
        expected = f"at most {WRITTEN_OUT:,} bytes for {type(x).__name__}"
        got = f"{size:,} bytes for shape {shape}"
        cause = "masks and biases of your own classes are written out as tensors"
        fix = "say it with the masks of intently.core.masks"
        raise build(MemoryRefused, "save", expected, got, cause, fix)
    return (masks.allowed if isinstance(x, Mask) else TensorBias)(tile(g.t, g.s))


def value(form: Any, tensors: Tensors, kind: type[Any]) -> Any:
    """Return the value of a kind (`Mask`, `Bias`, `Score`, …) that ``form`` stands for.

    Raises `UnreadableError` for anything that the functions above would not have written.
    """
    if _every(form, lambda x: [p for p in x if type(p) is list] if type(x) is list else []) is None:
        raise UnreadableError(f"a mask, bias or score of more than {NODES} others")
    try:
        return _a(kind, _value(form, tensors))
    except IntentlyError as error:
        raise UnreadableError(str(error)) from None


def _every(x: Any, inside: Callable[[Any], list[Any]]) -> list[Any] | None:
    """X and all that is inside it; None if these are too many."""
    found = [x]
    for one in found:  # which grows meanwhile
        found += inside(one)
        if len(found) > NODES:
            return None
    return found


def _value(form: Any, tensors: Tensors) -> Value:
    if not isinstance(form, list) or not form or not isinstance(form[0], str):
        raise UnreadableError("no name of a mask, bias or score where one belongs")
    if form[0] not in _KINDS:
        raise UnreadableError(f"a kind of mask, bias or score that is not known, {form[0][:40]!r}")
    _, make, wanted = _KINDS[form[0]]
    parts = [_part(x, tensors) for x in form[1:]]
    try:
        if wanted is not None:
            if len(parts) > len(wanted):
                raise TypeError
            parts = list(map(_a, wanted, parts))
        return inspect.unwrap(make)(*parts)
    except IntentlyError:
        raise
    except (TypeError, AttributeError, ValueError, RuntimeError, IndexError):
        raise UnreadableError(f"{form[0]!r} made of other parts than it has") from None


def _part(x: Any, tensors: Tensors) -> Any:
    if isinstance(x, list):
        return _value(x, tensors)
    if isinstance(x, dict):
        return tensor_of(x, tensors)
    if x is None or isinstance(x, bool) or (isinstance(x, int) and abs(x) <= LARGEST):
        return x
    raise UnreadableError(f"{str(x)[:40]!r} as a part of a mask, bias or score")


def tensor_of(x: Any, tensors: Tensors) -> Tensor:
    """Return the tensor that ``{"tensor": key}`` names."""
    key = x.get("tensor") if isinstance(x, dict) and len(x) == 1 else None
    found = tensors(key) if isinstance(key, str) else None
    if found is None:
        raise UnreadableError(f"the name of a tensor that is not there, {str(key)[:40]!r}")
    return found
