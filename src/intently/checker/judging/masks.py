"""How the keys that have weight differ from those that are meant."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.checker.judging.intent import ACROSS, Intent
from intently.checker.measuring.attention import Attention
from intently.checker.measuring.flow import whole
from intently.checker.report.finding import Finding


def mask_findings(
    a: Attention, intent: Intent, *, late: bool = False, cross: bool = False
) -> list[Finding]:
    """How what is hidden differs from the intent; a mask that comes ``late`` hides no key."""
    seen, where = ((a.weights != 0) & (a.weights > -50)) if late else a.shown, a.where
    constants = only_constants(a)
    if constants:
        return constants
    seen = seen | (_empty(a) & intent.allowed)  # a free slot may well be hidden
    blind = intent.allowed.any(-1) & ~seen.any(-1)
    t, s = seen.shape[-2:]
    if a.kind == "features" and not bool((seen & ~intent.allowed).any()):
        return []  # features may be zero
    if not bool(seen.any()):  # nothing comes out, whatever goes in
        return []
    if (
        intent.open and t == s and a.kind != "edges" and bool((blind & seen.any(-2)).any())
    ):  # else it is padding
        b, h, i = (blind & seen.any(-2)).nonzero()[0].tolist()
        said = f"query {i} attends to no key at all; what has weight is beside the keys, as padding"
        return [Finding("mask-inverted", f"{said} (batch row {b}, head {h})", where=where)]
    wrong = intent.explained(seen)
    if wrong is None and bool((_empty(a) & ~seen).any()):
        wrong = intent.explained(seen | _empty(a))
    later = min(t, s) < 3 or bool(seen.triu(1).any() | ~seen[..., : min(t, s) - 2].any(-2).all())
    if cross and wrong is None and intent.open and not later:
        said = "keys of the context are hidden by the order of the queries"
        return [Finding("cross-causal", said, where=where)]
    if wrong is None and intent.open and not bool((seen & ~intent.allowed).any()):
        at, text = counterexample(seen, intent.allowed)
        said = f"keys are hidden by a rule that is not stated: {text}; state mask= to check it"
        return [Finding("mask-other", said, "convention", where, at)]
    more = wrong is None and not bool((seen & ~intent.allowed).any())
    if more and all(p.padding or p.name == "causal" for p in intent.parts):
        at, text = counterexample(seen, intent.allowed)
        what = intent.written() + " hides" if intent.parts else "is stated"
        said = f"more is hidden than {what}: {text}; state mask= to check it"
        return [
            Finding("mask-other", said, "convention" if intent.inferred else "hazard", where, at)
        ]
    less = (intent.allowed & ~seen & intent.real).any()
    if wrong is None and intent.parts and not bool(less):
        named = all(p.padding for p in intent.parts)
        at, text = counterexample(seen & intent.real, intent.allowed & intent.real)
        if named and at:
            said = f"in some rows padding has weight: {text}"
            return [Finding("padding-attended", said, where=where, cell=at)]
    if wrong is None:
        at, text = counterexample(seen, intent.allowed)
        said = f"the mask differs from {intent.written()}: {text}"
        return [Finding("mask-other", where=where, said=said, cell=at)]
    few = any(variant == "one key too few" for _, variant in wrong)
    if intent.inferred and few and bool(seen.any(-1).all()):
        said = "queries do not attend to their own position; state mask= to check it"
        return [Finding("mask-other", said, "convention", where)]
    found = []
    for part, variant in wrong:
        at, text = counterexample(seen, intent.allowed)
        rule = next((p for p in intent.parts if p.name == part), None)
        by_key = rule is not None and bool((rule.allowed == rule.allowed[..., :1, :]).all())
        by_key &= part != "window"
        name = mistake_of(part, variant, by_key=by_key)
        found.append(Finding(name, where=where, cell=at, said=f"{part}: {variant}; {text}"))
    return found


def _empty(a: Attention) -> Tensor:
    """The keys (b, h, t, s) that are all zero, as the free slots of a cache."""
    if a.k is None:
        return torch.zeros(1, dtype=torch.bool)
    zero = (whole(a.k.value.detach()) == 0).all(-1)[..., None, :]
    fits = zero.shape[-1] == a.weights.shape[-1] and zero.shape[:2] == a.weights.shape[:2]
    return zero.expand(a.weights.shape) if fits else torch.zeros(1, dtype=torch.bool)


def mistake_of(part: str, variant: str, *, by_key: bool = False) -> str:
    """The name in the catalogue of a mistaken variant of a part of an intent.

    A mask ``by_key``, the same for all queries, is one of padding.
    """
    kind = part if part in ("causal", "window", "stated mask") and not by_key else "padding"
    if variant.startswith(ACROSS):
        return "cross-causal"
    if by_key and variant == "transposed":
        return "mask-on-queries"
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
    if variant.startswith(("of another", "in a different order")):
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


def only_constants(a: Attention) -> list[Finding]:
    """The mistake that keys which are zero have weight, and no others do."""
    zero = _empty(a)
    if not bool((a.shown & zero).any()) or bool((a.shown & ~zero).any()):
        return []
    said = "every query sees nothing but constant keys, as padding, and no key of the inputs"
    return [Finding("mask-inverted", said, where=a.where)]
