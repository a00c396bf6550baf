"""Gradients of the tiled kernel, tile by tile, in O(t) memory.

With p the weights, D = Σ dy·y − dlse and drop the factors of dropout, each tile gives
dv += (p∘drop)ᵀ dy and dz = p ∘ ((dy vᵀ)∘drop − D); the gradients of q, k and every parameter of
score, scale and bias follow from dz on the tile alone.

Rounding of y gives D an error that is the same for a whole row of dz. It hardly affects queries and
keys, but a parameter shared by all rows accumulates these errors. If such a parameter is learned,
the errors are removed: the dz of a row must sum to dlse + D·(weight of its sink), and the excess is
the error of D.

Source: Dao 2023, "FlashAttention-2", algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from intently.core.biases import Bias, TensorBias
from intently.core.kernels.eager import Dropping
from intently.core.kernels.problem import Problem, cut_rows, positions, taken
from intently.core.kernels.walk import TILE, ColumnRun, RowBlock, walk
from intently.core.masks.geometry import cut_right
from intently.core.scores import Dot

KEPT = 8 * TILE
"""Weights of a block of rows up to which its tiles stay in memory: D needs them a second time."""


def gradients(
    p: Problem,
    v: Tensor,
    dropping: Dropping | None,
    results: tuple[Tensor, Tensor],
    given: tuple[Tensor, Tensor],
    learned: bool,
) -> list[Tensor | None]:
    """Gradients of q, k, v, then of sinks and scale where they are tensors, then of all held.

    ``results`` are y and lse, ``given`` their gradients; every tensor is detached. They come in the
    compute dtype, and None for what a mask holds. ``learned`` says that scale, score or
    bias need theirs.
    """
    (y, lse), (dy, dlse) = results, given
    dtype = p.compute_dtype
    offset = (dy.to(dtype) * y).sum(-1) - dlse

    def zeros(x: Tensor) -> Tensor:
        return torch.zeros_like(x, dtype=dtype if x.is_floating_point() else None)

    k, values = p.without_unseen(p.k, v)
    clean = p.replaced(k=k)
    totals, dv = p.replaced(mask=None).mapped(zeros), zeros(v)
    for cut, blocks in walk(clean):
        mine = p.part_of_keys(values, cut), p.part_of_keys(dv, cut)
        tiles = _Tiles(clean, mine, cut, dropping, totals, learned)
        for block in blocks:
            rows = (*cut, slice(block.start, block.stop))
            each = (x[rows][..., None] for x in (lse, dlse, offset))
            tiles.visit(block, dy[rows].to(dtype), *each)
    dq, dk, *own = totals.replaced(bias=None).tensors()
    masks = () if p.mask is None else p.mask.tensors()
    held = () if totals.bias is None else totals.bias.tensors()
    return [dq, dk, dv, *own, *[None for _ in masks], *held]


class _Tile(NamedTuple):
    """The contribution of one tile."""

    cols: slice
    q: Tensor
    k: Tensor
    pulled: tuple[Tensor, Tensor, Tensor] | None
    """Logits, and the queries and keys they depend on, unless that is plain."""
    weights: Tensor
    stays: Tensor
    """The weights that dropout leaves."""
    dz: Tensor


class _Tiles:
    """The tiles of one piece, and the parts of the totals that they add to."""

    def __init__(
        self,
        p: Problem,
        values: tuple[Tensor, Tensor],
        cut: tuple[slice, ...],
        dropping: Dropping | None,
        totals: Problem,
        learned: bool,
    ) -> None:
        self.whole, self.cut, self.totals, self.learned = p, cut, totals, learned
        self.piece, (self.v, self.dv) = p.part(cut), values
        self.dropping = None if dropping is None else dropping.part(cut)
        self.dq = cut_right(totals.q, cut)
        self.dk = p.part_of_keys(totals.k, cut)
        self.leaves = p.replaced(mask=None).mapped(_leaf)

    def visit(self, block: RowBlock, dy: Tensor, lse: Tensor, dlse: Tensor, offset: Tensor) -> None:
        """Add the share of one block of rows: dy (…, rows, e), lse, dlse and D (…, rows, 1)."""
        p, rows = self.piece, slice(block.start, block.stop)
        safe = lse.masked_fill(lse.isneginf(), 0)
        sunk = None if p.sinks is None else (p.sinks.to(safe.dtype)[..., None, None] - safe).exp()
        tiles = (self._tile(run, rows, dy, safe, offset) for run in block.runs)
        if self.learned:
            columns = sum(run.stop - run.start for run in block.runs)
            few = columns * math.prod(lse.shape) <= KEPT
            tiles = list(tiles) if few else tiles
            error = sum((tile.dz.sum(-1, keepdim=True) for tile in tiles), -dlse)
            error = error if sunk is None else error - sunk * offset
            if few:
                for tile in tiles:
                    tile.dz.addcmul_(tile.weights, error, value=-1)
            offset = offset + error
            if not few:
                tiles = (self._tile(run, rows, dy, safe, offset) for run in block.runs)
        if self.totals.sinks is not None and sunk is not None:
            total = self.totals.sinks
            total = cut_rows(total, self.cut) if total.ndim else total
            _add(total, -(sunk * offset).sum((-1, -2)))
        for cols, q, k, pulled, _, stays, dz in tiles:
            _add(self.dv[..., cols, :], stays.mT @ dy, p.groups)
            if pulled is not None:
                self._pull(pulled, dz, rows, cols)
            else:
                _add(self.dq[..., rows, :], (dz @ p.per_query_head(k)).mul_(p.scale))
                _add(self.dk[..., cols, :], (dz.mT @ q).mul_(p.scale), p.groups)
            if self.leaves.bias is not None and self.totals.bias is not None:
                self._pull_bias(self.leaves.bias, self.totals.bias, dz, rows, cols)

    def _tile(self, run: ColumnRun, rows: slice, dy: Tensor, lse: Tensor, offset: Tensor) -> _Tile:
        p, cols = self.piece, slice(run.start, run.stop)
        q, k = (taken(x, at).to(dy.dtype) for x, at in ((p.q, rows), (p.k, cols)))
        pulled = self._pulled(q, k)
        z = p.scaled(q, k) if pulled is None else pulled[0].detach()
        bias = p.bias_tile(rows, cols)
        fresh = z + bias if bias is not None else z if pulled is None else z.clone()
        weights, mine = p.tile_softmax(fresh, rows, cols, run.full)
        share = (mine - lse).exp_()  # v may have leading axes that q and k share
        weights = weights.mul_(share) if share.shape[:-1] == weights.shape[:-1] else weights * share
        dw = dy @ p.per_query_head(taken(self.v, cols).to(dy.dtype)).mT
        stays = weights
        if self.dropping is not None:
            factors = self.dropping.factors(rows, cols, dw.dtype)
            dw, stays = dw.mul_(factors), weights * factors
        return _Tile(cols, q, k, pulled, weights, stays, dw.sub_(offset).mul_(weights))

    def _pulled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Logits before the bias, with the derivatives of score, scale and softcap, and their q, k.

        None where the logits are plain dot products.
        """
        p, scale = self.piece, self.leaves.scale
        if type(p.score) is Dot and p.softcap is None and not isinstance(scale, Tensor):
            return None
        with differentiable():
            if isinstance(scale, Tensor) and scale.ndim > 2:
                scale = cut_right(scale, self.cut)
            q, k = _leaf(q), _leaf(k)
            score = self.leaves.score.part(self.cut, self.whole.geometry)
            return p.replaced(score=score, scale=scale).scaled(q, k), q, k

    def _pull(
        self, pulled: tuple[Tensor, Tensor, Tensor], dz: Tensor, rows: slice, cols: slice
    ) -> None:
        """Add the derivatives of the logits for q, k, score and scale."""
        totals, (z, q, k) = self.totals, pulled
        pairs = [(q, self.dq[..., rows, :]), (k, self.dk[..., cols, :])]
        pairs += zip(self.leaves.score.tensors(), totals.score.tensors())
        if isinstance(self.leaves.scale, Tensor) and isinstance(totals.scale, Tensor):
            pairs.append((self.leaves.scale, totals.scale))
        _add_derivatives(z, dz, pairs)

    def _pull_bias(self, bias: Bias, total: Bias, dz: Tensor, rows: slice, cols: slice) -> None:
        """Add the derivatives of the bias: dz itself where it is a tensor."""
        g, cut = self.whole.geometry, self.cut
        if isinstance(bias, TensorBias):
            part = total.part(cut, g).tensors()[0]
            last = part.shape[-2:]
            spans = (rows, cols)[2 - len(last) :]
            at = [slice(None) if n == 1 else span for n, span in zip(last, spans)]
            _add(part[(..., *at)], dz)
            return
        inner = [(a, b) for a, b in zip(bias.parts, total.parts) if isinstance(a, Bias)]
        for a, b in inner:
            self._pull_bias(a, b, dz, rows, cols)
        if inner:
            return
        part = self.piece.geometry
        with differentiable():
            at = positions(rows, part.t, part.device), positions(cols, part.s, part.device)
            tile = bias.part(cut, g).tile(part, *at, dz.dtype)
        _add_derivatives(tile, dz, list(zip(bias.tensors(), total.tensors())))


def _add_derivatives(z: Tensor, dz: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Add to each total the derivative of z, weighed by dz, for its input."""
    pairs = [(x, total) for x, total in pairs if x.requires_grad]
    if not pairs or not z.requires_grad:
        return
    inputs = [x for x, _ in pairs]
    with differentiable():
        found = torch.autograd.grad(z, inputs, dz.sum_to_size(z.shape), allow_unused=True)
    for (_, total), x in zip(pairs, found):
        if x is not None:
            _add(total, x)


def _add(total: Tensor, x: Tensor, groups: int = 1) -> None:
    """Add x to ``total``, summed over the heads of a group and the axes that ``total`` shares."""
    if groups > 1:
        x = x.unflatten(-3, (-1, groups)).sum(-3)
    total += x if x.shape == total.shape else x.sum_to_size(total.shape)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_() if x.is_floating_point() else x


@contextmanager
def differentiable() -> Iterator[None]:
    """Derivatives inside an operator, where PyTorch has switched them off."""
    keys = torch._C.DispatchKey
    with (
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradFunctionality, False),
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradCPU, False),
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradCUDA, False),
        torch.enable_grad(),
    ):
        yield
