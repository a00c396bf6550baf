"""Mistakes in the layout of heads: the right shape, and the wrong numbers in it."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

HEADS: dict[str, Entry] = {
    "split-by-reshape": Entry(
        "Heads are split by a reshape",
        "x.view(b, h, t, d)",
        "Each head reads numbers of several positions.",
        "`x.view(b, t, h, d).transpose(1, 2)`.",
        story="Position is mixed with width, so a causal mask no longer hides the future, and the "
        "loss falls below what is possible.",
    ),
    "merged-by-reshape": Entry(
        "Heads are merged by a reshape",
        "y.reshape(b, t, h · d) of y (b, h, t, d)",
        "What a head computed for one position is written to another.",
        "`y.transpose(1, 2).reshape(b, t, h * d)`.",
        ("https://github.com/meta-pytorch/opacus/pull/825",),
        "`view` would have raised an error; `reshape` does not.",
    ),
    "key-heads-tiled": Entry(
        "Shared key heads are tiled",
        "head i reads key head i mod g",
        "Heads 0 and 2 read the same keys where 0 and 1 should.",
        "`repeat_interleave(h // g, 1)`, not `repeat`: consecutive heads share.",
        ("https://github.com/onnx/onnx/pull/7274",),
        "A model trained from scratch does not care. A checkpoint does.",
        kind="convention",
    ),
}
