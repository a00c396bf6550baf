"""What one attention computes in words, and every way in which that differs from what is meant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.calling.trials import stated
from intently.checker.judging.biases import added_to
from intently.checker.judging.intent import (
    Intent,
    Unfit,
    added_by,
    dense_bias,
    inferred,
    intended,
    with_window,
)
from intently.checker.judging.masks import mask_findings, only_constants
from intently.checker.judging.rotations import rotation_findings
from intently.checker.judging.rows import row_findings
from intently.checker.judging.sides import Side, about
from intently.checker.judging.wholes import whole_findings
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.flow import MANY
from intently.checker.report.by_design import by_design
from intently.checker.report.examples import with_examples
from intently.checker.report.finding import Finding, Kind
from intently.core.biases import Bias
from intently.core.masks import Mask

LOST = -1e7
"""The number beside which float32 keeps nothing of a score."""


@dataclass(frozen=True)
class Judged:
    """One attention in words, its findings, and why it could not be judged, if so."""

    attention: Attention
    says: tuple[str, ...]
    findings: tuple[Finding, ...]
    intent: Intent | None
    side: Side = "self"
    why: str = ""

    @property
    def where(self) -> str:
        """Its name."""
        return self.attention.where

    def without(self, name: str) -> Judged:
        """The same without a finding."""
        return replace(self, findings=tuple(f for f in self.findings if f.name != name))

    def instead(self, old: Finding, new: Finding) -> Judged:
        """The same with another finding in place of one."""
        new = replace(new, line=old.line)
        findings = tuple(new if f is old else f for f in self.findings)
        says = tuple(x.replace(old.name, new.name) for x in self.says)
        return replace(self, findings=findings, says=says)

    @property
    def said(self) -> str:
        """What it computes, in words, or why that is not known."""
        return f"{self.where}: {'; '.join(self.says) or self.why}"


def judged(
    subject: Subject,
    a: Attention,
    side: Side,
    mask: Mask | None,
    stated_bias: Bias | Tensor | None,
    scale: float | None,
    entered: frozenset[str] = frozenset(),
) -> Judged:
    """Name what differs from softmax(q·k / √d) v over keys, under the intended mask."""
    b, h, t, s = a.weights.shape
    sizes = (b, h, t, s)
    own = a.masks & entered  # what enters the scores of others is not for it
    arguments = {
        n: (subject.inputs.get(n), m)
        for n, m in subject.meanings.items()
        if side in about(subject, n) and _fits(subject.inputs.get(n), m, s)
        if n in own or not own or n not in entered
    }
    if a.k is not None and a.k.sources and not a.inputs["k"] and a.inputs["q"]:
        mask, arguments = None, {}  # keys are parameters, which no mask hides
    if a.divided:
        why = "its weights are exponentials, and what their sums divide was not followed"
        return Judged(a, (_read(a),), (), None, side, why)
    found: list[Finding] = []
    rows = row_findings(subject, a)
    found += rows
    why = ""
    layout = any(f.name in ("split-by-reshape",) for f in rows)
    if a.kind == "" and a.axis == "keys" and not any(f.kind == "mistake" for f in rows):
        why = "its scores could not be followed to queries and keys"
    if not layout:
        found += _scale(subject, a, scale)
        found += rotation_findings(a)
    found += whole_findings(a) + _sinks(subject, a)
    says = [_read(a)]
    intent: Intent | None = None
    in_blocks = b not in (1, subject.batch) and not subject.begins_with(t, b)
    if in_blocks and mask is not None:
        text = a if a.placed is None else _over(a, a.placed)
        for x in (text, a):  # the mask may be stated for the blocks
            with suppress(Unfit):
                given = {} if x is a else arguments
                intent, text = _intent(subject, x, side, mask, given, _sizes(x.weights)), x
                break
        masks = [] if intent is None else mask_findings(text, intent)
        wrong = ", ".join(x.name for x in masks if x.kind == "mistake")
        if intent is None or (wrong and text is a and subject.sites > 1):
            why = "it attends in blocks, whose places were not compared with the stated mask"
        else:
            says.append(f"mask: {intent.written()}{f', but {wrong}' if wrong else ''}")
            found += masks
    if not layout and not in_blocks and a.weights.shape == a.seen.shape:
        intent = _intent(subject, a, side, mask, arguments, sizes)
        bias = None if stated_bias is None else dense_bias(stated_bias, sizes)
        given = added_by(arguments, sizes)
        told, more = added_to(a, intent, bias, given, a.where) if a.axis == "keys" else ("", [])
        filled = _filled(a, intent)
        masks = [x for x in more if x.name in ("mask-too-weak", "mask-boolean-added")] + filled
        found += more + filled + _blank(a, intent) + _lost(a, intent)
        late = any(f.name == "mask-after-softmax" for f in found)
        if not masks:
            masks = mask_findings(a, intent, late=late, cross=side == "cross")
            text = _of_text(a) if any(f.kind == "mistake" for f in masks) else a
            if text is not a:
                real = _intent(subject, text, side, mask, arguments, _sizes(text.weights))
                again = mask_findings(text, real, late=late, cross=side == "cross")
                masks = masks if any(f.kind == "mistake" for f in again) else again
            found += [f for f in masks if f not in found]
        found += _nan(a, intent, found)
        wrong = ", ".join(x.name for x in masks if x.kind == "mistake")
        guess = " (inferred)" if intent.inferred else ""
        says.append(f"mask: {intent.written()}{guess}{f', but {wrong}' if wrong else ''}")
        if told:
            says.append(told)
        found = list(with_examples(found, a, intent, bias))
    elif in_blocks:
        says.append("in blocks")
        found += only_constants(a)
    value = None if a.scale is None else float(a.scale.mean())
    shown = tuple(replace(by_design(f, subject.owner, value), line=f.line or a.line) for f in found)
    return Judged(a, tuple(says), shown, intent, side, why)


def _over(a: Attention, weights: Tensor) -> Attention:
    """The same with weights over other keys, of which no more is known."""
    return replace(a, weights=weights, soft=None, scores=None, filled=None, blank=None, added=None)


def _of_text(a: Attention) -> Attention:
    """The same over the keys that are made of an input, where learned ones stand before them."""
    at = None if a.k is None or a.k.at is None or not a.k.learned else a.k.at[0, 0]
    n = 0 if at is None or len(at) > MANY else int((at >= 0).int().argmax())
    return _over(a, a.weights[..., n:]) if n else a


def _fits(x: Any, meaning: str, s: int) -> bool:
    """Whether lengths may be those of the keys: the longest row is as long as these."""
    return meaning != "lengths" or not isinstance(x, Tensor) or int(x.max()) == s


def _sizes(w: Tensor) -> tuple[int, int, int, int]:
    b, h, t, s = w.shape
    return b, h, t, s


def _intent(
    subject: Subject,
    a: Attention,
    side: Side,
    mask: Mask | None,
    arguments: Mapping[str, tuple[Any, str]],
    sizes: tuple[int, int, int, int],
) -> Intent:
    seen = a.shown
    if mask is None:
        return inferred(seen, intended(None, arguments, sizes), side == "cross")
    windows = sorted({int(n) for n in stated(subject.owner, "window").values() if n > 0})
    return with_window(seen, mask, arguments, sizes, windows)


def _read(a: Attention) -> str:
    h = a.weights.shape[1]
    said = f"{h} head{'s' * (h != 1)} of {a.width}"
    groups = a.v.groups
    if groups and groups != h:
        said += f" on {groups} of keys and values"
    if a.fused:
        said += f", fused as {a.fused}"
    kinds = {
        "network": ", scores made by a layer",
        "learned": ", of learned scores",
        "products": ", scores of several products",
        "features": ", of features",
        "fixed": ", of fixed weights",
        "edges": ", along edges",
        "": ", of scores that could not be followed",
    }
    said += kinds.get(a.kind, "")
    if a.cosine:
        said += ", cosine"
    if a.rotation:
        said += f", {a.rotation}"
    if a.softcap is not None:
        said += f", softcap {a.softcap:g}"
    return said


def _filled(a: Attention, intent: Intent) -> list[Finding]:
    """Hidden keys whose scores are one number, and which still have weight."""
    if a.filled is None:
        return []
    cells, number = a.filled
    known = bool(intent.parts) and not intent.open
    if not bool((cells & (a.weights != 0) & ~(intent.allowed & known)).any()):
        return []
    if a.softcap is not None and math.isclose(number, -a.softcap, rel_tol=1e-2):
        said = f"the softcap comes after the mask: hidden keys have the score {number:.4g}"
        return [Finding("softcap-after-mask", said, where=a.where)]
    said = f"the mask gives hidden keys the score {number:.4g}, and they still have weight"
    return [Finding("mask-too-weak", said, where=a.where)]


def _nan(a: Attention, intent: Intent, known: Sequence[Finding]) -> list[Finding]:
    """Weights that are NaN although their query has keys, and nothing else explains it."""
    bad = a.weights.isnan().any(-1) & intent.allowed.any(-1)
    if not bool(bad.any()) or any(f.kind == "mistake" for f in known):
        return []
    b, h, i = bad.nonzero()[0].tolist()
    said = f"query {i} has keys, and its weights are NaN (batch row {b}, head {h})"
    return [Finding("nan-with-keys", said, where=a.where)]


def _sinks(subject: Subject, a: Attention) -> list[Finding]:
    """Sinks that are others than those that the call is given."""
    y = a.sink
    for n, x in subject.inputs.items():
        if y is None or "sink" not in n or not isinstance(x, Tensor) or x.shape != y.shape:
            continue
        if float((x - y).abs().max()) > 1e-3:
            said = f"head 0 has a sink of {float(y[0]):.4g}, and is given {float(x[0]):.4g}"
            return [Finding("sinks-other", said, where=a.where)]
    return []


def _lost(a: Attention, intent: Intent) -> list[Finding]:
    """Scores of allowed keys beside a number that leaves nothing of them in float32."""
    low = a.added is not None and a.added[intent.allowed & a.shown]
    if low is False or not low.numel() or float(low.max()) > LOST:
        return []
    said = f"{float(low.max()):.4g} is added to allowed keys: in float32 nothing is left of q·k"
    return [Finding("query-without-influence", said, where=a.where)]


def _blank(a: Attention, intent: Intent) -> list[Finding]:
    """Queries that see nothing, and get the mean of all values."""
    if a.blank is None:
        return []
    some = a.blank & (a.weights.sum(-1) > 0.5)
    if not bool(some.any()):
        return []
    b, h, i = some.nonzero()[0].tolist()
    said = f"query {i} has no key, and gets the mean of all values (batch row {b}, head {h})"
    return [Finding("mean-without-keys", said, "hazard", a.where)]


# --- scale ----------------------------------------------------------------------------------------


def _scale(subject: Subject, a: Attention, meant: float | None) -> list[Finding]:
    scale, d = a.scale, a.width
    if meant is not None and a.uneven:
        said = f"the scale should be {meant:.4g}, and differs from score to score"
        return [Finding("other-scale", said, where=a.where)]
    if scale is None or a.q is None or a.k is None or a.kind not in ("dot", "products"):
        return []
    value, right = float(scale.mean()), d**-0.5 if meant is None else meant
    near = max(1e-3, a.precision.same)
    if float((scale - value).abs().max()) > 1e-3 * abs(value):
        return []  # one for each head: learned
    before = _scaled_before(a, d)
    if before is not None and meant is None and math.isclose(value, right, rel_tol=near):
        return [Finding("scale-one-over-d", before, where=a.where)]
    if before is not None and math.isclose(value * d**-0.5, right, rel_tol=near):
        return []  # scaled once, before the projection
    if math.isclose(value, right, rel_tol=near):
        return []
    heads = a.weights.shape[1]
    entered = subject.inputs[subject.main]
    widths = [heads * d]
    if entered.is_floating_point() and entered.ndim == 3:
        widths.append(entered.shape[-1])
    widths += [x.entry.shape[-1] for x in a.q.sources if x.entry is not None]
    name, said = scale_named(value, d, widths, right, heads)
    if meant is None and a.learned_scale:
        return []
    kind: Kind = "mistake"
    by_design = name == "no-scale" and entered.ndim < 4 and _unscaled_by_design(a)
    if meant is None and (name == "other-scale" or by_design):
        kind = "convention" if by_design or a.cosine else "hazard"
    if meant is None and a.kind == "products" and name != "no-scale":
        kind = "convention"
    return [Finding(name, said, kind, where=a.where)]


def _scaled_before(a: Attention, d: int) -> str | None:
    """That what is projected to queries was scaled; None if it was not."""
    assert a.q is not None and a.k is not None
    x, y = (o.sources[0].entry if len(o.sources) == 1 else None for o in (a.q, a.k))
    if x is None or y is None or x.shape != y.shape or a.q.sources[0].node is a.k.sources[0].node:
        return None
    x, y = x.detach(), y.detach()
    factor = float((x * y).sum() / (y * y).sum().clamp(min=1e-30))
    if not math.isclose(factor, d**-0.5, rel_tol=1e-4):
        return None
    if float((x - factor * y).abs().max()) > 1e-6 * float(x.abs().max()):
        return None
    return f"what is projected to queries is divided by √{d}, and so are the scores"


def _unscaled_by_design(a: Attention) -> bool:
    """Luong's dot and general scores, and non-local blocks of one head, have no scale."""
    assert a.q is not None and a.k is not None
    if any(x.reads for o in (a.q, a.k) for x in o.sources):
        return True  # projected twice: a general score
    if a.weights.shape[1] > 1:
        return False
    values = {x.node for x in a.v.sources}
    read = all(x.is_input for x in a.v.sources) and a.inputs["v"] == a.inputs["k"]
    alone = values == {x.node for x in a.k.sources} or read
    projected = sum(bool(x.name) for x in (a.q, a.k))
    layers = {x.node.name for o in (a.q, a.k) for x in o.sources}
    convolved = layers <= {"convolution", "_convolution", "mkldnn_convolution"}
    return bool(convolved and layers) or (alone and (projected > 0 or a.q.inputs_apart))


def scale_named(
    scale: float, d: int, widths: Sequence[int], right: float, heads: int = 1
) -> tuple[str, str]:
    """The name of a wrong scale for heads of width d in a model of these widths, and a sentence."""
    names: list[tuple[str, float, str]] = [
        ("no-scale", 1.0, "1: scores are not scaled"),
        ("scale-one-over-d", 1 / d, f"1/{d}, that is 1/d: divided by d, or twice by √d"),
        *(
            ("scale-model-width", c**-0.5, f"1/√{c}, the width of the model, in place of 1/√{d}")
            for c in widths
        ),
        ("scale-inverted", d**0.5, f"√{d}: multiplied where it should be divided"),
    ]
    if heads > 1:
        said = f"1/√{heads}, by the number of heads, in place of 1/√{d}"
        names.append(("scale-by-heads", heads**-0.5, said))
    said = f"1/√√{d}: queries or keys are scaled by the fourth root, and the others are not"
    names.append(("scale-one-side", d**-0.25, said))
    for name, value, text in names:
        if math.isclose(scale, value, rel_tol=1e-3) and not math.isclose(
            value, right, rel_tol=1e-3
        ):
            both = (
                f", or by √{d * d}, the width of the model"
                if name == "scale-one-over-d" and d * d in widths
                else ""
            )
            return name, f"the scale is {text}{both}"
    return "other-scale", f"the scale is {scale:.4g} where it should be {right:.4g}"
