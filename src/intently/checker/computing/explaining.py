"""From measured weights to what an attention computes, and to the mistakes that explain it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from intently.checker.computing.added import added_to
from intently.checker.computing.inside import INSIDE
from intently.checker.computing.intent import ACROSS, Intent
from intently.checker.computing.measuring import Values, Weights
from intently.checker.computing.reading import plainly
from intently.checker.computing.rotations import mistake_in
from intently.checker.computing.scores_found import Scores
from intently.checker.report.finding import Finding, Kind


@dataclass(frozen=True)
class Explained:
    """What was found of one attention: in words, its mistakes, and how well they explain it."""

    says: tuple[str, ...]
    findings: tuple[Finding, ...]
    residual: float
    added: str = ""


def explain(
    weights: Weights,
    scores: Scores,
    intent: Intent,
    where: str,
    widths: tuple[int, ...],
    bias: Tensor | None,
    given: Tensor | None = None,
) -> Explained:
    """Name what differs from softmax(q·k / √d) over keys, under the intended mask.

    ``widths`` are those of the model: of all heads together, and of what they are projected from.
    ``bias`` is stated; ``given`` is what arguments of the example add to the scores.
    """
    found: list[Finding] = []
    says = [_read(weights.values, scores)]
    found += _layout(weights, scores, where)
    if scores.known:
        found += _scale(scores, weights.values, widths, where)
        found += _rotation(scores, weights.values, where)
    found += _axis(scores, intent, where)
    kind, more = added_to(scores, intent, bias, given, where) if scores.known else ("", [])
    found += more
    masks = [x for x in more if x.name in ("mask-too-weak", "mask-boolean-added")]
    masks += _mask(scores, intent, where) if not masks else []
    if scores.axis not in ("keys", "none"):  # a softmax over others may empty whole rows
        masks = [x for x in masks if x.name != "mask-other" and len(x.cell)]
    found += [x for x in masks if x not in found]
    wrong = ", ".join(x.name for x in masks)
    inferred = " (inferred)" if intent.inferred else ""
    says.append(f"mask: {intent.written()}{inferred}{f', but {wrong}' if wrong else ''}")
    if kind:
        says.append(kind)
    return Explained(tuple(says), tuple(found), scores.residual, kind)


def _read(values: Values, scores: Scores) -> str:
    r = values.reading
    said = f"{r.heads} head{'s' * (r.heads != 1)} of {r.width}"
    if r.key_heads != r.heads:
        said += f" on {r.key_heads} of keys and values"
    if r.name == INSIDE:
        said += f", {INSIDE}"
    elif r.name and r.name != "heads apart":
        said += f", fused as {r.name}"
    if not scores.known:
        said += ", of scores that are none of those known"
    elif scores.kind != "dot":
        said += f", {scores.kind}"
    if scores.softcap is not None:
        said += f", softcap {scores.softcap:g}"
    return said


def _layout(weights: Weights, scores: Scores, where: str) -> list[Finding]:
    """Heads split or merged otherwise than (b, t, h·d)."""
    found, values = [], weights.values
    usual = {"bthd", "tbhd"}
    order = values.reading.v.order.replace("x", "")
    plain = order in usual or values.reading.v.part is not None
    first = "tbhd" in (order, values.merged)  # the sequence first, in the projections too
    known = ("", "btdh", "tbhd") if first else ("", "btdh")
    split = (not plain and order != "btdh") or scores.split not in known
    merged = values.merged not in (*usual, "btdh")
    given = values.reading.name in ("heads apart", INSIDE)
    if split and not given:
        found.append(
            Finding(
                "split-by-reshape",
                where=where,
                said="heads are split by a reshape: each reads numbers of several positions",
            )
        )
    if given and values.shape:
        sizes = dict(zip("bhtd", (*weights.w.shape[1:4], values.reading.value_width)))
        merged = not plainly(values.shape, values.merged, sizes)
    if merged and (values.shape or not given):
        found.append(
            Finding(
                "merged-by-reshape",
                where=where,
                said="heads are merged by a reshape: their parts land on other positions",
            )
        )
    interleaved = [x == "btdh" for x in (scores.split, order, values.merged)]
    if any(interleaved) and not given:
        said = "a head takes every h-th number of its projection, not d neighbours"
        kind: Kind = "convention" if all(interleaved) else "hazard"
        if kind == "hazard":
            said += ", and not so in all of q, k, v and the output: weights of others do not fit"
        found.append(Finding("heads-interleaved", said, kind, where))
    if values.keys_tiled is not None:
        k, v = ("tiled", "repeated")[:: 1 if values.keys_tiled else -1]
        said = f"keys are {k} and values {v}: query heads read the values of other keys"
        found.append(Finding("key-heads-tiled", said, where=where))
    elif values.tiled:
        found.append(
            Finding(
                "key-heads-tiled",
                kind="mistake" if values.reading.name == "heads apart" else "convention",
                where=where,
                said="key heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)",
            )
        )
    return found


def _rotation(scores: Scores, values: Values, where: str) -> list[Finding]:
    name, said = mistake_in(scores.kind)
    found = [Finding(name, f"rotary positions: {said}", where=where)] if name else []
    if values.rotation is not None:
        kind = values.rotation.name(values.reading.value_width)
        said = f"values are rotated by their positions, {kind}"
        found.append(Finding("values-rotated", said, where=where))
    return found


def _scale(scores: Scores, values: Values, widths: tuple[int, ...], where: str) -> list[Finding]:
    d = values.reading.width
    if scores.kind not in ("dot",) and not scores.kind.startswith("rotary"):
        return []
    scale, right = float(scores.scale.mean()), d**-0.5
    if float((scores.scale - scale).abs().max()) > 1e-3 * abs(scale):
        return []  # one for each head: learned
    if math.isclose(scale, right, rel_tol=1e-3):
        return []
    name, said = scale_named(scale, d, widths, right)
    alone = values.reading.name == INSIDE and values.shared  # Luong's dot product has no scale
    kind: Kind = "convention" if name == "other-scale" or alone else "mistake"
    return [Finding(name, said, kind, where=where, fit=scores.residual)]


def scale_named(scale: float, d: int, widths: tuple[int, ...], right: float) -> tuple[str, str]:
    """The name of a wrong scale for heads of width d in a model of these widths, and a sentence."""
    names = [
        ("no-scale", 1.0, "1: scores are not scaled"),
        ("scale-one-over-d", 1 / d, f"1/{d}, that is 1/d: divided by d, or twice by √d"),
        *(
            ("scale-model-width", c**-0.5, f"1/√{c}, the width of the model, in place of 1/√{d}")
            for c in widths
        ),
        ("scale-inverted", d**0.5, f"√{d}: multiplied where it should be divided"),
    ]
    for name, value, text in names:
        if math.isclose(scale, value, rel_tol=1e-3):
            both = (
                f", or by √{d * d}, the width of the model"
                if name == "scale-one-over-d" and d * d in widths
                else ""
            )
            return name, f"the scale is {text}{both}"
    return "other-scale", f"the scale is {scale:.4g} where it should be {right:.4g}"


def _axis(scores: Scores, intent: Intent, where: str) -> list[Finding]:
    if scores.axis == "keys":
        return []
    if scores.axis != "none":
        where_to = next(x for x in ("batch", "heads", "queries") if x in scores.axis)
        return [
            Finding(
                f"softmax-over-{where_to}",
                where=where,
                fit=scores.residual,
                said=f"weights sum to 1 over {scores.axis}, not over keys"
                + (" alone" if "keys" in scores.axis else ""),
            )
        ]
    if scores.after:
        return [
            Finding(
                "mask-after-softmax",
                where=where,
                fit=scores.residual,
                said="the mask is applied after the softmax, and rows sum to less than 1",
            )
        ]
    sums = scores.sums
    low, high = float(sums.min()), float(sums.max())
    steady = float((sums - sums.mean(0)).abs().max()) < 1e-4 * high
    if steady and high - low > 1e-3 * high:
        said = "each row is multiplied by a gate, which depends on neither q nor k"
        return [Finding("gated", said, "convention", where)]
    found = []
    if scores.extra is not None:
        told = ", ".join(f"{x:.3g}" for x in scores.extra.log().tolist()[:4])
        said = f"a sink of {told} by head takes weight from every row"
        found.append(Finding("sink", kind="convention", where=where, said=said))
        if scores.factor == 1.0:
            return found
    if scores.factor != 1.0:
        said = f"weights are multiplied by {scores.factor:.4g} after the softmax"
        return [*found, Finding("not-normalised", where=where, said=said, fit=scores.residual)]
    return [
        Finding(
            "not-normalised",
            where=where,
            fit=scores.residual,
            said=f"weights sum to {low:.3g} … {high:.3g} over keys, not to 1",
        )
    ]


def _mask(scores: Scores, intent: Intent, where: str) -> list[Finding]:
    """How what is hidden differs from the intent."""
    blind = intent.allowed.any(-1) & ~scores.seen.any(-1)
    if not bool(scores.seen.any()):  # nothing comes out, whatever goes in
        return []
    if intent.open and bool(blind.any()):
        b, h, i = blind.nonzero()[0].tolist()
        said = f"query {i} attends to no key at all; what has weight is beside the keys, as padding"
        return [Finding("mask-inverted", f"{said} (batch row {b}, head {h})", where=where)]
    wrong = intent.explained(scores.seen)
    if wrong is None and intent.open and not bool((scores.seen & ~intent.allowed).any()):
        at, text = counterexample(scores.seen, intent.allowed)
        said = f"keys are hidden by a rule that is not stated: {text}; state mask= to check it"
        return [Finding("mask-other", said, "convention", where, at)]
    if wrong is None:
        at, text = counterexample(scores.seen, intent.allowed)
        said = f"the mask differs from {intent.written()}: {text}"
        return [Finding("mask-other", where=where, said=said, cell=at)]
    found = []
    for part, variant in wrong:
        at, text = counterexample(scores.seen, intent.allowed)
        name = mistake_of(part, variant)
        found.append(Finding(name, where=where, cell=at, said=f"{part}: {variant}; {text}"))
    return found


def mistake_of(part: str, variant: str) -> str:
    """The name in the catalogue of a mistaken variant of a part of an intent."""
    kind = part if part in ("causal", "window", "stated mask") else "padding"
    if variant == ACROSS:
        return "cross-causal"
    if variant in ("transposed", "top-left"):
        return f"mask-{variant}"
    if variant == "inverted":
        return "mask-inverted"
    if variant == "missing":
        return {
            "causal": "mask-missing",
            "stated mask": "mask-missing",
            "window": "window-missing",
        }.get(kind, "padding-attended")
    if variant == "on the queries":
        return "mask-on-queries"
    if variant.startswith("of another"):
        return "mask-of-other-rows"
    if kind == "stated mask":
        return "mask-other"
    if kind == "window":
        wide = variant.startswith(("without", "in blocks"))
        return "window-missing" if wide else "window-off-by-one"
    if kind == "causal":
        return "causal-off-by-one"
    return "lengths-off-by-one" if variant.startswith("one") else "padding-side"


def counterexample(seen: Tensor, allowed: Tensor) -> tuple[tuple[int, ...], str]:
    """The first cell in which a mask and its intent differ, in words."""
    off = (seen != allowed).nonzero()
    if not len(off):
        return (), ""
    b, h, i, j = off[0].tolist()
    does, should = ("attends", "should not") if seen[b, h, i, j] else ("does not attend", "should")
    return (b, h, i, j), f"query {i} {does} to key {j} but {should} (batch row {b}, head {h})"
