"""Mistakes in positions: rotations and biases by distance."""

from __future__ import annotations

from intently.examiner.catalogue.entry import Entry

POSITIONS: dict[str, Entry] = {
    "rotation-offset-lost": Entry(
        "The rotation forgets its offset in a cached step",
        "R(0) q for R(t) q",
        "Step by step differs from the whole pass: every new query is rotated as the first one.",
        "Rotate by positions in the text: add the length of the cache.",
        ("https://github.com/huggingface/transformers/pull/20203",),
        "Training never takes a cached step. Generated text starts well and drifts.",
    ),
    "bias-sign": Entry(
        "A bias by distance has the wrong sign",
        "z + m · (i − j)",
        "Of equal scores, the farthest key weighs most.",
        "ALiBi subtracts: −m · (i − j).",
        ("https://github.com/meta-pytorch/attention-gym/pull/86",),
        "Whether the distance is i − j or j − i is a coin toss, and so is the sign before it.",
    ),
    "bias-offset-lost": Entry(
        "A bias by distance is lost in a cached step",
        "the bias of query 0 in each step",
        "Step by step has another bias than the whole pass.",
        "Build the bias from positions in the text, not from the queries at hand.",
        ("https://github.com/keras-team/keras-hub/pull/2977",),
        "A bias made for one query is a bias for query 0: its distances are all 0.",
    ),
    "bias-missing": Entry(
        "The bias is missing",
        "softmax(q kᵀ / √d) v without bias",
        "Scores hold nothing but q · k.",
        "Add the bias to the scores before the softmax, on every path.",
        story="Fused kernels take a bias in the place of a mask. With both, one of them is lost.",
    ),
    "bias-twice": Entry(
        "The bias is added several times",
        "z + n · bias",
        "What is added is a multiple of the intended bias.",
        "Add it once: in the mask, or beside it.",
    ),
    "bias-other": Entry(
        "The bias is another than intended",
        "z + another bias",
        "What is added is no multiple of the intended bias.",
        "Compare both tables at one distance: slope, bucket, order of heads.",
    ),
}
