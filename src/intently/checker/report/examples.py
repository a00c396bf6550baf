"""The smallest example of a finding: weights as they should be beside those that were measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from intently.checker.judging.intent import Intent
from intently.checker.measuring.attention import AXES, Attention
from intently.checker.report.finding import Example, Finding

ROWS, COLUMNS = 8, 10
"""The largest example that is shown."""
APART = 1e-6
"""Weights that differ by less are the same."""


def with_examples(
    findings: Iterable[Finding], a: Attention, intent: Intent, bias: Tensor | None
) -> tuple[Finding, ...]:
    """The findings, each with the weights that show it, where weights do."""
    return tuple(shown(x, _mended(x.name, a, intent, bias), a.weights) for x in findings)


def shown(x: Finding, expected: Tensor | None, found: Tensor) -> Finding:
    """A finding, if it is a mistake, with its place in the weights that differ."""
    if x.kind != "mistake" or x.example or expected is None or expected.shape != found.shape:
        return x
    cell, example = around(x.cell, expected, found)
    return replace(x, cell=cell, example=example)


def _mended(name: str, a: Attention, intent: Intent, bias: Tensor | None) -> Tensor | None:
    """The weights (b, h, t, s) with one mistake mended; None where the scores are not known."""
    unshown = name.startswith(("rota", "keys-not"))
    if unshown or a.product is None or a.slope is None or a.added is None:
        return None
    slope, masks = a.slope, name.startswith(("mask", "causal", "window", "padding", "lengths"))
    slope = slope * a.width**-0.5 / a.scale if "scale" in name and a.scale is not None else slope
    added = a.added.nan_to_num(0.0)
    if bias is not None and name.startswith("bias"):
        added = bias
    elif name in ("mask-too-weak", "mask-boolean-added") or a.axis not in ("keys", "none"):
        added = torch.zeros_like(added)
    elif name == "bias-sign":
        added = -added
    seen = intent.allowed if masks or name == "softcap-after-mask" else a.shown
    axis = "keys" if name.startswith(("softmax-over", "not-normalised")) else a.axis
    return formula(replace(a, slope=slope, added=added, axis=axis), a.product, seen)


def formula(a: Attention, product: Tensor, seen: Tensor) -> Tensor:
    """The weights (b, h, t, s) that measured scores make of products of queries and keys."""
    assert a.slope is not None and a.added is not None
    z = a.slope.to(product.dtype)[:, None, None] * product
    z = a.softcap * torch.tanh(z / a.softcap) if a.softcap is not None else z
    z = (z + a.added.nan_to_num(0.0).to(product.dtype)).masked_fill(~seen, -torch.inf)
    if a.sink is not None:
        sink = a.sink.to(product.dtype)[:, None, None].expand_as(z[..., :1])
        return torch.cat([z, sink], -1).softmax(-1)[..., :-1]
    if a.axis in ("keys", "none"):
        return z.softmax(-1).nan_to_num(0.0)
    return (z - z.logsumexp(AXES[a.axis], keepdim=True)).exp().nan_to_num(0.0)


def around(
    cell: tuple[int, ...], expected: Tensor, found: Tensor
) -> tuple[tuple[int, ...], Example | None]:
    """The block around a cell, or around the first one that is clearly off; None if none is."""
    off = (expected - found).abs().nan_to_num(0.0, 0.0)
    if not float(off.max()) >= APART:  # none is off, or what was found is no number
        return cell, None
    cell = tuple((off > 0.5 * off.max()).nonzero()[0].tolist()) if len(cell) != 4 else cell
    b, h, i, j = cell
    rows, columns = _near(i, off.shape[-2], ROWS), _near(j, off.shape[-1], COLUMNS)
    right, wrong = (
        tuple(tuple(round(w, 6) for w in x[b, h, r, columns].tolist()) for r in rows)
        for x in (expected, found)
    )
    return cell, Example(right, wrong, tuple(rows), tuple(columns), (i, j))


def _near(at: int, size: int, most: int) -> range:
    """At most so many positions around one."""
    first = max(0, min(at - most // 2, size - most))
    return range(first, min(size, first + most))
