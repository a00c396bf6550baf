"""The kinds of mistakes that are planted, and what the examiner calls them."""

from __future__ import annotations

SAME = """
    no-scale softmax-over-queries softmax-over-heads softmax-over-batch not-normalised rounded
    values-are-keys softcap-after-mask mask-missing mask-inverted mask-transposed mask-top-left
    mask-after-softmax mask-after-softmax-renormalised mask-too-weak mask-in-cache window-missing
    padding-attended lengths-off-by-one left-padding-positions heads-interleaved key-heads-tiled
    batch-and-sequence-exchanged cross-ignores-context rotation-offset-lost rotation-off-by-one
    keys-not-rotated values-rotated rotary-base rotary-pairs rotary-direction rotary-over-heads
    position-offset-lost bias-scaled cache-overwritten cache-rows-exchanged cache-prepended
    cache-pairs-apart cache-layers-exchanged cache-rotated-twice state-left dropout-in-eval
    dropout-twice dropout-before-softmax gradient-cut gradient-scaled input-changed
    layout-of-fused-rows projections-exchanged weight-transposed
"""
"""Kinds whose names are the examiner's."""

KINDS: dict[str, tuple[str, ...]] = {kind: (kind,) for kind in SAME.split()} | {
    "scale-by-d": ("scale-one-over-d", "no-scale", "scale-model-width", "other-scale"),
    "scaled-twice": ("scale-one-over-d", "no-scale", "scale-model-width", "other-scale"),
    "scale-by-width": ("scale-model-width", "scale-one-over-d", "no-scale", "other-scale"),
    "like-scale": ("other-scale", "no-scale", "scale-one-over-d", "scale-model-width"),
    "mask-ahead-by-one": ("causal-off-by-one",), "mask-behind-by-one": ("causal-off-by-one",),
    "mask-added-as-number": ("mask-boolean-added", "mask-too-weak"),
    "mask-on-query-axis": ("mask-on-queries",), "mask-head-order": ("mask-of-other-rows",),
    "mask-batch-rows": ("mask-of-other-rows",), "mask-twice": ("bias-twice",),
    "window-left-off-by-one": ("window-off-by-one",),
    "window-right-off-by-one": ("window-off-by-one",),
    "padding-attended-in-cross": ("padding-attended", "mask-missing"),
    "nan-for-empty-row": ("nan-without-keys",), "mean-for-empty-row": ("mean-without-keys",),
    "heads-split-by-reshape": ("split-by-reshape", "heads-interleaved", "layout-of-fused-rows"),
    "heads-merged-by-reshape": ("merged-by-reshape",),
    "alibi-sign": ("bias-sign",), "alibi-missing": ("bias-missing",),
    "alibi-offset-lost": ("bias-offset-lost",), "alibi-slopes": ("bias-slopes",),
    "bias-missing": ("projection-bias-missing",),
    "mask-in-one-back-end": ("mask-in-one-path", "mask-top-left", "mask-in-cache"),
    "mask-dropped-with-dropout": ("mask-in-one-path",),
    "mask-dropped-with-weights": ("mask-in-one-path",),
    "bias-in-one-back-end": ("bias-in-one-path",),
    "softcap-in-one-back-end": ("softcap-in-one-path",),
    "sinks-in-one-back-end": ("sinks-in-one-path",),
    "window-off-in-cache": ("window-off-by-one", "window-missing"),
    "cache-rolled-early": ("window-off-by-one", "cache-overwritten"),
    "leak-by-convolution": ("leak-later",), "leak-by-norm": ("leak-later",),
    "leak-by-mean": ("leak-later",),
}  # fmt: skip
"""Names of `docs/mistakes.md`; several where one function has them all, as √d · √d = d has."""

KINDS["no-scale"] += "scale-one-over-d", "scale-model-width", "other-scale"
KINDS["mask-missing"] += "window-missing", "padding-attended"
KINDS["padding-attended"] += ("mask-missing",)
KINDS["mask-too-weak"] += ("mask-boolean-added",)
KINDS["heads-interleaved"] += "layout-of-fused-rows", "split-by-reshape"
KINDS["layout-of-fused-rows"] += "heads-interleaved", "split-by-reshape"
KINDS["cache-overwritten"] += ("window-off-by-one",)
