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
from intently.core.biases import Bias, TensorBias, alibi, relative_buckets
from intently.core.masks import Geometry, Mask
from intently.core.masks.geometry import integers
from intently.core.masks.mask import Allowed
from intently.core.masks.ragged import Padding, RealKeys
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


# --- what parts are checked for -------------------------------------------------------------------


def _a(kind: type[Any]) -> Callable[[Any], Any]:
    def check(x: Any) -> Any:
        if not isinstance(x, kind):
            raise UnreadableError(f"no {kind.__name__.lower()} where one belongs")
        return x

    return check


def _count(least: int) -> Callable[[Any], int]:
    return lambda x: whole_number(x, "a number", least)


def _ints(x: Any) -> Any:
    return integers(x, "lengths")


def _floats(x: Any) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise UnreadableError("no floating-point tensor where one belongs")
    return x


def _gap(x: Any) -> Any:
    return _ints(x) if isinstance(x, Tensor) else _count(0)(x)


def _of(kind: Callable[..., Value], *checks: Callable[[Any], Any]) -> Callable[..., Value]:
    """A maker of a value of checked parts, of which the last may be missing."""

    def make(*parts: Any) -> Value:
        if len(parts) > len(checks):
            raise TypeError
        return kind(*(check(x) for check, x in zip(checks, parts)))

    return make


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


_MASK, _BIAS = _a(Mask), _a(Bias)
_BOTH, _EITHER, _NOT = (
    type(m)
    for m in (masks.causal() & masks.causal(), masks.causal() | masks.causal(), ~masks.causal())
)
_SUM = type(alibi() + alibi())

_KINDS: dict[str, tuple[type[Value], Callable[..., Value]]] = {
    "causal": (type(masks.causal()), masks.causal),
    "window": (type(masks.window(0, 0)), masks.window),
    "dilated": (type(masks.dilated(1)), masks.dilated),
    "prefix": (type(masks.prefix(0)), masks.prefix),
    "padding": (Padding, _of(Padding, _ints)),
    "real keys": (RealKeys, masks.padding),
    "segments": (type(masks.segments(torch.ones(1, dtype=torch.long))), _segments),
    "grid": (type(masks.grid(1, 1, 0)), masks.grid),
    "allowed": (Allowed, masks.allowed),
    "both": (_BOTH, _of(_BOTH, _MASK, _MASK)),
    "either": (_EITHER, _of(_EITHER, _MASK, _MASK)),
    "not": (_NOT, _of(_NOT, _MASK)),
    "written": (Written, _of(Written, _ints)),
    "kept mask": (KeptMask, _of(KeptMask, _MASK, _count(0), _gap, _count(1))),
    "side by side": (SideBySide, _of(SideBySide, _MASK, _count(1))),
    "alibi": (type(alibi()), alibi),
    "buckets": (type(relative_buckets(torch.zeros(4, 1), max_distance=9)), _buckets),
    "given": (TensorBias, TensorBias),
    "in blocks": (InBlocks, _of(_in_blocks, _floats, _ints, _ints, _count(0), _count(0))),
    "sum": (_SUM, _of(_SUM, _BIAS, _BIAS)),
    "kept bias": (KeptBias, _of(KeptBias, _BIAS, _count(0), _gap, _count(1))),
    "dot": (Dot, _of(Dot)),
    "general": (General, General),
    "cosine": (Cosine, _of(Cosine)),
    "additive": (Additive, Additive),
    "energies": (Energies, _of(Energies, _floats)),
}
"""The kinds of values by name, each with the function that makes one of untrusted parts."""
_NAMES = {kind: name for name, (kind, _) in _KINDS.items()}


# --- to plain data, and back ----------------------------------------------------------------------


def form(x: Value, g: Geometry, tensor: Callable[[Tensor], Any]) -> list[Any] | None:
    """A mask, bias or score of the matrix ``g`` as plain data; ``tensor`` stores and names tensors.

    Masks and biases without a name here (of the user's own classes) are written out as tensors;
    raises `MemoryRefused` if one takes more than 1 GiB. None for a score without a name.
    """
    every = _every(x, lambda one: [p for p in one.parts if isinstance(p, Value)])
    if every is not None and all(type(one) in _NAMES for one in every):
        return _form(x, tensor)
    rows, cols = (torch.arange(n, device=g.device) for n in (g.t, g.s))
    if isinstance(x, Mask):
        _check_size(x, g, x.allow(g, rows[:0], cols[:1]))
        return _form(masks.allowed(x.dense(g)), tensor)
    if isinstance(x, Bias):
        _check_size(x, g, x.tile(g, rows[:1], cols[:1], torch.float32))
        return _form(TensorBias(x.tile(g, rows, cols, torch.float32)), tensor)
    return None


def value(form: Any, tensors: Tensors, kind: type[Any]) -> Any:
    """Return the value of a kind (`Mask`, `Bias`, `Score`, …) that ``form`` stands for.

    Raises `UnreadableError` for anything that the functions above would not have written.
    """
    if _every(form, lambda x: [p for p in x if type(p) is list] if type(x) is list else []) is None:
        raise UnreadableError(f"a mask, bias or score of more than {NODES} others")
    try:
        return _a(kind)(_value(form, tensors))
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


def _form(x: Any, tensor: Callable[[Tensor], Any]) -> Any:
    if isinstance(x, Value):
        return [_NAMES[type(x)], *(_form(part, tensor) for part in x.parts)]
    return tensor(x) if isinstance(x, Tensor) else x


def _check_size(rule: Value, g: Geometry, tile: Tensor) -> None:
    """Raise if a rule, of which ``tile`` is a part, is too large to be written out."""
    shape = (*tile.shape[:-2], g.t, g.s)
    size = tile.element_size() * math.prod(shape)
    if size > WRITTEN_OUT:
        expected = f"at most {WRITTEN_OUT:,} bytes for {type(rule).__name__}"
        got = f"{size:,} bytes for shape {shape}"
        cause = "masks and biases of your own classes are written out as tensors"
        fix = "say it with the masks of intently.core.masks"
        raise build(MemoryRefused, "save", expected, got, cause, fix)


def _value(form: Any, tensors: Tensors) -> Value:
    if not isinstance(form, list) or not form or not isinstance(form[0], str):
        raise UnreadableError("no name of a mask, bias or score where one belongs")
    if form[0] not in _KINDS:
        raise UnreadableError(f"a kind of mask, bias or score that is not known, {form[0][:40]!r}")
    parts = [_part(x, tensors) for x in form[1:]]
    try:
        return inspect.unwrap(_KINDS[form[0]][1])(*parts)
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
