"""Along which axis weights are a whole, and what is missing where they are none along the keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from intently.checker.measuring.attention import SLACK, Attention
from intently.checker.report.finding import Finding

CLOSE = 1e-4
SAME = 1e-9


def whole_findings(a: Attention) -> list[Finding]:
    """What is wrong with the sums of weights over keys."""
    where = a.where
    if a.kind == "features" and a.axis == "queries":
        return []
    if a.axis == "none":
        if (sink := _sink(a)) is not None:
            return [sink]
        sums = a.weights.sum(-1)
        said = (
            f"weights sum to {float(sums.min()):.3g} … {float(sums.max()):.3g} over keys, not to 1"
        )
        return [Finding("not-normalised", said, where=where)]
    if a.axis != "keys":
        over = next(x for x in ("batch", "heads", "queries") if x in a.axis)
        said = f"weights sum to 1 over {a.axis}, not over keys" + " alone" * ("keys" in a.axis)
        return [Finding(f"softmax-over-{over}", said, where=where)]
    if a.soft is not None and a.soft.shape == a.weights.shape:
        after = bool(a.v.sources) and all(x.mixes for x in a.v.sources)
        return _changed(a.weights, a.soft, where, a.kind, after)
    return _sums(a)


def repeated(a: Attention, every: Sequence[Attention]) -> list[Finding]:
    """That all attentions of a line of code weigh alike, where there are several."""
    w, others = a.weights, [x for x in every if x.line == a.line and x is not a]
    alike = all(x.signature == a.signature and w.shape == x.weights.shape for x in others)
    even = float((w - w.mean(-1, keepdim=True)).abs().max()) < CLOSE
    if not others or even or not alike or a.line in a.signature:  # of no known parameters
        return []
    if not max(float((x.weights - w).abs().max()) for x in others) <= SAME:
        return []
    said = f"its weights are those of all {len(others) + 1} attentions that this line makes"
    return [Finding("attention-repeated", said, where=a.where, line=a.line)]


def _changed(w: Tensor, soft: Tensor, where: str, kind: str, after: bool) -> list[Finding]:
    """What became of the weights between the softmax and the values."""
    if bool(w.isinf().any()):
        said = "weights of −∞ meet the values: keys are hidden after the softmax"
        return [Finding("mask-after-softmax", said, where=where)]
    low = w - soft < -50
    if bool(low.any()):
        said = f"weights of {float(w.min()):.4g} meet the values: keys are hidden after the softmax"
        at = tuple(low.nonzero()[0].tolist())
        return [Finding("mask-after-softmax", said, where=where, cell=at)]
    some = soft > 1e-12
    ratio = torch.where(some, w / soft.clamp(min=1e-300), 1.0)
    sums = w.sum(-1)
    one = float((sums - 1)[(w != 0).any(-1)].abs().max()) < CLOSE if bool((w != 0).any()) else True
    gone = some & (w == 0)
    rest = ratio[some & ~gone]
    plain = not len(rest) or float((rest - 1).abs().max()) < CLOSE
    if bool(gone.any()) and plain and not one:
        said = "the mask is applied after the softmax, and rows sum to less than 1"
        return [Finding("mask-after-softmax", said, where=where)]
    if one or bool(gone.any()) or not len(rest):
        return []
    constant = float(rest.mean()) if len(rest) else 1.0
    if float((rest - constant).abs().max()) < CLOSE * abs(constant):
        if abs(constant - 1) > 1e-2 and kind and not after:
            said = f"weights are multiplied by {constant:.4g} after the softmax"
            return [Finding("not-normalised", said, where=where)]
        return []
    said = "weights are changed between the softmax and the values, as gates do"
    return [Finding("gated", said, "convention", where)]


def _sink(a: Attention) -> Finding | None:
    """A number by head that takes what all rows lack, as a sink; None if there is none."""
    w, z, sums = a.weights, a.scores, a.weights.sum(-1)
    if z is None or z.shape != w.shape or not bool((sums[(w != 0).any(-1)] < 1 + CLOSE).all()):
        return None
    left = (1 - sums).clamp(min=1e-300).log() - sums.clamp(min=1e-300).log()
    left = left + z.masked_fill(w == 0, -torch.inf).logsumexp(-1)
    by_head = left.transpose(0, 1).flatten(1)
    mean = by_head.mean(1, keepdim=True)
    if not float((by_head - mean).abs().max()) < 1e-3:
        return None
    a.sink = mean[:, 0]
    told = ", ".join(f"{float(x):.3g}" for x in mean[:4, 0])
    said = f"a sink of {told} by head takes weight from every row"
    return Finding("sink", said, "convention", a.where)


def _sums(a: Attention) -> list[Finding]:
    w = a.weights
    if bool(w.isnan().any()):
        return []
    sums = w.sum(-1)[(w != 0).any(-1)]
    slack = CLOSE if a.normal is None or a.normal.sure else SLACK
    if not len(sums) or float((sums - 1).abs().max()) < slack:
        return []
    if (sink := _sink(a)) is not None:
        return [sink]
    low, high = float(sums.min()), float(sums.max())
    if a.kind == "" and a.normal is not None and a.normal.changes:
        said = "weights are changed between the softmax and the values, as mixing of heads does"
        return [Finding("gated", said, "convention", a.where)]
    if a.normal is not None and a.normal.sure:
        said = f"rows sum to {low:.3g} … {high:.3g}: something beside the keys takes part"
        return [Finding("sink", said, "convention", a.where)]
    said = f"weights sum to {low:.3g} … {high:.3g} over keys, not to 1"
    return [Finding("not-normalised", said, where=a.where)]
