"""The check of every call: on sampled rows, A[rows] @ v is compared with the output.

Weights that ran are compared themselves where they are known. An output agrees if it differs from
A[rows] @ v by no more than rounding explains, which the plain formula tells whose every step is
rounded. It proves nothing if near misses of A (another scale; in half precision a mask off by one
and no bias, too) would have given the same: of the way from A @ v to theirs, the output may have
gone less than half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from intently.core.attention import Attention
from intently.core.kernels.operands import no_autocast
from intently.core.kernels.problem import Problem, taken
from intently.core.matrix.labelling import HIDDEN
from intently.observe.watching.call import After, Call, Weights, operand

RELATIVE, LAST, CANCELLED, PLAIN = 1e-4, 8.0, 16.0, 2.0
"""What an output may differ by: of its largest entry, or units of its last place, whichever is
more; units of the largest value, because values may cancel; errors of the rounded formula."""
DEVIATIONS, UNIT = 3.0, 0.25
"""Standard deviations of how far the way is known; that of a rounded number, in its last place."""
SCALED = 1.1, 2.0
"""The scales of near misses, as multiples of the right one: small scores need the larger."""
ROWS, HALF_ROWS, MORE, CELLS = 2, 8, 64, 2**22
"""Rows that are compared: at first, in half precision, if these cannot tell; and weights at most
if those cannot tell either."""

UNSEEN = "the product of its weights with values was not seen"
UNTOLD = "the values cannot tell"


@dataclass(frozen=True)
class Verdict:
    """Whether ``rows`` of an entry agree with the output; None for no verdict, and ``why``."""

    verified: bool | None
    why: str | None = None
    rows: int = 0


def check(call: Call, matrix: Weights, turn: int, stored: torch.dtype | None = None) -> Verdict:
    """Compare some rows of ``matrix`` with the weights that ran, or their product with the output.

    The precision is the coarsest that the weights went through, ``stored`` included; the comparison
    itself is made in float32. There is no verdict if the difference is more than rounding, but less
    than twice that, nor if different weights would have given the same; more rows are compared
    before that is said. Rows that may attend to nothing are left out.
    """
    if call.how.dropout and call.met is None:
        return Verdict(None, f"dropout={call.how.dropout} changed what came out")
    if 0 in (*matrix.shape, *(() if call.y is None else call.v.shape)):
        return Verdict(None, "nothing to compare: there are no weights, or no values")
    t, output = matrix.shape[-2], call.y.output if isinstance(call.y, After) else call.y
    went = [x.dtype for x in (matrix, output, call.real) if x is not None]
    dtype = max(filter(None, (*went, stored)), key=lambda x: torch.finfo(x).eps)
    eps = torch.finfo(dtype).eps
    most, found = max(HALF_ROWS, CELLS // (math.prod(matrix.shape) // t)), Verdict(None)
    for count in (ROWS if eps < RELATIVE else HALF_ROWS, MORE, most):
        if found.verified is None and found.rows < min(count, most, t):
            rows = sample(t, turn, min(count, most)).to(matrix.device)
            few = not found.rows and len(rows) < t
            with no_autocast(matrix.device):
                found = _compared(call, matrix, rows, dtype, few)
            found = replace(found, rows=len(rows))
    return found


def untold(why: str | None) -> bool:
    """Whether there is no verdict because the values cannot tell."""
    return why is not None and why.startswith(UNTOLD)


def _compared(call: Call, matrix: Weights, rows: Tensor, dtype: torch.dtype, few: bool) -> Verdict:
    """The verdict of some rows in a dtype, which may be too ``few`` to tell."""
    name, eps = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps
    logits = plain = None
    if isinstance(matrix, Attention):
        logits = Logits.of(matrix.problem, rows)
        weights = logits.weights
        if eps >= RELATIVE:
            plain = Logits.of(matrix.problem, rows, dtype).weights.to(weights)
    else:
        weights = matrix.tile(rows).double()
    known = None
    if call.real is not None and (logits is not None or call.met is not None):
        known = _same_weights(weights, plain, call.real.detach().index_select(-2, rows), eps)
        if known and call.met is None:
            return Verdict(True)
        if known is False and call.met is not None:
            return Verdict(False, "the weights before dropout are others")
    if call.met is not None:
        weights, logits = call.met.detach().index_select(-2, rows).double(), None
    if call.y is None:
        return Verdict(None, UNSEEN)
    made = _Output.of(call, rows, weights, plain, eps)
    if logits is not None and bool(made.empty.all()):
        return Verdict(None, f"{UNTOLD}: its rows attend to nothing")
    if not made.fits:
        parts = made.error.abs() / made.largest.clamp_min(1e-30)
        worst = float(parts.nan_to_num(torch.inf).max())
        why = f"A[rows] @ v differs from what came out by {worst:.1g} of its largest entry"
        if made.is_far:
            return Verdict(False, why)
        return Verdict(None, f"too coarse to verify in {name}: {why}, as rounding may make it")
    alike: dict[str, None] = {}
    for what, misses in () if logits is None else logits.near_misses():
        if not made.tells(misses, few):
            alike[what] = None
        if eps < RELATIVE:
            break  # the difference allowed is so small that values which tell a scale tell a mask
    if alike:
        return Verdict(None, f"{UNTOLD}: {' or '.join(alike)} would have given the same in {name}")
    return Verdict(True)


def _same_weights(weights: Tensor, plain: Tensor | None, real: Tensor, eps: float) -> bool | None:
    """Whether weights (…, n, s) are those that ran; None if that is not known."""
    s = weights.shape[-1]
    if real.shape[-1] < s or not bool(weights.any()) or bool(real[..., s:].any()):
        return None
    off = (real[..., :s].to(weights) - weights).masked_fill((weights == 0).all(-1, keepdim=True), 0)
    limit = max(RELATIVE, LAST * eps) * weights.amax(-1, keepdim=True)
    if plain is None:
        return bool((off.abs() <= limit).all())
    own = plain - weights
    close = (off.abs() <= limit + PLAIN * own.abs().amax()) | (off == 0)
    return bool(close.all()) and _in_all(off, own, weights, eps)


def _in_all(off: Tensor, own: Tensor, y: Tensor, eps: float) -> bool:
    """Whether errors are no more in all than those of the rounded formula."""
    rms = [float(x.square().mean().sqrt()) for x in (off, own, y)]
    return rms[0] <= PLAIN * rms[1] + eps * rms[2]


@dataclass(frozen=True)
class _Output:
    """What ``make`` makes of weights, y (…, n, e), and by how much the ``real`` one differs.

    The rounded formula differs by ``own``, None in float32 and float64; ``noise`` is what values
    that cancel may leave. Rows that see nothing are ``empty``.
    """

    make: Callable[[Tensor], Tensor]
    weights: Tensor
    y: Tensor
    error: Tensor
    own: Tensor | None
    empty: Tensor
    noise: Tensor
    eps: float
    rounding: float

    @staticmethod
    def of(call: Call, rows: Tensor, weights: Tensor, plain: Tensor | None, eps: float) -> _Output:
        """The output of a call, where ``weights`` (…, n, s) ought to make it."""
        s, columns, output = weights.shape[-1], call.columns or slice(None), call.y
        v = operand(call.v).detach()[..., :s, :]  # without unwritten columns
        values, finish = v.to(weights.dtype), output.finish if isinstance(output, After) else None

        def make(w: Tensor, x: Tensor = values) -> Tensor:
            mixed = _times(w[..., columns], x)
            return mixed if finish is None else finish(mixed.to(v.dtype), rows).to(weights.dtype)

        whole = output.output if isinstance(output, After) else output
        assert whole is not None
        real = whole.detach().index_select(-2, rows).to(weights.dtype)
        empty, away = (weights == 0).all(-1, keepdim=True), 0.0
        if finish is not None:
            lost = empty.any(-3) & real.isnan().all(-1, keepdim=True)  # NaN of one head is in all
            empty = empty.all(-3) | lost
        y = make(weights)
        same, own = empty | (real == y) | (real.isnan() & y.isnan()), None
        if plain is not None:
            own = _finite(make(plain, values) - y).masked_fill(empty, 0)
            away = float((plain - weights).nan_to_num(0).abs().sum(-1).amax()) / 2
        error = (real - y).masked_fill(same, 0)
        noise = CANCELLED * eps * _finite(values).abs().amax()
        return _Output(make, weights, _finite(y), error, own, empty, noise, eps, away)

    @cached_property
    def largest(self) -> Tensor:
        """The largest entry of each head."""
        return self.y.masked_fill(self.empty, 0).abs().amax((-2, -1), keepdim=True)

    @cached_property
    def limit(self) -> Tensor:
        """What each entry may differ by."""
        more = 0.0 if self.own is None else PLAIN * self.own.abs().amax((-2, -1), keepdim=True)
        return max(RELATIVE, LAST * self.eps) * self.largest + self.noise + more

    @cached_property
    def fits(self) -> bool:
        """Whether rounding explains all differences."""
        close = bool((self.error.abs() <= self.limit).all())
        return close and (self.own is None or _in_all(self.error, self.own, self.y, self.eps))

    @property
    def is_far(self) -> bool:
        """Whether rounding explains no such difference."""
        return not bool((self.error.abs() <= 2 * self.limit).all())

    def tells(self, misses: tuple[Callable[[], Tensor], ...], few: bool) -> bool:
        """Whether it is nearer to y than to what other weights give, from near to far.

        Those count whose weights differ by more than rounding first. If none do, none has to be
        told, unless there are only a ``few`` rows, in which they may not show.
        """
        other = self.weights
        for miss in misses:
            other = miss()
            apart = float((other - self.weights).nan_to_num(0).abs().sum(-1).amax()) / 2
            if apart > max(RELATIVE, self.eps) + self.rounding:
                break
        else:
            if not few:
                return True
        way = _finite(self.make(other) - self.y).masked_fill(self.empty, 0)
        least = LAST * torch.finfo(way.dtype).eps * self.largest
        if not bool((way.abs() > least).any()):
            return False
        gone, unit = way * _finite(self.error), UNIT * self.eps * self.y
        noise = gone.sum(-1).square().sum() + (way * unit).square().sum()
        return bool(gone.sum().abs() + DEVIATIONS * noise.sqrt() < way.square().sum() / 2)


@dataclass(frozen=True)
class Logits:
    """z (…, n, s) = dot + bias where ``open``, −∞ elsewhere, of some rows of a problem."""

    dot: Tensor
    bias: Tensor | None
    open: Tensor
    sinks: Tensor | None

    @staticmethod
    def of(problem: Problem, rows: Tensor, dtype: torch.dtype | None = None) -> Logits:
        """The logits of some rows (n,), of which each step is rounded to ``dtype``."""
        p, s = problem.ready(), problem.geometry.s
        dtype = dtype or p.compute_dtype
        dot = p.scaled(taken(p.q, rows).to(dtype), p.k.to(dtype))
        shape, bias, is_open = (*p.geometry.lead, len(rows), s), p.bias_tile(rows), p.allow(rows)
        is_open = dot.new_ones(1, 1, dtype=torch.bool) if is_open is None else is_open
        if bias is not None:
            hidden = bias <= HIDDEN
            is_open, bias = is_open & ~hidden, bias.masked_fill(hidden, 0).to(dtype)
        sinks = None if p.sinks is None else p.sinks.to(dtype)
        sinks = sinks if sinks is None or not sinks.ndim else sinks[..., None, None]
        is_open = is_open.expand(*is_open.shape[:-2], *shape[-2:])
        return Logits(dot.expand(shape), bias, is_open, sinks)

    @property
    def weights(self) -> Tensor:
        """The weights (…, n, s); rows in which all is hidden are zero."""
        z = self.dot if self.bias is None else self.dot + self.bias
        z = z.masked_fill(~self.open, -torch.inf)
        if self.sinks is None:
            return z.softmax(-1).masked_fill(~self.open.any(-1, keepdim=True), 0)
        return torch.cat([z, self.sinks.expand(*z.shape[:-1], 1)], -1).softmax(-1)[..., :-1]

    def near_misses(self) -> Iterator[tuple[str, tuple[Callable[[], Tensor], ...]]]:
        """What other arguments would make of the same queries and keys, from near to far."""

        def other(**changed: Tensor | None) -> Callable[[], Tensor]:
            return lambda: replace(self, **changed).weights  # type: ignore[arg-type]

        yield "another scale", tuple(other(dot=x * self.dot) for x in SCALED)
        if self.bias is not None:
            yield "no bias", (other(bias=None),)
        for steps in (1, -1):
            for one, found in ((False, self.open), (True, ~self.open)):
                moved = found.roll(steps, -1)
                moved[..., 0 if steps > 0 else -1] = False
                mask = self.open & ~moved if one else self.open | moved
                if bool((mask != self.open).any()):
                    yield "another mask", (other(open=mask),)


def _times(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (…, h, n, s) @ v (…, g, s, e), consecutive query heads sharing a value head."""
    if weights.ndim >= 4 and v.ndim >= 3 and v.shape[-3] not in (1, weights.shape[-3]):
        mixed = weights.unflatten(-3, (v.shape[-3], -1)).flatten(-3, -2) @ v
        return mixed.unflatten(-2, (-1, weights.shape[-2])).flatten(-4, -3)
    return weights @ v


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0, 0, 0)


def sample(t: int, turn: int, count: int = ROWS) -> Tensor:
    """Up to ``count`` of t rows: the last, and others that change from call to call."""
    if count >= t:
        return torch.arange(t)
    golden = 0.6180339887
    picked = {t - 1} | {int((t - 1) * ((turn * count + n) * golden % 1)) for n in range(1, count)}
    return torch.tensor(sorted(picked))
