"""Nothing is believed unchecked: on sampled rows, A[rows] @ v is compared with what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intently.attention_matrix import Attention
from intently.observe.call import After, Call, operand

RELATIVE = 1e-4
CANNOT_TELL = "the values cannot tell: other weights would have given the same"
ROWS = 2


@dataclass(frozen=True)
class Verdict:
    """Whether ``rows`` of an entry agree with what came out; None for no verdict, with why."""

    verified: bool | None
    why: str | None = None
    rows: int = 0


def check(call: Call, matrix: Attention, turn: int, stored: torch.dtype | None = None) -> Verdict:
    """Compare some rows of ``matrix`` @ v with what the call put out.

    They agree where they differ by at most 1e-4 of the largest entry of each head, and in half
    precision by what rounding the weights and the output does; where they differ by more, but by
    no more than rounded scores may, there is no verdict, nor where the weights at half the scale
    would have given the same. Rows that may attend to nothing are left out.
    """
    if call.how.dropout:
        return Verdict(None, f"dropout={call.how.dropout} changed what came out")
    if 0 in (*matrix.shape, *call.v.shape):
        return Verdict(None, "nothing to compare: there are no weights, or no values")
    rows = sample(matrix.shape[-2], turn).to(matrix.device)
    v = operand(call.v).detach()[..., : matrix.shape[-1], :]  # what is not written is not seen
    weights = matrix.tile(rows)
    wide = weights.dtype
    real = call.y.output if isinstance(call.y, After) else call.y

    def put_out(weights: Tensor) -> Tensor:
        mixed = _times(weights, v.to(wide))
        y = call.y.finish(mixed.to(v.dtype), rows) if isinstance(call.y, After) else mixed
        return y.to(wide)

    dtypes = {real.dtype, matrix.dtype, stored or matrix.dtype}
    real = real.detach().index_select(-2, rows).to(wide)
    return replace(_compared(put_out, real, weights, call, dtypes), rows=len(rows))


def _compared(
    put_out: Callable[[Tensor], Tensor],
    real: Tensor,
    weights: Tensor,
    call: Call,
    dtypes: set[torch.dtype],
) -> Verdict:
    found, untold = put_out(weights), Verdict(None, CANNOT_TELL)
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    eps = torch.finfo(coarsest).eps
    if eps < RELATIVE and bool(((found - real).abs_() <= RELATIVE * _largest(real)).all()):
        return Verdict(True) if _tells(put_out, real, weights, call) else untold
    empty = (weights == 0).all(-1, keepdim=True)  # rows that see nothing are NaN in some kernels
    if isinstance(call.y, After):
        lost = empty.any(-3) & real.isnan().all(-1, keepdim=True)  # NaN of one head is in the sum
        empty = empty.all(-3) | lost
    found, real = found.masked_fill(empty, 0), real.masked_fill(empty, 0)
    error, scale = (found - real).abs_(), _largest(real)
    noise = 16 * eps * operand(call.v).abs().amax().to(scale.dtype)  # values may cancel each other
    same = (found == real) | (found.isnan() & real.isnan())
    wrong = ~same & ~(error <= max(RELATIVE, 8 * eps) * scale + noise)
    worst = float((error / scale.clamp_min(1e-30)).nan_to_num(torch.inf).amax())
    if eps > RELATIVE and not bool(wrong.any()):
        rounded = (
            2 * eps * scale if isinstance(call.y, After) else _rounding(real, weights, call, eps)
        )
        allowed = rounded + RELATIVE * scale
        flat = _halved(weights)
        alike = bool(((flat - weights).abs() <= eps * weights.amax(-1, keepdim=True)).all())
        other = (put_out(flat).masked_fill(empty, 0) - real).abs()
        if bool((same | (error <= allowed)).all()) and (alike or bool((other > allowed).any())):
            return Verdict(True)
        name = str(coarsest).removeprefix("torch.")
        return Verdict(
            None, f"too coarse to verify in {name}: A[rows] @ v differs from what came out by "
            f"{worst:.1g} of its largest entry, as rounding or other weights may make it"
        )  # fmt: skip
    if not bool(wrong.any()):
        return Verdict(True) if _tells(put_out, real, weights, call) else untold
    return Verdict(
        False, f"A[rows] @ v differs from what came out by {worst:.1g} of its largest entry"
    )


def _tells(put_out: Callable[[Tensor], Tensor], real: Tensor, weights: Tensor, call: Call) -> bool:
    """Whether the weights at half the scale would have been told from these, if they differ.

    The first head mostly says so by itself.
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


def _rounding(y: Tensor, weights: Tensor, call: Call, eps: float) -> Tensor:
    """What rounding the output, and each weight by itself, may change."""
    v = operand(call.v).detach()[..., : weights.shape[-1], :].to(weights.dtype)
    return eps * y.abs() / 2 + 2 * eps * _times(weights.square(), v.square()).sqrt()


def _halved(weights: Tensor) -> Tensor:
    """The weights at half the scale, which a check has to tell from them."""
    root = weights.sqrt()
    return root / root.sum(-1, keepdim=True).clamp_min(1e-30)


def _largest(y: Tensor) -> Tensor:
    return y.abs().amax((-2, -1), keepdim=True)


def sample(t: int, turn: int) -> Tensor:
    """A few of t rows: the last, and others that change from call to call."""
    golden = 0.6180339887
    picked = {t - 1} | {int((t - 1) * ((turn * ROWS + n) * golden % 1)) for n in range(1, ROWS)}
    return torch.tensor(sorted(picked))


def _times(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (…, h, n, s) @ v (…, g, s, e), consecutive query heads sharing a value head."""
    if weights.ndim >= 4 and v.ndim >= 3 and v.shape[-3] not in (1, weights.shape[-3]):
        g = v.shape[-3]
        grouped = weights.unflatten(-3, (g, -1)).flatten(-3, -2)
        mixed = grouped @ v
        return mixed.unflatten(-2, (-1, weights.shape[-2])).flatten(-4, -3)
    return weights @ v
