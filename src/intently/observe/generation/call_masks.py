"""The masks and biases of joined calls as one: a value if they agree, else a dense tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.biases import TensorBias, as_bias
from intently.core.masks import Geometry, Mask, allowed, causal, is_plain_causal
from intently.foundation.values import Value
from intently.observe.recording.blocks import InBlocks
from intently.observe.storage.stores import KeptSpec
from intently.observe.watching.call import AttentionSpec, Call, operand
from intently.observe.watching.mask_inference import recognise, simplified


@dataclass(frozen=True)
class Piece:
    """The t rows of one call, whose matrix ``geometry`` begins at column ``low`` of the joined one.

    Its rows continue the rows ``parents`` of the call before; without ``parents``, the same ones.
    If its weights are ``given``, they are its bias, and its queries are zero.
    """

    t: int
    low: int
    how: KeptSpec
    geometry: Geometry
    parents: Tensor | None = None
    given: bool = False


def of_queries(pieces: Sequence[Piece]) -> AttentionSpec:
    """The arguments of the last call that has queries; of the last one if none has."""
    return next((x for x in reversed(pieces) if not x.given), pieces[-1]).how.get()


def joined_how(pieces: Sequence[Piece]) -> AttentionSpec:
    """Return the arguments of `attend` beside the queries and keys of all calls."""
    hows = [piece.how.get() for piece in pieces]
    if len(pieces) == 1:
        return hows[0]
    if pieces[-1].given:
        tiles = [how.weights.tensor for how in hows if how.weights is not None]
        return replace(hows[-1], weights=TensorBias(_written(pieces, tiles)))
    mask = _plain(pieces, hows)
    if mask is None:
        whole = _whole(pieces)
        seen = _written(pieces, [_allowed(p, how) for p, how in zip(pieces, hows)])
        found = recognise(seen, whole)
        mask = allowed(seen) if found is None else found.mask(whole)
    if all(_alike(how.bias, hows[0].bias) and type(how.bias) is not TensorBias for how in hows):
        bias = hows[0].bias
    else:
        bias = as_bias(_written(pieces, [_added(p, how) for p, how in zip(pieces, hows)]))
    return replace(of_queries(pieces), mask=mask, bias=bias)


def looked_at(how: AttentionSpec, g: Geometry) -> Tensor:
    """The entries (…, t, s) that a call may attend; none in rows that see nothing.

    The plain formula spreads such rows (of padding) over all keys if the lowest number of a dtype
    stands for −∞.
    """
    if how.weights is not None:
        return how.weights.tensor != 0
    piece = Piece(g.t, 0, KeptSpec(how), g)
    added = _added(piece, how)
    seen = _allowed(piece, how) & (added > torch.finfo(added.dtype).min / 2)
    return seen.expand(*seen.shape[:-2], g.t, g.s)


def first_part(how: AttentionSpec, g: Geometry, t: int, s: int) -> tuple[AttentionSpec, Geometry]:
    """The arguments of a call for its first t queries and s keys."""
    part, mask, bias = g._replace(t=t, s=s), how.mask, how.bias
    if mask is not None:
        seen = mask.dense(g)
        mask = allowed(seen.expand(*seen.shape[:-2], g.t, g.s)[..., :t, :s])
    if bias is not None and (type(bias) is TensorBias or g.s - s != g.t - t):
        rows, columns = (torch.arange(n, device=g.device) for n in (t, s))
        bias = as_bias(bias.tile(g, rows, columns))
    weights = None if how.weights is None else TensorBias(how.weights.tensor[..., :t, :s])
    return simplified(replace(how, mask=mask, bias=bias, weights=weights), part), part


def trimmed(how: AttentionSpec, k: Tensor, g: Geometry) -> tuple[AttentionSpec, Tensor, Geometry]:
    """A call without the last columns of a static cache: not written yet, and seen by no query.

    Unwritten keys are zeros. Keys of padding mostly are not; where they are, queries see further
    than a cache lets them, because the last keys are not their own. Queries of padding that see
    nothing, which the plain formula spreads over all columns, are spread over the remaining ones.
    """
    known = how.mask is how.bias is how.weights is None or isinstance(how.weights, InBlocks)
    if g.s <= g.t or known or bool(k[..., -1:, :].any()):
        return how, k, g
    looks = looked_at(how, g).reshape(-1, g.t, g.s).any(0)
    columns = looks.any(0).nonzero()
    end = int(columns.max()) + 1 if len(columns) else g.s
    written = end == g.s or bool(k[..., end:, :].any())
    if written or (end != g.t and bool(looks.triu(end - g.t + 1).any())):
        return how, k, g
    how, g = first_part(how, g, g.t, end)
    return how, k[..., :end, :], g


def written(k: Tensor, t: int) -> Tensor:
    """The keys without those of a static cache that are not written yet, though queries see them.

    These are zeros, and at least the t last ones that are not belong to the queries.
    """
    if k.shape[-2] <= t or bool(k[..., -1:, :].any()):
        return k
    columns = k.reshape(-1, *k.shape[-2:]).any(-1).any(0).nonzero()
    end = int(columns.max()) + 1 if len(columns) else 0
    return k[..., :end, :] if end >= t else k


def one_by_one(call: Call, how: AttentionSpec, g: Geometry) -> tuple[Call, AttentionSpec, Geometry]:
    """Split m queries (b, h, m, d) that share their keys into rows (b·m, h, 1, d) of their own.

    This is how the beams of our decoders query an encoder: row i·m + j is query j of row i.
    """
    b, m = g.lead[0], g.t
    apart = g._replace(lead=(b * m, *g.lead[1:]), t=1)

    def row(x: Tensor) -> Tensor:
        return x.movedim(-2, 1).flatten(0, 1).unsqueeze(-2)

    assert isinstance(call.y, Tensor)
    k, v = (operand(x).repeat_interleave(m, 0) for x in (call.k, call.v))
    mask = how.mask
    if mask is not None:
        seen = mask.dense(g)
        seen = seen.reshape((1,) * (len(g.lead) + 2 - seen.ndim) + tuple(seen.shape))
        mask = allowed(row(seen.expand(b, *seen.shape[1:-2], m, g.s)))
    how = simplified(replace(how, mask=mask), apart)
    made = replace(call, q=row(operand(call.q)), k=k, v=v, y=row(call.y), how=how)
    return made, how, apart


def _plain(pieces: Sequence[Piece], hows: Sequence[AttentionSpec]) -> Mask | None:
    """The causal mask of a first call that single steps follow which see everything before."""
    mask = hows[0].mask
    if mask is None and pieces[0].t == pieces[0].geometry.s == 1:
        mask = causal()
    steps = (p.t == 1 and not p.low and how.mask is None for p, how in zip(pieces[1:], hows[1:]))
    grown = pieces[-1].geometry.s > pieces[0].geometry.s
    return mask if mask is not None and grown and is_plain_causal(mask) and all(steps) else None


def _whole(pieces: Sequence[Piece]) -> Geometry:
    """The geometry of all calls."""
    t, s = sum(piece.t for piece in pieces), max(x.low + x.geometry.s for x in pieces)
    return pieces[-1].geometry._replace(t=t, s=s)


def _allowed(piece: Piece, how: AttentionSpec) -> Tensor:
    """The mask of one call, broadcastable to (…, t, s)."""
    g = piece.geometry
    if how.mask is None:
        return torch.ones(1, 1, dtype=torch.bool, device=g.device)
    return how.mask.dense(g)


def _added(piece: Piece, how: AttentionSpec) -> Tensor:
    """The bias of one call, broadcastable to (…, t, s)."""
    g = piece.geometry
    if how.bias is None:
        return torch.zeros(1, 1, device=g.device)
    rows, cols = (torch.arange(n, device=g.device) for n in (g.t, g.s))
    return how.bias.tile(g, rows, cols)


def _written(pieces: Sequence[Piece], tiles: Sequence[Tensor]) -> Tensor:
    """Tiles (…, t, s) of the calls as one (…, Σ t, s), along the rows of the last call."""
    whole = _whole(pieces)
    axes = len(whole.lead) + 2
    parts: list[Tensor] = []
    rows: Tensor | None = None
    for piece, tile in zip(reversed(pieces), reversed(tiles)):
        tile = tile.reshape((1,) * (axes - tile.ndim) + tuple(tile.shape))
        if rows is not None and tile.shape[0] > 1:
            tile = tile.index_select(0, rows)
        tile = tile.expand(*tile.shape[:-2], piece.t, piece.geometry.s)
        parts.append(F.pad(tile, (piece.low, whole.s - piece.low - piece.geometry.s)))
        if piece.parents is not None:
            rows = piece.parents if rows is None else piece.parents[rows]
    dtype = max((x.dtype for x in parts), key=lambda d: d.itemsize)
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in parts))
    return torch.cat([x.to(dtype).expand(*lead, *x.shape[-2:]) for x in reversed(parts)], -2)


def may_join(one: AttentionSpec, other: AttentionSpec, given: bool) -> bool:
    """Whether two calls differ at most in masks, biases and dropout.

    Scale and softcap leave queries of zero what they are, those of weights that are ``given``.
    """
    names = ("score", "scale", "softcap", "sinks")
    same = all(_alike(getattr(one, name), getattr(other, name)) for name in names)
    return same and (one.weights is None) == (other.weights is None)


def _alike(a: object, b: object) -> bool:
    """Whether two numbers, tensors or values are the same."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, Value) and isinstance(b, Value):
        return len(a.parts) == len(b.parts) and all(map(_alike, a.parts, b.parts))
    return a == b
