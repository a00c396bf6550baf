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
from intently.core.scores import Additive, Cosine, Dot, General, Score
from intently.errors import IntentlyError, MemoryRefused, build
from intently.foundation.checks import whole_number
from intently.foundation.values import Value
from intently.nn.caches.masks import KeptBias, KeptMask, SideBySide, Written
from intently.nn.recurrent import Energies
from intently.observe.recording.blocks import InBlocks

LARGEST = 2**48
"""The largest whole number of a mask or bias: positions stay far from the limits of int64."""

DEPTH = 64
"""How deep values may be nested."""

NODES = 256
"""Masks, biases and scores in one value at most: each is evaluated for every tile."""

BUCKETS = 2**16
"""Rows at most of a table of relative positions."""

Tensors: TypeAlias = Callable[[str], Tensor | None]
"""Gives the tensor of a name, None for an unknown one."""

WRITTEN_OUT = 2**30
"""Bytes at most of a rule without a name, which is written out."""


class UnreadableError(Exception):
    """Plain data that is no value; says why."""


_Kind: TypeAlias = tuple[type[Value], Callable[..., Value]]
"""A kind of value, and the function that makes one of checked parts."""


def _pair(kind: type[Value], of: type[Value]) -> Callable[..., Value]:
    return lambda left, right: kind(_a(of, left), _a(of, right))


def _a(kind: type[Value], x: Any) -> Any:
    if not isinstance(x, kind):
        raise UnreadableError(f"no {kind.__name__.lower()} where one belongs")
    return x


def _buckets(table: Any, max_distance: Any, bidirectional: Any, offset: Any) -> Bias:
    if not isinstance(table, Tensor) or table.ndim != 2 or len(table) > BUCKETS:
        raise UnreadableError(f"relative_buckets without a table of at most {BUCKETS:,} rows")
    return relative_buckets(
        table, max_distance=max_distance, bidirectional=bool(bidirectional), offset=offset
    )


def _segments(*ids: Any) -> Mask:
    if any(not (isinstance(x, Tensor) and x.ndim) for x in ids if x is not None):
        raise UnreadableError("segments without a tensor of ids (…, t)")
    return masks.segments(*ids)


def _in_blocks(weights: Any, rows: Any, columns: Any, t: Any, s: Any) -> Bias:
    t, s = whole_number(t, "t", 0), whole_number(s, "s", 0)
    if not isinstance(weights, Tensor) or weights.ndim < 3 or not weights.is_floating_point():
        raise UnreadableError("blocks without weights (…, n, u, w)")
    for at, size, most in ((rows, weights.shape[-2], t), (columns, weights.shape[-1], s)):
        places = integers(at, "places") if isinstance(at, Tensor) else None
        if places is None or places.shape != (weights.shape[-3], size):
            raise UnreadableError("blocks without the places of their rows and columns")
        if places.numel() and not -1 <= int(places.amin()) <= int(places.amax()) < most:
            raise UnreadableError("a place that is not in the matrix")
    return InBlocks(weights, rows, columns, t, s)


def _side_by_side(inner: Any, beams: Any) -> Mask:
    return SideBySide(_a(Mask, inner), whole_number(beams, "beams", 1))


def _kept(kind: Callable[..., Value], of: type[Value]) -> Callable[..., Value]:
    """A maker of a rule over the keys that a cache kept, all rows the same or each its own."""

    def make(inner: Any, sinks: Any, gap: Any, *steps: Any) -> Value:
        sinks = whole_number(sinks, "sinks", 0)
        if not isinstance(gap, Tensor):
            return kind(_a(of, inner), sinks, whole_number(gap, "gap", 0))
        (whole,) = steps
        return kind(_a(of, inner), sinks, integers(gap, "gap"), whole_number(whole, "steps", 1))

    return make


def _energies(energy: Any) -> Score:
    if not isinstance(energy, Tensor) or energy.ndim != 1 or not energy.is_floating_point():
        raise UnreadableError("energies that are no floating-point tensor (a,)")
    return Energies(energy)


_BOTH, _EITHER, _NOT = (
    type(m)
    for m in (masks.causal() & masks.causal(), masks.causal() | masks.causal(), ~masks.causal())
)
_SUM = type(alibi() + alibi())

_KINDS: dict[str, _Kind] = {
    "causal": (type(masks.causal()), masks.causal),
    "window": (type(masks.window(0, 0)), masks.window),
    "dilated": (type(masks.dilated(1)), masks.dilated),
    "prefix": (type(masks.prefix(0)), masks.prefix),
    "padding": (Padding, lambda lengths: Padding(integers(lengths, "lengths"))),
    "real keys": (RealKeys, masks.padding),
    "segments": (type(masks.segments(torch.ones(1, dtype=torch.long))), _segments),
    "grid": (type(masks.grid(1, 1, 0)), masks.grid),
    "allowed": (Allowed, masks.allowed),
    "both": (_BOTH, _pair(_BOTH, Mask)),
    "either": (_EITHER, _pair(_EITHER, Mask)),
    "not": (_NOT, lambda mask: ~_a(Mask, mask)),
    "written": (Written, lambda lengths: Written(integers(lengths, "lengths"))),
    "kept mask": (KeptMask, _kept(KeptMask, Mask)),
    "side by side": (SideBySide, _side_by_side),
    "alibi": (type(alibi()), alibi),
    "buckets": (type(relative_buckets(torch.zeros(4, 1), max_distance=9)), _buckets),
    "given": (TensorBias, TensorBias),
    "in blocks": (InBlocks, _in_blocks),
    "sum": (_SUM, _pair(_SUM, Bias)),
    "kept bias": (KeptBias, _kept(KeptBias, Bias)),
    "dot": (Dot, lambda: Dot()),
    "general": (General, General),
    "cosine": (Cosine, lambda: Cosine()),
    "additive": (Additive, Additive),
    "energies": (Energies, _energies),
}
_NAMES = {kind: name for name, (kind, _) in _KINDS.items()}


def form(x: Value, g: Geometry, tensor: Callable[[Tensor], Any]) -> list[Any] | None:
    """A mask, bias or score of the matrix ``g`` as plain data; ``tensor`` stores and names tensors.

    Masks and biases without a name here (of the user's own classes) are written out as tensors;
    raises `MemoryRefused` if one takes more than 1 GiB. None for a score without a name.
    """
    if _named(x):
        return _form(x, tensor)
    rows, cols = (torch.arange(n, device=g.device) for n in (g.t, g.s))
    if isinstance(x, Mask):
        _check_size(x, g, x.allow(g, rows[:0], cols[:1]))
        return _form(masks.allowed(x.dense(g)), tensor)
    if isinstance(x, Bias):
        _check_size(x, g, x.tile(g, rows[:1], cols[:1], torch.float32))
        return _form(TensorBias(x.tile(g, rows, cols, torch.float32)), tensor)
    return None


def value(form: Any, tensors: Tensors, kind: type[Value]) -> Any:
    """Return the value of a kind (`Mask`, `Bias` or `Score`) that ``form`` stands for.

    Raises `UnreadableError` for anything that the functions above would not have written.
    """
    parts = [form]
    for part in parts:  # which grows meanwhile
        parts += [x for x in part if isinstance(x, list)] if isinstance(part, list) else []
        if len(parts) > NODES:
            raise UnreadableError(f"a mask, bias or score of more than {NODES} others")
    try:
        return _a(kind, _value(form, tensors, DEPTH))
    except IntentlyError as error:
        raise UnreadableError(str(error)) from None


def _named(x: Value) -> bool:
    """Whether every part of a value has a name, so that the value can be read again."""
    level, nodes = [x], 0
    for _ in range(DEPTH + 1):
        nodes += len(level)
        if not level or nodes > NODES or any(type(one) not in _NAMES for one in level):
            return not level and nodes <= NODES
        level = [part for one in level for part in one.parts if isinstance(part, Value)]
    return False


def _form(x: Value, tensor: Callable[[Tensor], Any]) -> list[Any]:
    return [
        _NAMES[type(x)],
        *[
            tensor(part)
            if isinstance(part, Tensor)
            else _form(part, tensor)
            if isinstance(part, Value)
            else part
            for part in x.parts
        ],
    ]


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


def _value(form: Any, tensors: Tensors, depth: int) -> Value:
    if not isinstance(form, list) or not form or not isinstance(form[0], str):
        raise UnreadableError("no name of a mask, bias or score where one belongs")
    if form[0] not in _KINDS:
        raise UnreadableError(f"a kind of mask, bias or score that is not known, {form[0][:40]!r}")
    if not depth:
        raise UnreadableError(f"masks more than {DEPTH} deep in each other")
    parts = [_part(x, tensors, depth - 1) for x in form[1:]]
    try:
        return inspect.unwrap(_KINDS[form[0]][1])(*parts)
    except IntentlyError:
        raise
    except (TypeError, AttributeError, ValueError, RuntimeError, IndexError):
        raise UnreadableError(f"{form[0]!r} made of other parts than it has") from None


def _part(x: Any, tensors: Tensors, depth: int) -> Any:
    if isinstance(x, list):
        return _value(x, tensors, depth)
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
