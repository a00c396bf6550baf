"""Take measured weights apart: which score, which scale, what was added, over which axis they sum.

log W = σ · x(q, k) + B − normaliser, where x is a kind of score, B (b, h, t, s) does not depend on
queries and keys, and the normaliser is the same along the axis of the softmax. σ and B are fitted
over several draws of q and k; the residual tells which x it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intently.checker.computing.measuring import Weights
from intently.checker.computing.reading import SPLITS
from intently.checker.computing.rotations import BASES, Rotation, searched, unusual
from intently.checker.computing.tracing import Found
from intently.checker.precision import EXACT, Precision

Axis = str
AXES: dict[Axis, tuple[int, ...]] = {
    "keys": (-1,),
    "queries": (-2,),
    "heads": (-3,),
    "batch": (-4,),
    "queries and keys": (-2, -1),
    "heads and keys": (-3, -1),
    "batch and queries": (-4, -2),
    "batch and heads": (-4, -3),
}
"""The axes along which a softmax may run."""

EPSILON = 1e-4
"""What code adds to a sum before it divides by it may take this much of a row."""
UNKNOWN = 0.05
"""The relative residual from which no known score explains the weights."""
Score = Callable[[Tensor, Tensor], Tensor]


def dot(q: Tensor, k: Tensor) -> Tensor:
    """The products q kᵀ."""
    return q @ k.mT


@dataclass(frozen=True)
class Scores:
    """What weights are made of.

    ``seen`` (b, h, t, s) are the keys with weight; ``scale`` (h,); ``added`` (b, h, t, s) is B, up
    to a number a row, NaN where hidden; ``axis`` is that along which weights sum to 1, ``sums``
    what they sum to along keys; ``split`` the order in which q and k are read.
    """

    kind: str
    split: str
    scale: Tensor
    added: Tensor
    seen: Tensor
    axis: Axis
    sums: Tensor
    residual: float
    softcap: float | None = None
    after: bool = False
    extra: Tensor | None = None
    """Sinks (h,): what each head adds to every sum of exp."""
    factor: float = 1.0
    """By what all weights are multiplied after the softmax."""
    precision: Precision = EXACT
    score: Score = dot

    @property
    def known(self) -> bool:
        """Whether the score is one of those that were tried, and explains the weights."""
        return self.residual < UNKNOWN


def apart(
    weights: Weights, kinds: dict[str, Score], found: Found, only: Tensor | None = None
) -> Scores:
    """The parts of measured weights, by the kind of score with the smallest residual.

    Softcaps are tried if ``found`` shows a tanh, rotations of any base and mistaken ones if it
    shows that queries or keys are multiplied by a table. Weights of keys other than ``only``
    (b, h, t, s) are left aside.
    """
    w = weights.w
    close = weights.precision.close
    seen = (w.abs() > weights.precision.faded * w.abs().amax()).any(0)
    axis = _axis(w, seen, close)
    if axis == "keys" and not bool((seen.sum(-1) > 1).any()):  # one key a row tells no scale
        d, none = weights.values.reading.width, torch.zeros_like(w[0]).masked_fill(~seen, torch.nan)
        usual = torch.full((w.shape[2],), d**-0.5, dtype=w.dtype)
        return Scores(
            "dot", "", usual, none, seen, axis, w.sum(-1), 0.0, precision=weights.precision
        )
    if only is not None:
        seen = seen & only
    best: Scores | None = None
    for split, q, k, names, caps in _rounds(weights, kinds, found.capped):
        for name in names:
            x = kinds[name](q, k)
            scale, added, residual, cap = _fitted(w, x, seen, axis, caps)
            if best is None or residual < best.residual / 10:
                best = Scores(
                    *(name, split, scale, added, seen, axis, w.sum(-1), residual, cap),
                    precision=weights.precision,
                    score=kinds[name],
                )
            if best.residual < close:
                return _normalised(best, w, x)
    assert best is not None
    for rotation in _rotated(weights, seen, axis) if found.turned else ():
        name, x = rotation.name(weights.q.shape[-1]), rotation.score(weights.q, weights.k)
        scale, added, residual, cap = _fitted(w, x, seen, axis, False)
        if residual < best.residual / 10:
            best = Scores(
                *(name, "", scale, added, seen, axis, w.sum(-1), residual, cap),
                precision=weights.precision,
                score=rotation.score,
            )
        if best.residual < close:
            return _normalised(best, w, x)
    return best


def _rounds(
    weights: Weights, kinds: dict[str, Score], capped: bool
) -> Iterator[tuple[str, Tensor, Tensor, list[str], bool]]:
    """What to try in turn: the order of heads, queries, keys, kinds of score, whether capped."""
    others = [n for n in kinds if n != "dot"]
    for caps in (False, True) if capped else (False,):
        yield "", weights.q, weights.k, ["dot"], caps
        yield "", weights.q, weights.k, others, caps
        if not caps:
            for split, q, k in _splits(weights):
                yield split, q, k, ["dot", *others] if split == "btdh" else ["dot"], False


def _rotated(weights: Weights, seen: Tensor, axis: Axis) -> Iterator[Rotation]:
    """Rotations of any base, then rotations with a mistake in them."""
    q, k = weights.q, weights.k
    d = q.shape[-1]
    if d % 2:
        return
    q, k, w = q[:3, :1], k[:3, :1], weights.w[:3, :1]  # a few tell as much as all
    if axis == "batch":
        return

    def off(rotation: Rotation) -> float:
        return _fitted(w, rotation.score(q, k), seen[:1], axis, False)[2]

    ways = [Rotation(0.0, d, pairs) for pairs in ("halves", "pairs")]
    r = weights.values.reading
    mistaken = [replace(x, shared=r.heads // r.key_heads) for x in unusual(0.0, d)]
    near = [(off(replace(way, base=base)), way) for way in mistaken for base in (BASES[0], 50.0)]
    close = [way for _, way in sorted(near, key=lambda x: x[0])[:4]]
    for way in (*ways, *dict.fromkeys(close)):
        base, _ = searched(lambda x, way=way: off(replace(way, base=x)), weights.precision.close)
        for rounded in dict.fromkeys((float(f"{base:.3g}"), base)):
            yield replace(way, base=rounded)


def _splits(weights: Weights) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Queries and keys as if heads were split by a reshape: both, keys only, queries only."""
    q, k, views = weights.q, weights.k, weights.values.reading.views
    plain = [view.order.replace("x", "") for view in views[:2]]
    for order in SPLITS:
        if order not in plain:
            a, b = (_as_if(x, own, order) for x, own in zip((q, k), plain))
            yield from ((order, a, b), (order, q, b), (order, a, k))


def _as_if(x: Tensor, own: str, order: str) -> Tensor:
    """Heads (n, b, h, t, d) that lie in memory in their ``own`` order, read in another one."""
    n, b, h, t, d = x.shape
    known = {"b": b, "h": h, "t": t, "d": d}
    flat = x.permute(0, *(1 + "bhtd".index(c) for c in own))
    flat = flat.reshape(n, *(known[c] for c in order))
    return flat.permute(0, *(1 + order.index(c) for c in "bhtd"))


def _axis(w: Tensor, seen: Tensor, close: float) -> Axis:
    """The axis along which weights sum to 1, or to nothing where nothing is seen."""
    for name, axis in AXES.items():
        if name != "keys" and any(w.shape[i] == 1 for i in axis if i != -2 or len(axis) > 1):
            continue
        sums = w.sum(axis)
        some = seen.any(axis).expand_as(sums)
        if bool(((sums - 1).abs()[some] < max(close, EPSILON)).all()):
            return name
    return "none"


def _fitted(
    w: Tensor, x: Tensor, seen: Tensor, axis: Axis, capped: bool
) -> tuple[Tensor, Tensor, float, float | None]:
    """Scale (h,), what was added (b, h, t, s), the relative residual, and the softcap."""
    along = AXES.get(axis, (-1,))
    y = w.clamp(min=1e-300).log()
    if capped:
        return _fitted_capped(y, x, seen, along)
    y, x = _centred(y, seen, along), _centred(x, seen, along)
    dy, dx = y - y.mean(0), x - x.mean(0)
    scale = (dx * dy).sum((0, 1, 3, 4)) / (dx * dx).sum((0, 1, 3, 4)).clamp(min=1e-30)
    off = dy - scale[:, None, None] * dx
    residual = float(off.norm() / dy.norm().clamp(min=1e-30))
    added = (y - scale[:, None, None] * x).mean(0)
    return scale, added.masked_fill(~seen, torch.nan), residual, None


def _fitted_capped(
    y: Tensor, x: Tensor, seen: Tensor, along: tuple[int, ...]
) -> tuple[Tensor, Tensor, float, float | None]:
    """The same with cap · tanh(σ x / cap): σ and the cap by Gauss–Newton from several starts."""
    y = _centred(y, seen, along)
    dy = y - y.mean(0)

    def apart_at(scale: float, cap: float) -> Tensor:
        z = _centred(cap * torch.tanh(scale * x / cap), seen, along)
        return (dy - (z - z.mean(0))).flatten()

    dx = _centred(x, seen, along)
    dx = dx - dx.mean(0)
    plain = float((dx * dy).sum() / (dx * dx).sum().clamp(min=1e-30))
    best = (torch.inf, 1.0, 1.0)
    for start in (50.0, 10.0, 2.0):
        at = torch.tensor([max(plain, 1e-3), start], dtype=x.dtype).log()
        for _ in range(25):
            scale, cap = at.exp().tolist()
            off = apart_at(scale, cap)
            size = float(off.norm() / dy.norm().clamp(min=1e-30))
            if size < best[0]:
                best = (size, scale, cap)
            if size < EXACT.close / 100:
                break
            step = 1e-5
            moved = [apart_at(scale * (1 + step), cap), apart_at(scale, cap * (1 + step))]
            slope = torch.stack([(m - off) / step for m in moved], -1)
            at = at - torch.linalg.lstsq(slope, off[:, None]).solution[:, 0].clamp(-1, 1)
        if best[0] < EXACT.close:
            break
    residual, scale, cap = best
    added = (y - _centred(cap * torch.tanh(scale * x / cap), seen, along)).mean(0)
    every = torch.full((x.shape[2],), scale, dtype=x.dtype)
    return every, added.masked_fill(~seen, torch.nan), residual, float(f"{cap:.6g}")


def _centred(x: Tensor, seen: Tensor, along: tuple[int, ...]) -> Tensor:
    """X minus its mean over what is seen along an axis; 0 where hidden."""
    x = x.masked_fill(~seen, 0.0)
    n = seen.sum(along, keepdim=True).clamp(min=1)
    return (x - x.sum(along, keepdim=True) / n).masked_fill(~seen, 0.0)


def _normalised(found: Scores, w: Tensor, x: Tensor) -> Scores:
    """Where weights do not sum to 1: whether hidden keys took part, a sink, or a factor."""
    if found.axis != "none":
        return found
    z = found.scale[:, None, None] * x
    if found.softcap is not None:
        z = found.softcap * torch.tanh(z / found.softcap)
    z = z + found.added.nan_to_num(0.0)
    inside = z.masked_fill(~found.seen, -torch.inf).logsumexp(-1)
    missing = (w.clamp(min=1e-300).log() - z).masked_fill(~found.seen, torch.nan).nanmean(-1)
    whole = z.logsumexp(-1)  # what was added is not known where it is hidden: taken as nothing
    some = found.seen.any(-1)
    spread = (missing + whole)[:, some]
    little = 10 * found.precision.added
    hides = not bool(found.seen.all())
    if hides and bool((spread - spread[0]).abs().max() < little):
        return replace(found, after=True)
    sinks, factor, off = _sunk(inside, -missing, some)
    if off > little or bool((factor.log().abs() > 8).any()):
        sinks = _sunk_by_row(inside, -missing, some, 100 * little)
        return found if sinks is None else replace(found, extra=sinks)
    plain = bool((factor - 1).abs().max() < little)
    return replace(
        found,
        extra=None if bool((sinks < little / 10).all()) else sinks,
        factor=1.0 if plain else float(factor.mean()),
    )


def _sunk_by_row(inside: Tensor, taken: Tensor, some: Tensor, little: float) -> Tensor | None:
    """Sinks (h,) beside a bias that is known up to a number a row; None if there is none.

    In each row exp(taken) = exp(inside) + sink · a over the draws, where the bias makes a; the last
    row stands for all.
    """
    x, y = inside.double().exp(), taken.double().exp()
    sink = (y - x).mean(0)
    off = ((y - x - sink) / y).abs().amax(0)
    if float(off[some].max()) > little or bool((sink[some] < little).any()):
        return None
    return sink[-1, :, -1]


def _sunk(inside: Tensor, taken: Tensor, some: Tensor) -> tuple[Tensor, Tensor, float]:
    """Sinks (h,) and factors (h,) with exp(taken) = (exp(inside) + sink) / factor, and the error.

    ``inside`` and ``taken`` are (n, b, h, t): the log of the sums that were and should have been.
    """
    h = inside.shape[2]
    sinks, factors, worst = torch.zeros(h), torch.ones(h), 0.0
    for i in range(h):
        keep = some[:, i]
        x, y = inside[:, :, i][:, keep].flatten(), taken[:, :, i][:, keep].flatten()
        if not len(x):
            continue
        x, y = x.double().exp(), y.double().exp()
        design = torch.stack([x, torch.ones_like(x)], -1) / y[:, None]  # relative errors
        right = torch.ones(len(x), 1, dtype=torch.double)
        slope, sink = torch.linalg.lstsq(design, right).solution[:, 0]
        worst = max(worst, float((slope * x + sink - y).div(y).abs().max()))
        factors[i], sinks[i] = 1 / slope, (sink / slope).clamp(min=0.0)
    return sinks, factors, worst
