"""Nothing is believed unchecked: on sampled rows, A[rows] @ v is compared with what came out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from intently.attention import Attention
from intently.observe.call import After, Call, operand

RELATIVE = 1e-4
ROWS = 2


@dataclass(frozen=True)
class Verdict:
    """Whether an entry agrees with what came out; None where it was not compared, with why."""

    verified: bool | None
    why: str | None = None


def check(call: Call, matrix: Attention, turn: int, stored: torch.dtype | None = None) -> Verdict:
    """Compare some rows of ``matrix`` @ v with what the call put out.

    They agree where they differ by at most 1e-4 of the largest entry of each head, or by what
    the dtype can tell. Rows that may attend to nothing are left out.
    """
    if call.how.dropout:
        return Verdict(None, f"dropout={call.how.dropout} changed what came out")
    rows = sample(matrix.shape[-2], turn).to(matrix.device)
    v = operand(call.v).detach()[..., : matrix.shape[-1], :]  # what is not written is not seen
    weights = matrix.tile(rows)
    wide = weights.dtype
    mixed = _times(weights, v.to(wide))
    if isinstance(call.y, After):
        found = call.y.finish(mixed.to(v.dtype), rows)
        real = call.y.output.detach().index_select(-2, rows)
    else:
        found, real = mixed, call.y.detach().index_select(-2, rows)
    dtypes = {real_dtype(call), matrix.dtype, stored or matrix.dtype}
    return _compared(found.to(wide), real.to(wide), weights, call, dtypes)


def _compared(
    found: Tensor, real: Tensor, weights: Tensor, call: Call, dtypes: set[torch.dtype]
) -> Verdict:
    eps = max(torch.finfo(dtype).eps for dtype in dtypes)
    relative = max(RELATIVE, 8 * eps)
    if bool(((found - real).abs_() <= relative * _largest(real)).all()):
        return Verdict(True)
    empty = (weights == 0).all(-1, keepdim=True)  # rows that see nothing are NaN in some kernels
    if isinstance(call.y, After):
        empty = empty.all(-3)
    found, real = found.masked_fill(empty, 0), real.masked_fill(empty, 0)
    error, scale = (found - real).abs_(), _largest(real)
    noise = 16 * eps * operand(call.v).abs().amax().to(scale.dtype)  # values may cancel each other
    same = (found == real) | (found.isnan() & real.isnan())
    if bool((same | (error <= relative * scale + noise)).all()):
        return Verdict(True)
    worst = float((error / scale.clamp_min(1e-30)).nan_to_num(torch.inf).amax())
    return Verdict(
        False, f"A[rows] @ v differs from what came out by {worst:.1g} of its largest entry"
    )


def _largest(y: Tensor) -> Tensor:
    return y.abs().amax((-2, -1), keepdim=True)


def real_dtype(call: Call) -> torch.dtype:
    """The dtype in which the model put out what is compared."""
    return call.y.output.dtype if isinstance(call.y, After) else call.y.dtype


def sample(t: int, turn: int) -> Tensor:
    """A few of t rows: the last, and others that change from call to call."""
    golden = 0.6180339887
    picked = {t - 1} | {int(t * ((turn * ROWS + n) * golden % 1)) for n in range(1, ROWS)}
    return torch.tensor(sorted(picked))


def _times(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (…, h, n, s) @ v (…, g, s, e), consecutive query heads sharing a value head."""
    if weights.ndim >= 4 and v.ndim >= 3 and v.shape[-3] not in (1, weights.shape[-3]):
        g = v.shape[-3]
        grouped = weights.unflatten(-3, (g, -1)).flatten(-3, -2)
        mixed = grouped @ v
        return mixed.unflatten(-2, (-1, weights.shape[-2])).flatten(-4, -3)
    return weights @ v
