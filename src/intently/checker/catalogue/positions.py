"""Mistakes in positions: rotations and biases by distance."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

POSITIONS: dict[str, Entry] = {
    "rotation-offset-lost": Entry(
        "The rotation forgets its offset in a cached step",
        "R(0) q for R(t) q",
        "In steps, every new query is rotated as the first one.",
        "Rotate by positions in the text: add the length of the cache.",
        ("https://github.com/huggingface/transformers/pull/20203",),
        "Training never takes a cached step. Generated text starts well and drifts.",
    ),
    "rotation-off-by-one": Entry(
        "Queries and keys are rotated one step apart",
        "R(i ± 1) q · R(j) k",
        "Scores are those of a distance one larger or smaller.",
        "Count positions of queries and keys from the same zero.",
        story="The cache was extended before its length was read, or after.",
    ),
    "rotation-missing": Entry(
        "Queries and keys are not rotated",
        "q · k for R(i) q · R(j) k",
        "Scores do not depend on distance; the reference's do.",
        "Rotate both, after the projection and before the product.",
        story="A bag of words with a causal mask still learns something.",
    ),
    "keys-not-rotated": Entry(
        "Queries are rotated and keys are not",
        "R(i) q · k",
        "Scores depend on the position of one side, not on the distance.",
        "Rotate queries and keys, each by its own position.",
        story="A cache that stores keys before their rotation does this.",
    ),
    "cache-rotated-twice": Entry(
        "Keys are rotated twice",
        "R(i) q · R(2j) k",
        "Scores fit a rotation of the keys by twice their position.",
        "Store keys after the rotation, or rotate them when they are read, not both.",
    ),
    "rotary-pairs": Entry(
        "Rotation pairs the wrong numbers of a head",
        "pairs (0, 1), (2, 3), … for halves (0, d/2), (1, d/2 + 1), …",
        "Scores fit pairs where halves are meant, or the other way.",
        "Convert the projections once, or rotate as the checkpoint was trained.",
        story="LLaMA was published with pairs and ported with halves and permuted weights. One "
        "loaded with the code of the other is a fluent stranger.",
    ),
    "rotary-over-heads": Entry(
        "The angles grow with heads",
        "R(head) for R(position)",
        "All positions of a head have the same angle.",
        "Rotate along the axis of positions: after the transpose it is dim −2.",
    ),
    "rotary-base": Entry(
        "The base of the rotation is another",
        "θ = base^(−2n/d), another base",
        "Scores fit another base than the reference's.",
        "Read `rope_theta` from the config: 10,000 is only the first.",
        story="Only far tokens tell.",
    ),
    "rotary-direction": Entry(
        "The rotation turns the other way",
        "R(−i) q · R(−j) k",
        "Scores fit the opposite angle.",
        "Check the sign of the sine in both halves.",
    ),
    "rotation-other": Entry(
        "Queries and keys are rotated otherwise",
        "",
        "Both are rotated, and no known slip makes one of the other.",
        "Compare the angles at position 1: width, base, scaling.",
    ),
    "bias-sign": Entry(
        "A bias by distance has the wrong sign",
        "z + m · (i − j)",
        "Of equal scores, the farthest key weighs most.",
        "ALiBi subtracts: −m · (i − j).",
        ("https://github.com/meta-pytorch/attention-gym/pull/86",),
        "Both i − j and j − i are called the distance.",
    ),
    "bias-offset-lost": Entry(
        "A bias by distance is lost in a cached step",
        "the bias of query 0 in each step",
        "Steps have another bias than the whole pass.",
        "Build the bias from positions in the text, not from the queries at hand.",
        ("https://github.com/keras-team/keras-hub/pull/2977",),
        "A bias made for one query is that of query 0.",
    ),
    "bias-missing": Entry(
        "The bias is missing",
        "softmax(q kᵀ / √d) v without bias",
        "Scores hold nothing but q · k.",
        "Add the bias to the scores before the softmax, on every path.",
        story="Fused kernels take a bias in the place of a mask, so one of the two is lost.",
    ),
    "bias-twice": Entry(
        "The bias is added several times",
        "z + n · bias",
        "What is added is a multiple of the intended bias.",
        "Add it once: in the mask, or beside it.",
    ),
    "bias-scaled": Entry(
        "The bias is scaled",
        "z + c · bias",
        "What is added is a multiple of the reference's bias.",
        "Add the bias after the scale of q · k, not before it.",
        story="T5 does not scale its scores. In code that does, its bias shrinks by √d.",
    ),
    "bias-slopes": Entry(
        "The slopes of the heads are others",
        "z − mₕ · (i − j), other mₕ",
        "Each head adds another multiple of the reference's bias.",
        "ALiBi's slopes are 2^(−8n/h); for h no power of two the series is interleaved.",
    ),
    "bias-other": Entry(
        "The bias is another than intended",
        "z + another bias",
        "What is added is no multiple of the intended bias.",
        "Compare both tables at one distance: slope, bucket, order of heads.",
    ),
}
