"""Half types: each attention against the formula that was measured, written plainly in that type.

The bound is that of kernels: the largest error is at most twice that of the plain formula, and 8
steps of the largest output. Sums that lose numbers show in long inputs only, so the example is
made longer where nothing fixes its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from intently.checker.calling.raising import raised
from intently.checker.calling.subject import Subject
from intently.checker.examined import Examination
from intently.checker.judging.biases import off_rows
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.by_values import measured
from intently.checker.properties.shorter import shortened
from intently.checker.properties.trial import Property, part
from intently.checker.report.examples import formula
from intently.checker.report.finding import Finding

TYPES = (torch.bfloat16, torch.float16)
LONG = 512
"""Positions of a longer example."""
MOST = 1e3
"""Outputs beyond this may not fit a half type, and tell nothing."""
CLOSE = 0.3
"""What differs by more is another function in the type, not the same with errors."""


def half_types(whole: Examination, first: Tensor) -> Iterator[Property]:
    """The subject in each half type, where it runs in it."""
    told = bool(first.isfinite().all()) and float(first.abs().amax()) <= MOST
    if whole.subject.rounded or not told or whole.subject.foreign:
        return
    long = _longer(whole)
    exact: list[Attention] = []
    if long is not None:
        with suppress(Exception):  # code with a length of its own
            exact = measured(long)[2]
    for dtype in TYPES:
        name = str(dtype).removeprefix("torch.")
        try:
            yield _in_type(whole, exact, long, first, dtype, name)
        except Exception as error:  # code that does not run in the type
            yield Property(name, None, f"raises {raised(error)}")


def _in_type(
    whole: Examination,
    exact: list[Attention],
    long: Subject | None,
    first: Tensor,
    dtype: torch.dtype,
    name: str,
) -> Property:
    short = shortened(whole.subject, dtype)
    y = short.output()
    lost = ~y.isfinite() & first.isfinite() if y.shape == first.shape else None
    if lost is not None and bool(lost.any()):
        said = f"in {name} the output is not finite at {tuple(lost.nonzero()[0].tolist())}"
        return Property(name, False, said, (Finding("half-overflow", said, "hazard"),))
    if not part(y.double(), first) <= CLOSE:
        return Property(name, None, "its numbers depend on the type otherwise than by rounding")
    if long is None or len(exact) != 1:
        return Property(name, True)
    a = exact[0]
    made = shortened(long, dtype).output()
    error = _error(a, long, made, dtype)
    if error is None:
        return Property(name, True)
    off, plain, bound = error
    if off <= bound:
        return Property(name, True)
    said = f"in {name} over {LONG} keys, the output is off by {off:.2g}; "
    said += f"the plain formula by {plain:.2g}"
    found = Finding("half-imprecise", said, "hazard", a.where)
    return Property(name, False, said, (found,))


def _error(
    a: Attention, long: Subject, made: Tensor, dtype: torch.dtype
) -> tuple[float, float, float] | None:
    """The largest errors of a function in a type, of the plain formula, and the bound."""
    if a.q is None or a.k is None or a.slope is None or a.soft is not None or a.rotation:
        return None
    names = [long.of(x)[0] for x in ("q", "k", "v")]
    q, k, v = (long.inputs[n].to(dtype) for n in names)
    if q.ndim != 4 or k.shape[1] != q.shape[1] or a.scale is None or a.axis != "keys":
        return None
    seen = a.shown
    if a.added is not None and float(off_rows(a.added, seen).abs().max()) > 1e-6:
        return None
    scaled = replace(a, slope=a.scale, added=torch.zeros(1, 1, 1, 1))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return formula(scaled, q @ k.mT, seen) @ v

    right = plain(q.double(), k.double(), v.double())
    if made.shape != right.shape:
        return None
    exact = plain(*(long.inputs[n].double() for n in names))
    if part(long.output().double(), exact) > 1e-3:  # something else is done, too
        return None
    off = float((plain(q, k, v).double() - right).abs().max())
    bound = 2 * off + 8 * torch.finfo(dtype).eps * float(right.abs().max())
    return float((made.double() - right).abs().max()), off, bound


def _longer(whole: Examination) -> Subject | None:
    """A function of q, k and v with random inputs of many positions; None for anything else."""
    subject = whole.subject
    given = [n for n, x in subject.inputs.items() if x is not None]
    roles = ("q", "k", "v")
    if any(len(subject.of(r)) != 1 for r in roles) or set(given) != set(subject.of(*roles)):
        return None
    if subject.inputs[subject.main].ndim != 4 or subject.holds_parameters:
        return None
    draw = torch.Generator().manual_seed(6)
    inputs = dict(subject.inputs)
    for n in given:
        x = subject.inputs[n]
        shape = list(x.shape)
        shape[subject.time(n)] = LONG
        inputs[n] = torch.randn(shape, generator=draw).to(x.dtype)
    return replace(subject, inputs=inputs)
