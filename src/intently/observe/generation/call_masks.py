"""The masks and biases of joined calls as one: a value if they agree, else a dense tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.biases import TensorBias, as_bias
from intently.core.masks import Geometry, Mask, allowed, causal, is_plain_causal
from intently.core.matrix.blocks import InBlocks
from intently.foundation.values import Value
from intently.observe.storage.stores import KeptSpec
from intently.observe.watching.call import AttentionSpec, Call, operand
from intently.observe.watching.mask_inference import simplified


@dataclass(frozen=True)
class Piece:
    """One call, whose matrix ``geometry`` begins at column ``low`` of the joined one.

    Its rows continue the rows ``parents`` of the call before; without ``parents``, the same ones.
    """

    how: KeptSpec
    geometry: Geometry
    low: int = 0
    parents: Tensor | None = None

    @property
    def end(self) -> int:
        """The column at which its matrix ends."""
        return self.low + self.geometry.s


def joined_how(pieces: Sequence[Piece]) -> AttentionSpec:
    """Return the arguments of `attend` beside the queries and keys of all calls."""
    hows = [piece.how.get() for piece in pieces]
    last = hows[-1]
    if len(pieces) == 1:
        return last
    if last.weights is not None:
        tiles = [how.weights for how in hows if isinstance(how.weights, Tensor)]
        before = [how.softmax for how in hows if how.softmax is not None]
        softmax = _written(pieces, before) if len(before) == len(hows) else None
        return replace(last, weights=_written(pieces, tiles), softmax=softmax)
    mask, bias = _plain(pieces, hows), last.bias
    if mask is None:
        seen = _written(pieces, [_allowed(how, p.geometry) for p, how in zip(pieces, hows)])
        mask = simplified(AttentionSpec(mask=allowed(seen)), _whole(pieces)).mask
    if not all(_alike(how.bias, bias) and type(how.bias) is not TensorBias for how in hows):
        bias = as_bias(_written(pieces, [_added(h, p.geometry) for p, h in zip(pieces, hows)]))
    return replace(last, mask=mask, bias=bias)


def looked_at(how: AttentionSpec, g: Geometry) -> Tensor:
    """The entries (…, t, s) that a call may attend; none in rows that see nothing.

    The plain formula spreads such rows (of padding) over all keys if the lowest number of a dtype
    stands for −∞.
    """
    if isinstance(how.weights, Tensor):
        return how.weights != 0
    added = _added(how, g)
    seen = _allowed(how, g) & (added > torch.finfo(added.dtype).min / 2)
    return seen.expand(*seen.shape[:-2], g.t, g.s)


def first_part(how: AttentionSpec, g: Geometry, t: int, s: int) -> tuple[AttentionSpec, Geometry]:
    """The arguments of a call for its first t queries and s keys."""
    part, mask, bias, weights = g._replace(t=t, s=s), how.mask, how.bias, how.weights
    if mask is not None:
        seen = mask.dense(g)
        mask = allowed(seen.expand(*seen.shape[:-2], g.t, g.s)[..., :t, :s])
    if bias is not None and (type(bias) is TensorBias or g.s - s != g.t - t):
        bias = as_bias(_added(how, g, part))
    weights = weights[..., :t, :s] if isinstance(weights, Tensor) else weights
    softmax = None if how.softmax is None else how.softmax[..., :t, :s]
    how = replace(how, mask=mask, bias=bias, weights=weights, softmax=softmax)
    return simplified(how, part), part


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
    mask, first = hows[0].mask, pieces[0].geometry
    if mask is None and first.t == first.s == 1:
        mask = causal()
    if mask is None or not is_plain_causal(mask) or pieces[-1].geometry.s <= first.s:
        return None
    steps = (p.geometry.t == 1 and not p.low and h.mask is None for p, h in zip(pieces, hows))
    next(steps)
    return mask if all(steps) else None


def _whole(pieces: Sequence[Piece]) -> Geometry:
    """The geometry of all calls."""
    t = sum(piece.geometry.t for piece in pieces)
    return pieces[-1].geometry._replace(t=t, s=max(piece.end for piece in pieces))


def _allowed(how: AttentionSpec, g: Geometry) -> Tensor:
    """The mask of one call, broadcastable to (…, t, s)."""
    every = torch.ones(1, 1, dtype=torch.bool, device=g.device)
    return every if how.mask is None else how.mask.dense(g)


def _added(how: AttentionSpec, g: Geometry, part: Geometry | None = None) -> Tensor:
    """The bias of one call, or of a ``part`` of it, broadcastable to (…, t, s)."""
    if how.bias is None:
        return torch.zeros(1, 1, device=g.device)
    rows, cols = (torch.arange(n, device=g.device) for n in (part or g)[1:3])
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
        tile = tile.expand(*tile.shape[:-2], *piece.geometry[1:3])
        parts.append(F.pad(tile, (piece.low, whole.s - piece.end)))
        if piece.parents is not None:
            rows = piece.parents if rows is None else piece.parents[rows]
    dtype = max((x.dtype for x in parts), key=lambda d: d.itemsize)
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in parts))
    return torch.cat([x.to(dtype).expand(*lead, *x.shape[-2:]) for x in reversed(parts)], -2)


def may_join(one: Piece, how: AttentionSpec, g: Geometry) -> bool:
    """Whether a call differs from another at most in rows, lengths, masks, biases and dropout."""
    old, names = one.how.how, ("score", "scale", "softcap", "sinks")
    kinds = type(old.weights) is type(how.weights) and one.geometry.lead[1:] == g.lead[1:]
    return kinds and all(_alike(getattr(old, name), getattr(how, name)) for name in names)


def _alike(a: object, b: object) -> bool:
    """Whether two numbers, tensors or values are the same."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.shape == b.shape and torch.equal(a, b))
    if type(a) is type(b) and isinstance(a, Value) and isinstance(b, Value):
        return len(a.parts) == len(b.parts) and all(map(_alike, a.parts, b.parts))
    return type(a) is type(b) and a == b
