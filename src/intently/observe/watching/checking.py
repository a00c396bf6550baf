"""The check of every call: on sampled rows, A[rows] @ v is compared with the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.matrix import Dense
from intently.core.matrix.blocks import InBlocks
from intently.observe.watching.call import After, Call, InPieces, Weights, operand
from intently.observe.watching.half_precision import Finished, Outcome, Product, compare
from intently.observe.watching.near_misses import Logits

RELATIVE = 1e-4
UNSEEN = "the product of its weights with values was not seen"
UNTOLD = "the values cannot tell"
CANNOT_TELL = f"{UNTOLD}: different weights would have given the same"
ROWS, HALF_ROWS, MORE = 2, 8, 64
"""Rows that are compared: at first, in half precision, and if these cannot tell."""

CELLS = 2**22
"""Weights that are compared at most if a few rows cannot tell."""


@dataclass(frozen=True)
class Verdict:
    """Whether ``rows`` of an entry agree with the output; None for no verdict, and ``why``."""

    verified: bool | None
    why: str | None = None
    rows: int = 0


def check(call: Call, matrix: Weights, turn: int, stored: torch.dtype | None = None) -> Verdict:
    """Compare some rows of ``matrix`` @ v with the output of the call.

    They agree if they differ by at most 1e-4 of the largest entry of each head, and in half
    precision by the rounding of scores, weights and output; the comparison itself is made in
    float32. There is no verdict if they differ by more, but not by more than rounding may explain,
    nor if different weights would have given the same: those at half the scale, in half precision
    those of all near misses. More rows are compared before that is said. Rows that may attend to
    nothing are left out.
    """
    if call.met is not None and isinstance(call.real, Tensor):
        return _same_dropped(call, matrix, call.real, call.met, sample(matrix.shape[-2], turn))
    if call.how.dropout:
        return Verdict(None, f"dropout={call.how.dropout} changed what came out")
    if 0 in (*matrix.shape, *(() if call.y is None else call.v.shape)):
        return Verdict(None, "nothing to compare: there are no weights, or no values")
    if isinstance(call.real, InPieces):
        return _same_pieces(call.real, matrix) or Verdict(None, UNSEEN)
    if isinstance(matrix, (Dense, InBlocks)):
        return _same_product(call, matrix, sample(matrix.shape[-2], turn, HALF_ROWS))
    t, cells = matrix.shape[-2], math.prod(matrix.shape) // matrix.shape[-2]
    dtype, most = _coarsest(call, matrix, stored), max(HALF_ROWS, CELLS // cells)
    counts, compared = (HALF_ROWS, MORE, most), _compared_in_half
    if torch.finfo(dtype).eps < RELATIVE:
        found = _same_weights(call, matrix, sample(t, turn))
        if found is not None:
            return found
        counts, compared = (ROWS, MORE), _compared
    if call.y is None and (compared is _compared or call.real is None):
        return Verdict(None, UNSEEN)
    found = Verdict(None)
    for count in counts:
        if found.verified is None and found.rows < min(count, most, t):
            rows = sample(t, turn, min(count, most)).to(matrix.device)
            found = replace(compared(call, matrix, rows, dtype), rows=len(rows))
    return found


def _same_dropped(call: Call, matrix: Weights, real: Tensor, met: Tensor, rows: Tensor) -> Verdict:
    """The same where weights were dropped: of those that ran, and with what dropout left."""
    left = Dense(met)
    found = _same_product(replace(call, met=None), left, rows)
    rows = rows.to(matrix.device)
    tile, ran = matrix.tile(rows).double(), real.detach().index_select(-2, rows).double()
    margin = (RELATIVE + 4 * torch.finfo(real.dtype).eps) * ran.amax(-1, keepdim=True)
    if found.verified and not bool(((tile - ran).abs() <= margin).all()):
        return Verdict(False, "the weights before dropout are others")
    return found


def _same_product(call: Call, matrix: Dense | InBlocks, rows: Tensor) -> Verdict:
    """Whether weights that are kept themselves give the output, but for rounding."""
    if call.y is None:
        return Verdict(None, UNSEEN)
    rows = rows.to(matrix.device)
    columns = call.columns or slice(None)
    w, v = matrix.tile(rows)[..., columns].double(), operand(call.v).detach().double()
    v = v[..., : w.shape[-1], :]
    made, size, y = w @ v, w.abs() @ v.abs(), call.y
    if isinstance(y, After):
        made, size, y = y.finish(made, rows), y.finish(size, rows), y.output
    eps = torch.finfo(y.dtype).eps
    y = y.detach().index_select(-2, rows).double()
    off = (made - y).abs()
    same = (off <= RELATIVE * _largest(y) + 4 * eps * size) | (y.isnan() & made.isnan())
    if bool(same.all()):
        return Verdict(True, rows=len(rows))
    worst = float((off / _largest(y).clamp_min(1e-30)).nan_to_num(torch.inf).amax())
    return Verdict(
        False, f"A[rows] @ v differs from what came out by {worst:.1g} of its largest entry"
    )


def untold(why: str | None) -> bool:
    """Whether there is no verdict because the values cannot tell."""
    return why is not None and why.startswith(UNTOLD)


def hidden_by_rounding(why: str | None) -> bool:
    """Whether there is no verdict because of half precision."""
    return untold(why) and why != CANNOT_TELL


def _coarsest(call: Call, matrix: Attention, stored: torch.dtype | None) -> torch.dtype:
    """The dtype of the least precision that the weights went through."""
    y = call.y.output if isinstance(call.y, After) else call.y
    dtypes = [x.dtype for x in (y, call.real, matrix) if x is not None]
    return max([*dtypes, stored or matrix.dtype], key=lambda dtype: torch.finfo(dtype).eps)


def _ran(call: Call, matrix: Attention, rows: Tensor) -> Tensor | None:
    """The weights that ran, of all keys that the matrix has; None if they are not known."""
    s = matrix.shape[-1]
    if not isinstance(call.real, Tensor) or call.real.shape[-1] < s:
        return None
    real = call.real.detach().index_select(-2, rows)
    return None if bool(real[..., s:].any()) else real[..., :s]


def _same_pieces(real: InPieces, matrix: Weights) -> Verdict | None:
    """True where some rows of all pieces are those of the matrix; None where they are not."""
    tile, s = matrix.tile(real.rows), matrix.shape[-1]
    margin = RELATIVE + 4 * torch.finfo(real.dtype).eps
    off = (tile.double() - real.weights[..., :s].double()).abs()
    close = off <= margin * tile.double().amax(-1, keepdim=True)
    close |= (tile == 0).all(-1, keepdim=True)
    if bool(close.all()) and not bool(real.weights[..., s:].any()):
        return Verdict(True, rows=len(real.rows))
    return None


def _same_weights(call: Call, matrix: Attention, rows: Tensor) -> Verdict | None:
    """True where weights that ran are those of the matrix; None where that is not known."""
    rows = rows.to(matrix.device)
    real = _ran(call, matrix, rows)
    if real is None:
        return None
    tile = matrix.tile(rows)
    if not bool(tile.any()):
        return None
    margin = RELATIVE * tile.double().amax(-1, keepdim=True)
    close = (tile.double() - real.double()).abs() <= margin
    empty = (tile == 0).all(-1, keepdim=True)
    return Verdict(True, rows=len(rows)) if bool((close | empty).all()) else None


def _output(
    call: Call, rows: Tensor, s: int, dtype: torch.dtype
) -> tuple[Product | Finished, Tensor]:
    """What makes the output of weights of s keys, and the output of some rows."""
    assert call.y is not None
    v, y = operand(call.v).detach()[..., :s, :], call.y  # without unwritten columns
    if not isinstance(y, After):
        return Product(v.to(dtype)), y.detach().index_select(-2, rows).to(dtype)
    finish, given = y.finish, v.dtype
    made = Finished(v.to(dtype), lambda mixed: finish(mixed.to(given), rows).to(dtype))
    return made, y.output.detach().index_select(-2, rows).to(dtype)


def _left_out(call: Call, empty: Tensor, real: Tensor) -> Tensor:
    """The rows of an output that see nothing, NaN in some kernels; ``empty`` are those of heads."""
    if not isinstance(call.y, After):
        return empty
    lost = empty.any(-3) & real.isnan().all(-1, keepdim=True)  # NaN of one head is in the sum
    return empty.all(-3) | lost


def _compared(call: Call, matrix: Attention, rows: Tensor, dtype: torch.dtype) -> Verdict:
    """Compare in float32 and float64, where other weights give another output."""
    weights = matrix.tile(rows)[..., call.columns or slice(None)]
    cannot = Verdict(None, CANNOT_TELL)
    if not bool(weights.any()):
        return cannot
    made, real = _output(call, rows, matrix.shape[-1], weights.dtype)
    found = made(weights)
    if not bool(((found - real).abs_() <= RELATIVE * _largest(real)).all()):
        empty = _left_out(call, (weights == 0).all(-1, keepdim=True), real)
        found, real = found.masked_fill(empty, 0), real.masked_fill(empty, 0)
        wrong, text = _wrong(found, real, call, dtype)
        if wrong:
            return Verdict(False, text)
    return Verdict(True) if _tells(made, real, weights, call) else cannot


def _wrong(found: Tensor, real: Tensor, call: Call, dtype: torch.dtype) -> tuple[bool, str]:
    """Whether what was found differs by more than rounding at the end, and by how much."""
    eps = torch.finfo(dtype).eps
    error, scale = (found - real).abs_(), _largest(real)
    noise = 16 * eps * operand(call.v).abs().amax().to(scale)  # values may cancel each other
    same = (found == real) | (found.isnan() & real.isnan())
    wrong = ~same & ~(error <= max(RELATIVE, 8 * eps) * scale + noise)
    worst = float((error / scale.clamp_min(1e-30)).nan_to_num(torch.inf).amax())
    text = f"A[rows] @ v differs from what came out by {worst:.1g} of its largest entry"
    return bool(wrong.any()), text


def _compared_in_half(call: Call, matrix: Attention, rows: Tensor, dtype: torch.dtype) -> Verdict:
    """Compare the weights that ran, if they are known, or else the output."""
    name, few = str(dtype).removeprefix("torch."), HALF_ROWS == len(rows) < matrix.shape[-2]
    logits, tile = Logits.of(matrix, rows, call.columns), matrix.tile(rows)
    empty = ~logits.open.any(-1, keepdim=True).expand_as(tile[..., :1])
    if bool(empty.all()):
        return Verdict(None, CANNOT_TELL)
    real = _ran(call, matrix, rows)
    if real is not None:
        if matrix.problem.q.shape[-1] == 0 and bool((tile.to(real) == real).all()):
            return Verdict(True)  # they are kept themselves
        found = compare(Product(None), tile, real.to(tile), empty, logits, dtype, few)
        if found.fits:
            return _fitting(found, name)
    if call.y is None:
        return Verdict(None, UNSEEN)
    weights = tile[..., call.columns or slice(None)]
    made, real = _output(call, rows, matrix.shape[-1], weights.dtype)
    empty = _left_out(call, empty, real)
    found = compare(made, weights, real, empty, logits, dtype, few)
    if found.fits:
        return _fitting(found, name)
    shown = made(weights).masked_fill(empty, 0)
    wrong, text = _wrong(shown, real.masked_fill(empty, 0), call, dtype)
    if wrong and found.far:
        return Verdict(False, text)
    return Verdict(None, f"too coarse to verify in {name}: {text}, as rounding may make it")


def _fitting(found: Outcome, name: str) -> Verdict:
    """The verdict if what came out fits."""
    if not found.untold:
        return Verdict(True)
    others = " or ".join(found.untold)
    return Verdict(None, f"{UNTOLD}: {others} would have given the same in {name}")


def _tells(put_out: Callable[[Tensor], Tensor], real: Tensor, weights: Tensor, call: Call) -> bool:
    """Whether the output tells the weights at half the scale from these, if they differ.

    The first head alone mostly tells.
    """
    if not isinstance(call.y, After):
        some, v = weights[(0,) * (weights.ndim - 2)], operand(call.v)
        v = v[(0,) * (v.ndim - 2)].detach()[: some.shape[-1]].to(some.dtype)
        y = real[(0,) * (real.ndim - 2)]
        if bool(((_halved(some) @ v - y).abs_() > RELATIVE * _largest(y)).any()):
            return True
    other = _halved(weights)
    if bool(((other - weights).abs() <= RELATIVE * weights.amax(-1, keepdim=True)).all()):
        return True
    return bool(((put_out(other) - real).abs_() > RELATIVE * _largest(real)).any())


def _halved(weights: Tensor) -> Tensor:
    """The weights at half the scale, which a check has to tell from the given ones."""
    root = weights.sqrt()
    return root / root.sum(-1, keepdim=True).clamp_min(1e-30)


def _largest(y: Tensor) -> Tensor:
    return y.abs().amax((-2, -1), keepdim=True)


def sample(t: int, turn: int, count: int = ROWS) -> Tensor:
    """Up to ``count`` of t rows: the last, and others that change from call to call."""
    if count >= t:
        return torch.arange(t)
    golden = 0.6180339887
    picked = {t - 1} | {int((t - 1) * ((turn * count + n) * golden % 1)) for n in range(1, count)}
    return torch.tensor(sorted(picked))
