"""The weights of a function of q, k and v, read from what it gives for values that are 0 and 1.

However it comes to its output, in blocks, by running sums or in one kernel: where each row is a
sum of values, what it gives for ones at one key are the weights of that key, and differences of
their logarithms along a row are those of the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.measuring.after import Outcome, Rows
from intently.checker.measuring.attention import Attention, attentions, followed
from intently.checker.measuring.flow import inputs_of, operand
from intently.checker.measuring.run import Run, memory
from intently.checker.measuring.scores import is_product
from intently.observe.trace.graph import SOFTMAX, Node

EXPONENTIALS = frozenset((*SOFTMAX, "exp", "exp2", "logsumexp"))
CLOSE = 1e-6
"""By how much weights times values may differ from the output, relative."""


def measured(subject: Subject) -> tuple[Run, Tensor, list[Attention]]:
    """A run of a subject, what came out, and every attention that it met, in order."""
    try:
        return _measured(subject)
    except RuntimeError:  # code that overwrites what its gradients need, and asks for none
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            return _measured(subject)


def _measured(subject: Subject) -> tuple[Run, Tensor, list[Attention]]:
    run, made = followed(subject)
    with subject.running():  # gradients, too
        found = attentions(run, made, subject.batch)
        if len(found) != 1 or _in_parts(found[0], subject):
            one = by_values(run, made, subject)
            if one is not None:
                run.loose.clear()
                found = [one]
    return run, made, found


def _in_parts(a: Attention, subject: Subject) -> bool:
    """Whether what was measured is a part: exponentials, some keys, weights without scores.

    Queries of several heads may stand in one axis, too.
    """
    (_, h, t, s), sizes = a.weights.shape, [subject.inputs[n].shape for n in subject.of("q", "k")]
    joined = len(sizes) == 2 and not ({h, t} <= {*sizes[0], 1} and s in sizes[1])
    return joined or a.divided or a.scores is None or a.kind == "" or a.after is None


@torch.enable_grad()
def by_values(run: Run, made: Tensor, subject: Subject) -> Attention | None:
    """The attention of a function of q, k and v; None if its output is no sum of values."""
    names = [subject.of(r) for r in ("q", "k", "v")]
    inputs = [(n, x) for n, x in run.results.items() if n.name == "given"]
    given = {run.input_names.get(memory(x)): (n, x) for n, x in inputs}
    if any(len(n) != 1 or n[0] not in given for n in names) or subject.returns != "output":
        return None
    (nq, q), (nk, k), (nv, v) = (given[n[0]] for n in names)
    if not q.ndim == k.ndim == v.ndim == made.ndim:
        return None
    for axes in _axes(subject.layout, v.ndim):
        q4, k4, v4, y4 = (_laid(x, axes) for x in (q, k, v, made))
        made_of = None
        with suppress(Exception):  # code of its own layout
            made_of = _weights(subject, names[2][0], q4, k4, v4, y4, axes)
        if made_of is not None:
            break
    else:
        return None
    w, own = made_of
    b, _, t, _ = w.shape
    k5, v5 = k4[:, own], v4[:, own]
    place = ", ".join(x[0] for x in names)
    operands = [operand(run, x, n.view, frozenset()) for x, n in ((q4, nq), (k5, nk), (v5, nv))]
    found = Attention("", place, w, y4, operands[2], None, q=operands[0], k=operands[1])
    traced = made.requires_grad and not any(n.name in EXPONENTIALS for n in run.results)
    found.kind = "features" if traced or _keys_first(run, {nk}, {nv}) else ""
    _scored(found, w, (q4 @ k5.mT).detach(), subject.precision.same)
    found.after = Outcome(made, None, plain=True, row_axes=(axes[2],))
    found.inputs = {r: frozenset(n) for r, n in zip("qkv", names)}
    found.inputs["weights"] = found.inputs["q"] | found.inputs["k"]
    found.rows = Rows(axes[0] if axes[0] >= 0 else None, (axes[2],), (b, t))
    return found


def _keys_first(run: Run, k: set[Node], v: set[Node]) -> bool:
    """Whether keys met values before queries did."""
    products = [n for n in run.results if is_product(n)]
    made_of = ([{*inputs_of(run, [x])} for _, x in n.sources] for n in products)
    return any(k in both and v in both for both in made_of)


def _axes(layout: str, n: int) -> Iterator[tuple[int, ...]]:
    """The axes of the batch, heads, positions and numbers; -1 for one that is not there."""
    usual = {2: ("td",), 3: ("btd",), 4: ("bhtd", "bthd")}.get(n, ())
    stated = layout.replace("c", "d").replace("e", "d")
    for letters in (stated,) if len(layout) == n else usual:
        if {"t", "d"} <= set(letters) <= set("bhtd"):
            yield tuple(letters.find(x) for x in "bhtd")


@torch.no_grad()
def _weights(
    subject: Subject, name: str, q: Tensor, k: Tensor, v: Tensor, y: Tensor, axes: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """What comes out (b, h, t, s) of values that are one key each, and the key head of each head.

    None if what came out is no sum of values.
    """
    (b, h, t, _), (_, groups, s, d) = y.shape, v.shape
    if q.shape[:3] != (b, h, t) or k.shape[:3] != (b, groups, s) or h % groups or len(v) != b:
        return None
    parts = []
    for first in range(0, s, d):  # as many at once as are wide
        ones = torch.zeros_like(subject.inputs[name])
        n = min(d, s - first)
        _laid(ones, axes)[:, :, range(first, first + n), range(n)] = 1.0
        parts.append(_laid(subject.output(**{name: ones}), axes)[..., :n])
    w = torch.cat(parts, -1)
    close = max(CLOSE, 10 * subject.precision.same) * float(y.abs().max())
    for own in (torch.arange(h) // (h // groups), torch.arange(h) % groups):
        if float((w @ v[:, own] - y).abs().max()) <= close:
            return w, own
    return None


def _laid(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A tensor as (b, h, t, d)."""
    y = x.permute([a for a in axes if a >= 0])
    for at in (0, 1):
        y = y.unsqueeze(at) if axes[at] < 0 else y
    return y


def _scored(found: Attention, w: Tensor, product: Tensor, same: float) -> None:
    """Scale and bias, from the logarithms of weights and the product of q and k."""
    seen = w > 0
    if bool((w < 0).any()):
        return
    z = w.clamp(min=1e-300).log().masked_fill(~seen, 0.0)
    n = seen.sum(-1, keepdim=True).clamp(min=1)

    def centred(x: Tensor) -> Tensor:
        x = x.masked_fill(~seen, 0.0)
        return (x - x.sum(-1, keepdim=True) / n).masked_fill(~seen, 0.0)

    left, right = centred(z), centred(product)
    if len(w) > 1:  # what the rows of the batch have in common is a bias
        both = seen[1:] & seen[:-1]
        left, right = (torch.where(both, x.diff(dim=0), 0.0) for x in (left, right))
    slope = (left * right).sum((0, 2, 3)) / (right * right).sum((0, 2, 3)).clamp(min=1e-300)
    off = (left - slope[:, None, None] * right).abs().max()
    if not float(off) <= max(CLOSE, 10 * same) * float(left.abs().max()):
        return
    made = slope[:, None, None] * product + centred(z - slope[:, None, None] * product)
    found.scores = made.masked_fill(~seen, -torch.inf)  # up to a bias of whole rows
    found.product, found.slope = product, slope
    found.added = (z - slope[:, None, None] * product).masked_fill(~seen, torch.nan)
    found.kind = "dot"
