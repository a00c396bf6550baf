"""The check of every call: on sampled rows, A[rows] @ v is compared with the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intently.attention_matrix import Attention
from intently.observe.watching.call import After, Call, operand

RELATIVE = 1e-4
CANNOT_TELL = "the values cannot tell: other weights would have given the same"
ROWS, HALF_ROWS, MORE = 2, 8, 64
"""Rows that are compared: at first, in half precision, and if these cannot tell."""

SCORES = 1.25
"""Factor on the bound of independent roundings: the largest of thousands comes near the bound."""

APART = 3
"""Factor by which the weights at half the scale have to differ from the output beyond rounding.

If they were the true ones, the compared weights would differ by two thirds of that: too much.
"""

CELLS = 2**22
"""Weights that are compared at most if a few rows cannot tell."""


@dataclass(frozen=True)
class Verdict:
    """Whether ``rows`` of an entry agree with the output; None for no verdict, and ``why``."""

    verified: bool | None
    why: str | None = None
    rows: int = 0


def check(call: Call, matrix: Attention, turn: int, stored: torch.dtype | None = None) -> Verdict:
    """Compare some rows of ``matrix`` @ v with the output of the call.

    They agree if they differ by at most 1e-4 of the largest entry of each head, and in half
    precision by the rounding of scores, weights and output; the comparison itself is made in
    float32. There is no verdict if they differ by more, but not by more than rounding may explain,
    nor if the weights at half the scale would have given the same; more rows are compared before
    that is said. Rows that may attend to nothing are left out.
    """
    if call.how.dropout:
        return Verdict(None, f"dropout={call.how.dropout} changed what came out")
    if 0 in (*matrix.shape, *(() if call.y is None else call.v.shape)):
        return Verdict(None, "nothing to compare: there are no weights, or no values")
    if call.real is not None and call.real.shape[-1] >= matrix.shape[-1]:
        found = _same_weights(call.real, matrix, sample(matrix.shape[-2], turn))
        if found is not None:
            return found
    if call.y is None:
        return Verdict(None, "the product of its weights with values was not seen")
    real = call.y.output if isinstance(call.y, After) else call.y
    dtypes = {real.dtype, matrix.dtype, stored or matrix.dtype}
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    few = ROWS if torch.finfo(coarsest).eps < RELATIVE else HALF_ROWS
    t, cells = matrix.shape[-2], math.prod(matrix.shape) // matrix.shape[-2]
    found = Verdict(None)
    for count in (few, max(few, min(MORE, CELLS // cells))):
        if found.verified is None and found.rows < min(count, t):
            rows = sample(t, turn, count).to(matrix.device)
            found = replace(_compared(call, matrix, real, rows, coarsest), rows=len(rows))
    return found


def _same_weights(real: Tensor, matrix: Attention, rows: Tensor) -> Verdict | None:
    """True where weights that ran are those of the matrix; None where rounding hides it."""
    rows = rows.to(matrix.device)
    shown = real.detach().index_select(-2, rows)
    tile, eps = matrix.tile(rows), torch.finfo(real.dtype).eps
    cut = shown[..., matrix.shape[-1] :]
    margin = (RELATIVE + 4 * eps) * tile.double().amax(-1, keepdim=True)
    close = (tile.double() - shown[..., : matrix.shape[-1]].double()).abs() <= margin
    empty = (tile == 0).all(-1, keepdim=True)
    if bool((close | empty).all()) and not bool(cut.any()):
        return Verdict(True, rows=len(rows))
    return None


def _compared(
    call: Call, matrix: Attention, real: Tensor, rows: Tensor, coarsest: torch.dtype
) -> Verdict:
    v = operand(call.v).detach()[..., : matrix.shape[-1], :]  # without unwritten columns
    weights, given = matrix.tile(rows)[..., call.columns or slice(None)], v.dtype
    wide = weights.dtype
    v, real = v.to(wide), real.detach().index_select(-2, rows).to(wide)

    def put_out(mixed: Tensor) -> Tensor:
        return call.y.finish(mixed.to(given), rows).to(wide) if isinstance(call.y, After) else mixed

    def tells() -> bool:
        return _tells(lambda w: put_out(_times(w, v)), real, weights, call)

    mixed = _times(weights, v)
    found, untold = put_out(mixed), Verdict(None, CANNOT_TELL)
    eps = torch.finfo(coarsest).eps
    if eps < RELATIVE and bool(((found - real).abs_() <= RELATIVE * _largest(real)).all()):
        return Verdict(True) if tells() else untold
    empty = (weights == 0).all(-1, keepdim=True)  # rows that see nothing are NaN in some kernels
    if isinstance(call.y, After):
        lost = empty.any(-3) & real.isnan().all(-1, keepdim=True)  # NaN of one head is in the sum
        empty = empty.all(-3) | lost
    found, real = found.masked_fill(empty, 0), real.masked_fill(empty, 0)
    error, scale = (found - real).abs_(), _largest(real)
    noise = 16 * eps * operand(call.v).abs().amax().to(wide)  # values may cancel each other
    same = (found == real) | (found.isnan() & real.isnan())
    wrong = ~same & ~(error <= max(RELATIVE, 8 * eps) * scale + noise)
    worst = float((error / scale.clamp_min(1e-30)).nan_to_num(torch.inf).amax())
    if eps < RELATIVE and not bool(wrong.any()):
        return Verdict(True) if tells() else untold
    if eps > RELATIVE:
        flat = _halved(weights)
        alike = bool(((flat - weights).abs() <= eps * weights.amax(-1, keepdim=True)).all())
        other = (put_out(_times(flat, v)).masked_fill(empty, 0) - real).abs()

        def rounded(scores: bool) -> Tensor:
            each = _rounded_weights(weights, v, mixed, eps)
            if scores:
                each = each + _rounded_scores(matrix, rows, weights, v, mixed, eps)
            if not isinstance(call.y, After):
                return each
            pushed = put_out(mixed + scores * each * _signs(mixed)) - put_out(mixed)
            return 2 * eps * scale + 3 * pushed.square().mean(-1, keepdim=True).sqrt()

        allowed = scale
        for scores, margin in ((False, 1), (True, APART)):
            allowed = rounded(scores).masked_fill(empty, 0) + RELATIVE * scale
            fits, told = same | (error <= allowed), other > margin * allowed
            if bool(fits.all()) and (alike or bool(told.any())):
                return Verdict(True)
        if not bool((wrong & (error > 2 * allowed)).any()):
            name = str(coarsest).removeprefix("torch.")
            return Verdict(
                None,
                f"too coarse to verify in {name}: A[rows] @ v differs from what came out by "
                f"{worst:.1g} of its largest entry, as rounding or other weights may make it",
            )
    return Verdict(
        False, f"A[rows] @ v differs from what came out by {worst:.1g} of its largest entry"
    )


def _rounded_weights(weights: Tensor, v: Tensor, y: Tensor, eps: float) -> Tensor:
    """Rounding of y = weights @ v in fused kernels, which round y and each weight."""
    return eps * y.abs() / 2 + 2 * eps * _times(weights.square(), v.square()).sqrt()


def _rounded_scores(
    matrix: Attention, rows: Tensor, weights: Tensor, v: Tensor, y: Tensor, eps: float
) -> Tensor:
    """Further rounding in the plain formula, which rounds each z, and z less its maximum.

    That moves y by √(Σ w² δz² (v − y)²) if roundings are independent.
    """
    z = matrix.scores[..., rows, :]
    size = torch.where(weights > 0, z.abs() + (z - z.amax(-1, keepdim=True)).abs(), 0.0)
    moved = (weights * size).square()
    spread = _times(moved, v.square()) - 2 * y * _times(moved, v)
    return SCORES * eps * (spread + y.square() * moved.sum(-1, keepdim=True)).clamp_min(0).sqrt()


def _signs(x: Tensor) -> Tensor:
    """A pattern of ±1 that is independent of x."""
    turns = torch.arange(x.numel(), device=x.device) * 0.6180339887 % 1
    return torch.where(turns < 0.5, -1.0, 1.0).to(x.dtype).view(x.shape)


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


def _times(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (…, h, n, s) @ v (…, g, s, e), consecutive query heads sharing a value head."""
    if weights.ndim >= 4 and v.ndim >= 3 and v.shape[-3] not in (1, weights.shape[-3]):
        g = v.shape[-3]
        grouped = weights.unflatten(-3, (g, -1)).flatten(-3, -2)
        mixed = grouped @ v
        return mixed.unflatten(-2, (-1, weights.shape[-2])).flatten(-4, -3)
    return weights @ v
