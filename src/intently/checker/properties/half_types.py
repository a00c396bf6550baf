"""Half types: each attention against the formula that was measured, written plainly in that type.

The bound is that of kernels: the largest error is at most twice that of the plain formula, and 8
steps of the largest output. Sums that lose numbers show in long inputs only, so the example is
made longer where nothing fixes its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from intently.checker.calling.raising import raised
from intently.checker.calling.subject import Subject
from intently.checker.comparing.likeness import Whole
from intently.checker.computing.added import off_rows
from intently.checker.computing.cores import Examined
from intently.checker.computing.inside import INSIDE
from intently.checker.computing.measuring import Weights, shared
from intently.checker.computing.reading import joined
from intently.checker.computing.scores_found import Scores
from intently.checker.computing.tracing import held_by
from intently.checker.properties.axes import axis_of_time
from intently.checker.properties.large import RESIDUAL
from intently.checker.properties.shorter import shortened
from intently.checker.properties.trial import Property, part
from intently.checker.report.examples import formula
from intently.checker.report.finding import Finding

TYPES = (torch.bfloat16, torch.float16)
LONG = 512
"""Positions of a longer example."""
MOST = 1e3
"""Outputs beyond this may not fit a half type, and tell nothing."""
NUMBERS = 4_000_000
"""Parameters from which longer examples take too long."""
OPERATIONS = 20_000
"""Operations of a call from which longer examples are left out."""
CLOSE = 0.3
"""What differs by more is another function in the type, not the same with errors."""


def half_types(whole: Whole, first: Tensor) -> Iterator[Property]:
    """The subject in each half type, where it runs in it."""
    told = bool(first.isfinite().all()) and float(first.abs().amax()) <= MOST
    if whole.subject.rounded or not told:
        return
    long = _longer(whole)
    for dtype in TYPES:
        name = str(dtype).removeprefix("torch.")
        try:
            yield _in_type(whole, long, first, dtype, name)
        except Exception as error:  # code that does not run in the type
            said = f"raises {raised(error)}"
            yield Property(name, None, said)


def _in_type(
    whole: Whole, long: Subject | None, first: Tensor, dtype: torch.dtype, name: str
) -> Property:
    short = shortened(whole.subject, dtype)
    y = short.output()
    lost = ~y.isfinite() & first.isfinite() if y.shape == first.shape else None
    if lost is not None and bool(lost.any()):
        said = f"in {name} the output is not finite at {tuple(lost.nonzero()[0].tolist())}"
        return Property(name, False, said, (Finding("half-overflow", said, "hazard"),))
    if not part(y.double(), first) <= CLOSE:
        return Property(name, None, "its numbers depend on the type otherwise than by rounding")
    tried = 0
    longer = None if long is None else shortened(long, dtype)
    for core in whole.cores:
        error = None if longer is None or long is None else _over_many(core, whole, long, longer)
        error = error or _error(core, whole, short)
        tried += error is not None
        if error is None or error.found <= error.bound:
            continue
        said = f"in {name} over {error.length} keys, the output is off by {error.found:.2g}; "
        said += f"the plain formula by {error.plain:.2g}"
        found = Finding("half-imprecise", said, "hazard", core.where)
        return Property(name, False, said, (found,))
    return Property(name, True if tried else None)


@dataclass(frozen=True)
class _Error:
    """Largest errors over a number of keys: of what was found, and of the plain formula."""

    found: float
    plain: float
    bound: float
    length: int


def _error(core: Examined, whole: Whole, short: Subject) -> _Error | None:
    """The errors of one attention in a half type; None where they cannot be told."""
    if core.scores is None or core.weights is None or not _fits(core.scores, core.weights):
        return None
    scores, sizes = core.scores, core.weights.w.shape[-2:]
    exact = _parted(core, whole, whole.subject, *sizes)
    made = _parted(core, whole, short, *sizes)
    if exact is None or made is None:
        return None
    right = formula(scores, scores.score(*exact[:2])) @ exact[2]
    return _compared(*made, scores) if part(exact[3], right) <= 1e-3 else None


def _over_many(core: Examined, whole: Whole, long: Subject, longer: Subject) -> _Error | None:
    """The errors over many keys; None unless the same formula gives the outputs in float64."""
    if core.scores is None or core.weights is None or not _fits(core.scores, core.weights):
        return None
    if not _extends(core.scores):
        return None
    scores = _extended(core.scores, LONG)
    with suppress(Exception):  # code with a length of its own
        with _Counted():  # a loop over blocks takes minutes to follow
            long.output()
        exact = _parted(core, whole, long, LONG, LONG)
        made = _parted(core, whole, longer, LONG, LONG)
        if exact is None or made is None:
            return None
        right = formula(scores, scores.score(*exact[:2])) @ exact[2]
        if part(exact[3], right) <= 1e-3:  # no window, say, that short examples do not reach
            return _compared(*made, scores)
    return None


class _Counted(TorchDispatchMode):
    """Raises where a call has too many operations."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count += 1
        if self._count > OPERATIONS:
            raise RuntimeError("too many operations")
        return func(*args, **(kwargs or {}))


def _fits(scores: Scores, weights: Weights) -> bool:
    """Whether all of the weights are known: one softmax over keys, in one call."""
    one = len(weights.calls) < 2 and weights.values.reading.name != INSIDE
    known = scores.axis == "keys" and not scores.split and not scores.after
    return one and known and scores.residual <= RESIDUAL


def _parted(
    core: Examined, whole: Whole, short: Subject, t: int, s: int
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Queries, keys, values and the output of an attention in a half type."""
    assert core.weights is not None
    values, b = core.weights.values, short.batch
    r = values.reading
    raw, y = _raw(core, whole, short)
    if not raw or y is None:
        return None
    sizes = (r.heads, t, r.width), (r.key_heads, s, r.width), (r.key_heads, s, r.value_width)
    q, k, v = (view.read(x, b, *n) for x, view, n in zip(raw, r.views, sizes))
    made = joined(y, values.merged, b, r.heads, t, r.value_width)
    if made is None:
        return None
    return q, shared(k, r.heads, values.tiled), shared(v, r.heads, values.tiled), made


def _raw(core: Examined, whole: Whole, short: Subject) -> tuple[list[Tensor], Tensor | None]:
    """What queries, keys and values are read from, and what holds the output."""
    if core.operands is None:  # a function of all three, whatever it does inside
        names = short.of("q", "k", "v")
        apart = len(whole.cores) == 1 and len(names) == 3 and not short.of("past k", "past v")
        return ([short.inputs[n] for n in names], short.output()) if apart else ([], None)
    run = short.traced()
    if [x.weight for x in run.sources] != [x.weight for x in whole.found.sources]:
        return [], None
    y = short.output() if core.end is None else run.sources[core.end].entry
    return [run.sources[n].value for n in core.operands.sources], y


def _compared(q: Tensor, k: Tensor, v: Tensor, made: Tensor, scores: Scores) -> _Error:
    """The errors in the first row of the batch, which stands for all."""
    q, k, v, made = (x[:1] for x in (q, k, v, made))
    scores = replace(scores, seen=scores.seen[:1], added=scores.added[:1])
    wide = q.double(), k.double(), v.double()
    right = formula(scores, scores.score(*wide[:2])) @ wide[2]
    plain = formula(scores, scores.score(q, k)) @ v
    off = float((plain.double() - right).abs().max())
    bound = 2 * off + 8 * torch.finfo(q.dtype).eps * float(right.abs().max())
    return _Error(float((made.double() - right).abs().max()), off, bound, k.shape[-2])


# --- longer examples ----------------------------------------------------------------------------


def _longer(whole: Whole) -> Subject | None:
    """The subject with random inputs of many positions; None if it is large or takes others."""
    subject = whole.subject
    if sum(x.numel() for _, x in held_by(subject.owner)) > NUMBERS:
        return None
    given = [n for n, x in subject.inputs.items() if x is not None]
    if subject.is_tokens or set(given) != set(subject.of("q", "k", "v", "x")):
        return None
    main = subject.inputs[subject.main]
    if main.ndim < 3 or (main.ndim == 4 and subject.roles[subject.main] == "x"):
        return None
    draw = torch.Generator().manual_seed(6)
    inputs = dict(subject.inputs)
    for n in given:
        x = subject.inputs[n]
        shape = list(x.shape)
        shape[axis_of_time(x, subject.roles[n])] = LONG
        inputs[n] = torch.randn(shape, generator=draw).to(x.dtype)
    return replace(subject, inputs=inputs)


def _extends(scores: Scores) -> bool:
    """Whether what is hidden is told for any length: nothing, or what is later."""
    seen = scores.seen
    square = seen.shape[-1] == seen.shape[-2]
    causal = square and bool((seen == torch.ones_like(seen).tril()).all())
    plain = float(off_rows(scores.added, seen).abs().max()) < scores.precision.added
    return plain and scores.extra is None and (causal or bool(seen.all()))


def _extended(scores: Scores, t: int) -> Scores:
    """The same scores over more positions."""
    b, h = scores.seen.shape[:2]
    seen = torch.ones(b, h, t, t).bool()
    seen = seen if bool(scores.seen.all()) else seen.tril()
    return replace(scores, seen=seen, added=torch.zeros(b, h, t, t))
