"""Numbers that go wrong where they are large, or short: overflow, and sums in half types."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

NUMBERS: dict[str, Entry] = {
    "large-scores": Entry(
        "Large scores overflow or are cut off",
        "exp z / Σ exp z, without z − max z",
        "With scores of ±10,000, outputs are NaN, or the key with the largest score loses.",
        "Call `softmax`, or subtract the largest score of each row before `exp`. Do not clamp.",
        story="`exp` overflows at 88 in float32 and at 11 in float16, which scores reach only late "
        "in training.",
        kind="hazard",
    ),
    "half-overflow": Entry(
        "A half type overflows",
        "q kᵀ > 65,504",
        "In float16 the output is not finite where it is in float32.",
        "Scale queries before the product, mask with `torch.finfo(z.dtype).min` or −∞, and leave "
        "no row without a key.",
        story="A sum of 64 products gets there long before a score does.",
        kind="hazard",
    ),
    "half-imprecise": Entry(
        "A half type loses more than it has to",
        "Σ in half",
        "The error is more than twice that of the plain formula in the same type.",
        "Sum in float32: the softmax, the running maximum and sum, and the weighted values.",
        story="bfloat16 has 8 bits: from 256 on, adding 1 changes nothing, so keys past the first "
        "few hundred are lost from the sum.",
        kind="hazard",
    ),
}
