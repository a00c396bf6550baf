"""Other numbers than those of the example: half types, large scores, more keys than queries.

In half types, each attention is held against the formula that was measured, written plainly in
that type. The bound is that of kernels: the largest error is at most twice that of the plain
formula, and 8 steps of the largest output. Sums that lose numbers show in long inputs only, so the
example is made longer where nothing fixes its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Role, Subject, raised
from intently.checker.calling.understanding import cast, copied, duplicate
from intently.checker.examined import Examination
from intently.checker.judging.biases import off_rows
from intently.checker.judging.intent import reach
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.by_values import measured
from intently.checker.precision import precision_of
from intently.checker.properties.trial import Outcome, Property, named, part
from intently.checker.report.examples import around, formula
from intently.checker.report.finding import Finding
from intently.core.masks import Mask

ROLES: tuple[Role, ...] = ("q", "k", "v")
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LONG = 512
"""Positions of a longer example."""
MOST = 1e3
"""Outputs beyond this may not fit a half type, and tell nothing."""
CLOSE = 0.3
"""What differs by more is another function in the type, not the same with errors."""
CLEAR = 0.99
"""The weight from which a key counts as the one that a row attends."""
LARGE = 100.0
"""By what queries and keys are multiplied."""
MORE = 3
"""How many keys come before those of the queries' own steps."""

# --- half types ---------------------------------------------------------------------------------


def half_types(whole: Examination, first: Tensor) -> Iterator[Property]:
    """The subject in each half type, where it runs in it."""
    told = bool(first.isfinite().all()) and float(first.abs().amax()) <= MOST
    if whole.subject.rounded or not told or whole.subject.foreign:
        return
    long = _longer(whole.subject)
    exact: list[Attention] = []
    with suppress(Exception):  # code with a length of its own
        exact = [] if long is None else measured(long)[2]
    for name, dtype in TYPES.items():
        try:
            found = _in_type(whole.subject, first, dtype)
            if found is True and long is not None and len(exact) == 1:
                found = _precise(exact[0], long, dtype)
        except Exception as error:  # code that does not run in the type
            found = f"raises {raised(error)}"
        if isinstance(found, Finding):
            found = Property(name, False, found.said, (found,))
        yield named(name, found)


def _in_type(subject: Subject, first: Tensor, dtype: torch.dtype) -> Outcome:
    """Whether the output in a type is finite, and that of the same function."""
    y = shortened(subject, dtype).output()
    lost = ~y.isfinite() & first.isfinite() if y.shape == first.shape else torch.zeros(1)
    if bool(lost.any()):
        at, name = tuple(lost.nonzero()[0].tolist()), str(dtype).removeprefix("torch.")
        return Finding("half-overflow", f"in {name} the output is not finite at {at}", "hazard")
    if not part(y.double(), first) <= CLOSE:
        return "its numbers depend on the type otherwise than by rounding"
    return True


def _precise(a: Attention, long: Subject, dtype: torch.dtype) -> Outcome:
    """Whether a function of many keys is as exact in a type as the plain formula; True: untold."""
    made = shortened(long, dtype).output()
    given = [long.inputs[long.of(x)[0]] for x in ROLES]
    if a.scale is None or a.soft is not None or a.rotation or a.axis != "keys":
        return True
    biased = a.added is not None and float(off_rows(a.added, a.shown).abs().max()) > 1e-6
    if biased or given[1].shape[1] != given[0].shape[1]:
        return True
    scaled = replace(a, slope=a.scale, added=torch.zeros(1, 1, 1, 1))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return formula(scaled, q @ k.mT, a.shown) @ v

    rounded = [x.to(dtype) for x in given]
    right, exact = (plain(*(x.double() for x in y)) for y in (rounded, given))
    if made.shape != right.shape or part(long.output().double(), exact) > 1e-3:
        return True  # something else is done, too
    least, off = (float((y.double() - right).abs().max()) for y in (plain(*rounded), made))
    if off <= 2 * least + 8 * torch.finfo(dtype).eps * float(right.abs().max()):
        return True
    said = f"in {str(dtype).removeprefix('torch.')} over {LONG} keys, the output is off by "
    said += f"{off:.2g}; the plain formula by {least:.2g}"
    return Finding("half-imprecise", said, "hazard", a.where)


def shortened(subject: Subject, dtype: torch.dtype) -> Subject:
    """The subject with parameters and inputs in another type."""
    call = copied(subject.call, dtype)
    return replace(
        subject,
        call=call,
        owner=call,
        module=call if subject.module is not None else None,
        inputs={n: cast(x, dtype) for n, x in subject.inputs.items()},
        precision=precision_of(dtype),
        widened=False,
    )


def rounded(subject: Subject, dtype: torch.dtype) -> Subject:
    """The subject as it is, with parameters and inputs that a shorter type can hold."""

    def held(x: Any) -> Any:
        return cast(cast(x, dtype), x.dtype) if isinstance(x, Tensor) else x

    subject = replace(subject, inputs={n: held(x) for n, x in subject.inputs.items()})
    if not isinstance(subject.call, nn.Module):
        return subject
    made = duplicate(subject.call, subject.call.training)
    with torch.no_grad():
        for x in made.parameters():
            x.copy_(held(x))
    return replace(subject, call=made, owner=made, module=made)


# --- large scores -------------------------------------------------------------------------------


def large_scores(whole: Examination) -> Property:
    """Each attention attends to the key with the largest score, and no hidden one."""
    subject, name = whole.subject, "large scores"
    larger = {
        n: x * LARGE for n in subject.of("q", "k") if (x := subject.inputs[n]).is_floating_point()
    }
    if len(larger) < 2 or any(f.kind == "mistake" for f in whole.findings):
        return Property(name, None)
    try:
        found = measured(replace(subject, inputs=subject.inputs | larger))[2]
    except Exception:  # whatever the code does with large numbers
        return Property(name, None)
    both = ((one.attention, now) for one, now in zip(whole.attentions, found))
    tried = [
        (a, now.weights, now.product)
        for a, now in both
        if a.slope is not None and a.axis == "keys" and a.soft is None and now.product is not None
    ]
    wrong = tuple(filter(None, starmap(_at_large_scores, tried)))
    if wrong:
        return Property(name, False, wrong[0].said, wrong)
    return Property(name, True if tried and len(found) >= len(whole.attentions) else None)


def _at_large_scores(a: Attention, w: Tensor, product: Tensor) -> Finding | None:
    """What is wrong with the weights of an attention whose scores are large."""
    scores = "with scores of about 10,000"
    if not product.shape == w.shape == a.weights.shape:
        return None
    expected = formula(a, product, a.shown)
    clear = expected.amax(-1, keepdim=True) > CLEAR
    lost = (clear & ~w.isfinite()).nonzero()
    if len(lost):
        b, h, i, j = lost[0].tolist()
        said = f"{scores}, the output of query {i} is not finite (batch row {b}, head {h})"
        return Finding("large-scores", said, "hazard", a.where, (b, h, i, j))
    hidden = (~a.shown & (w > 1 - CLEAR)).nonzero()
    wrong = hidden if len(hidden) else (clear & ((expected - w).abs() > CLEAR / 2)).nonzero()
    if not len(wrong):
        return None
    at = tuple(wrong[0].tolist())
    cell, example = around(at, expected, torch.where(w.abs() < 1e-9, 0.0, w))
    slug, said = "large-scores", f"query {at[2]} does not attend to the highest-scoring key"
    if len(hidden):
        slug, said = "mask-too-weak", f"query {at[2]} attends to hidden key {at[3]}:"
        said += " the number that the mask adds is too small"
    return Finding(slug, f"{scores}, {said}", "hazard", a.where, cell, example=example)


# --- other lengths: functions of q, k and v without an example of their own ---------------------


def _longer(subject: Subject) -> Subject | None:
    """A function of q, k and v with random inputs of many positions; None for anything else."""
    given = [n for n, x in subject.inputs.items() if x is not None]
    only = _plain(subject) and set(given) == set(subject.of(*ROLES))
    if not only or subject.inputs[subject.main].ndim != 4 or subject.holds_parameters:
        return None
    return _of_lengths(subject, dict.fromkeys(given, LONG), 6)


def with_more_keys(subject: Subject, mask: Any) -> Subject | None:
    """The subject with more keys than queries, and with more of both than a window holds."""
    if not isinstance(mask, Mask) or not _plain(subject) or len(subject.contents) != 3:
        return None
    sizes = {}
    for (name,) in map(subject.of, ROLES):
        t, more = subject.inputs[name].shape[subject.time(name)], name not in subject.of("q")
        sizes[name] = max(t, reach(mask) + 3) + MORE * more
    return _of_lengths(subject, sizes, 7)


def _plain(subject: Subject) -> bool:
    """Whether queries, keys and values are one input each."""
    return all(len(subject.of(role)) == 1 for role in ROLES)


def _of_lengths(subject: Subject, sizes: dict[str, int], seed: int) -> Subject:
    """The subject with random inputs of other lengths."""
    draw, made = torch.Generator().manual_seed(seed), dict(subject.inputs)
    for n, size in sizes.items():
        shape = list(made[n].shape)
        shape[subject.time(n)] = size
        made[n] = torch.randn(shape, generator=draw).to(made[n].dtype)
    return replace(subject, inputs=made)


def corrected(findings: list[Finding], more: list[Finding]) -> list[Finding]:
    """What was found, and what more keys than queries tell besides."""
    if any(f.name == "window-missing" for f in more):
        findings = [f for f in findings if f.name != "window-off-by-one"]
    known = {f.name for f in findings}
    for f in more:
        if f.name in ("mask-top-left", "window-missing") and f.name not in known:
            kind = "hazard" if f.name == "mask-top-left" else f.kind
            said = f"with more keys than queries, {f.said}"
            findings = [*findings, replace(f, kind=kind, said=said, example=None)]
    return findings
