"""Measure the weights of an attention from outside, and take them apart.

Any attention is linear in its values: outputs for random values, minus those for none, give the
weights W (b, h, t, s) as the solution of a linear system, for each way in which heads may be laid
out; the residual says which way it is. Weights for several random queries and keys then give, by
regression of log W on q·k, the scale and what was added to the scores, and by their sums the axis
over which they were normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from intently.checker.computing.reading import EXCHANGED, SPLITS, Reading, View, joined
from intently.checker.computing.rotations import Rotation, searched
from intently.checker.precision import EXACT, ROUGH, Precision

Run = Callable[[Mapping[int, Tensor]], Tensor]
"""From the values of sources to the output of the core, as it lies in memory."""

DRAWS = 6
"""Pairs of random queries and keys."""
LARGE = 100.0
"""By what queries and keys are multiplied, so that scores of a usual scale reach ±10,000."""


@dataclass(frozen=True)
class Values:
    """How values reach the output: the reading, the order of the output, how heads share."""

    reading: Reading
    merged: str
    tiled: bool
    residual: float
    shared: bool = False
    """Whether keys and values are one tensor, without projections of their own."""
    rotation: Rotation | None = None
    """How values are rotated, by the positions of their keys."""
    shape: tuple[int, ...] = ()
    """The shape of the output."""
    keys_tiled: bool | None = None
    """Whether keys are tiled, where values are not, or repeated, where values are tiled."""


@dataclass(frozen=True)
class Weights:
    """W (n, b, h, t, s) for n draws of q (n, b, h, t, d) and k (n, b, h, s, d)."""

    w: Tensor
    q: Tensor
    k: Tensor
    values: Values
    precision: Precision = EXACT
    calls: tuple[int, ...] = ()
    """How many queries each call brings, where a cache joins the keys of several."""
    large: tuple[Tensor, Tensor, Tensor] | None = None
    """W, q and k of a draw with large scores; rows of W are NaN where outputs are not finite."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of a core: batch, queries, keys; ``order`` is that of its rows in memory."""

    b: int
    t: int
    s: int
    order: str = "bthd"


def measured(
    run: Run,
    sources: Mapping[int, Tensor],
    candidates: Iterable[Reading],
    size: Geometry,
    precision: Precision = EXACT,
    turned: bool = False,
) -> Weights | None:
    """The weights under the reading that explains the outputs best; None if none does.

    Values may be ``turned``: rotated by the positions of their keys.
    """
    best: tuple[float, Values] | None = None
    draw = torch.Generator().manual_seed(5)
    for reading in candidates:
        found = _values(run, sources, reading, size, draw, precision.close, turned)
        if found is not None and (best is None or found.residual < best[0]):
            best = found.residual, found
        if best is not None and best[0] < precision.close:
            break
    if best is None or best[0] > 100 * precision.close:
        return None
    values = best[1]
    every = [_draw(run, sources, values, size, draw) for _ in range(DRAWS)]
    w, q, k = (torch.stack(x) for x in zip(*every))
    large = None
    if precision.same <= ROUGH.same:
        with suppress(Exception):  # whatever the code does with large numbers
            large = _draw(run, sources, values, size, draw, LARGE)
    return Weights(w.double(), q.double(), k.double(), values, precision, large=large)


def _values(
    run: Run,
    sources: Mapping[int, Tensor],
    reading: Reading,
    size: Geometry,
    draw: torch.Generator,
    close: float,
    turned: bool,
) -> Values | None:
    """The layout of values and outputs that explains the outputs with the smallest residual."""
    r, (b, t, s) = reading, (size.b, size.t, size.s)
    if not r.v.fits(sources[r.v.source], b, r.key_heads, s, r.value_width):
        return None
    filled = {i: random_like(x, draw) for i, x in sources.items()}
    given, made = _responses(run, filled, r.v, (b, r.key_heads, s, r.value_width), draw, s)
    if not all(bool(y.isfinite().all()) for y in made) or not any(bool(y.any()) for y in made):
        return None
    best: Values | None = None
    orders = [size.order, *(x for x in SPLITS if x != size.order)]
    plain = r.v.part is None and r.name != "heads apart"
    ends = [*orders, EXCHANGED] if r.name == "heads apart" else orders
    for split, merged in product(orders if plain else [r.v.order], ends):
        view = replace(r.v, order=split)
        sizes = (b, r.key_heads, s, r.value_width)
        v = [view.read(r.v.write(sources[r.v.source] * 0, x), *sizes) for x in given]
        z = [joined(y, merged, b, r.heads, t, r.value_width) for y in made]
        if any(y is None for y in z):
            continue
        for tiled in (False, True) if r.key_heads not in (1, r.heads) else (False,):
            _, residual = _solved([shared(x, r.heads, tiled) for x in v], z)
            if best is None or residual < best.residual / 10:
                shape = tuple(made[0].shape)
                reading = replace(r, views=(r.q, r.k, view))
                best = Values(reading, merged, tiled, residual, shape=shape)
            if best.residual < close:
                return best
    z = [joined(y, size.order, b, r.heads, t, r.value_width) for y in made]
    if turned and plain and r.value_width % 2 == 0 and all(x is not None for x in z):
        for tiled in (False, True) if r.key_heads not in (1, r.heads) else (False,):
            v = [shared(x, r.heads, tiled) for x in given]
            rotation = _unturned(v, z, close)
            at = torch.arange(s, dtype=v[0].dtype)
            _, residual = _solved([rotation.turned(x, at) for x in v], z)
            if residual < close:
                return Values(r, size.order, tiled, residual, rotation=rotation)
    return best


def _unturned(v: list[Tensor], z: list[Tensor | None], close: float) -> Rotation:
    """The rotation of values by their positions that explains the outputs of one head best."""
    v, z = [x[:1, :1] for x in v], [x[:1, :1] for x in z if x is not None]
    d, at = v[0].shape[-1], torch.arange(v[0].shape[-2], dtype=v[0].dtype)
    best = Rotation(1.0, d, "halves"), torch.inf
    for rotation in (Rotation(1.0, n, p) for n in (d, d // 2) for p in ("halves", "pairs")):
        if rotation.width % 2:
            continue

        def off(base: float, rotation: Rotation = rotation) -> float:
            way = replace(rotation, base=base)
            return _solved([way.turned(x, at) for x in v], list(z))[1]

        base, residual = searched(off, close)
        if residual < best[1]:
            best = replace(rotation, base=base), residual
        if residual < close:
            break
    return best[0]


def _draw(
    run: Run,
    sources: Mapping[int, Tensor],
    values: Values,
    size: Geometry,
    draw: torch.Generator,
    gain: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of new random queries and keys, with both, as they are read plainly."""
    r, (b, t, s) = values.reading, (size.b, size.t, size.s)
    scale = gain * r.width**-0.25
    filled = {i: random_like(x, draw) * scale for i, x in sources.items()}
    sizes = (b, r.key_heads, s, r.value_width)
    given, made = _responses(run, filled, r.v, sizes, draw, s)
    z = [joined(y, values.merged, b, r.heads, t, r.value_width) for y in made]
    v = [shared(x, r.heads, values.tiled) for x in given]
    if values.rotation is not None:
        at = torch.arange(s, dtype=v[0].dtype)
        v = [values.rotation.turned(x, at) for x in v]
    w, _ = _solved(v, z)
    q = r.q.read(filled[r.q.source], b, r.heads, t, r.width)
    k = r.k.read(filled[r.k.source], b, r.key_heads, s, r.width)
    return w, q, shared(k, r.heads, values.tiled)


def random_like(x: Tensor, draw: torch.Generator) -> Tensor:
    """Normal numbers; positive ones in place of features that are positive."""
    made = torch.randn(x.shape, generator=draw, dtype=x.dtype)
    return made.abs() + 0.1 if bool((x >= 0).all()) and bool((x > 0).any()) else made


def _responses(
    run: Run,
    filled: Mapping[int, Tensor],
    view: View,
    sizes: tuple[int, int, int, int],
    draw: torch.Generator,
    s: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """Random values, and what each adds to the output: as many as the linear system needs.

    Numbers that are NaN whatever the values are those of queries that no key has weight for: 0.
    """
    e = sizes[-1]
    n = -(-(2 * s + 4) // e)
    raw = filled[view.source]
    none = run({**filled, view.source: view.write(raw, torch.zeros(sizes, dtype=raw.dtype))})
    given = [torch.randn(sizes, generator=draw, dtype=raw.dtype) for _ in range(n)]
    made = [run({**filled, view.source: view.write(raw, x)}) - none for x in given]
    empty = none.isnan()
    return given, [y.masked_fill(empty & y.isnan(), 0.0) for y in made]


def shared(x: Tensor, heads: int, tiled: bool) -> Tensor:
    """Keys or values (b, g, s, d) for all heads: consecutive heads share, or tiled."""
    g = x.shape[1]
    if g == heads:
        return x
    return x.repeat(1, heads // g, 1, 1) if tiled else x.repeat_interleave(heads // g, 1)


def with_keys_shared_otherwise(weights: Weights) -> Weights | None:
    """The same weights, with keys tiled where they were repeated, or the other way."""
    r, tiled = weights.values.reading, weights.values.tiled
    n = r.heads // r.key_heads
    if 1 in (n, r.key_heads):
        return None
    k = weights.k[:, :, : r.key_heads] if tiled else weights.k[:, :, ::n]
    k = k.repeat_interleave(n, 2) if tiled else k.repeat(1, 1, n, 1, 1)
    values = replace(weights.values, keys_tiled=not tiled)
    return replace(weights, k=k, values=values, large=None)


def _solved(v: list[Tensor], z: list[Tensor | None]) -> tuple[Tensor, float]:
    """W (b, h, t, s) with W v = z, by least squares, and the relative residual."""
    right = torch.cat(v, -1).double()
    left = torch.cat([x for x in z if x is not None], -1).double()
    finite = left.isfinite()
    left = left.masked_fill(~finite, 0.0)
    w = torch.linalg.lstsq(right.mT, left.mT).solution.mT
    off = (w @ right - left).norm() / left.norm().clamp(min=1e-30)
    return w.masked_fill(~finite.all(-1, keepdim=True), torch.nan), float(off)


@dataclass(frozen=True)
class Operands:
    """What an attention reads and gives in the example: q, k, v and the output, heads apart.

    ``sources`` are the numbers of the operations that make q, k and v.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    made: Tensor
    sources: tuple[int, int, int]


def operands_of(
    run: Callable[[Mapping[int, Tensor]], Tensor],
    sources: Mapping[int, Tensor],
    weights: Weights,
    size: Geometry,
    ids: tuple[int, int, int],
) -> Operands | None:
    """What the attention reads and gives in the example, in the layout that was measured."""
    r, b = weights.values.reading, size.b
    made = joined(run(sources), weights.values.merged, b, r.heads, size.t, r.value_width)
    if made is None:
        return None
    q = r.q.read(sources[r.q.source], b, r.heads, size.t, r.width)
    k = r.k.read(sources[r.k.source], b, r.key_heads, size.s, r.width)
    v = r.v.read(sources[r.v.source], b, r.key_heads, size.s, r.value_width)
    return Operands(q, k, v, made, ids)
