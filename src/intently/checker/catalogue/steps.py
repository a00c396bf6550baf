"""The catalogue: what a cache gets wrong, and what holds on one path only."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

CACHES: dict[str, Entry] = {
    "cache-overwritten": Entry(
        "The cache drops keys that are still needed",
        "keys of step i ⊊ {0 … i}",
        "In steps, some key has no weight from a later query that should see it.",
        "Append, or roll only what the window no longer holds.",
        story="Short texts fit. A long one loses its beginning, and the model only drifts.",
    ),
    "cache-prepended": Entry(
        "New keys stand before the older ones",
        "k = [new, old]",
        "The mask hides the keys that it would hide if each step came first.",
        "Concatenate the cache first: cat((past, new)).",
        story="Only chunks of several tokens show it.",
    ),
    "cache-layers-exchanged": Entry(
        "A layer reads the cache of another",
        "kₗ from layer l′ ≠ l",
        "Keys in steps come from the projections of two layers.",
        "Index the cache by layer, and give each layer its own number.",
    ),
    "cache-rows-exchanged": Entry(
        "Rows of the batch exchange their caches",
        "k of row b′ ≠ b",
        "In steps, a row attends to the keys of another row.",
        "Reorder the cache with the beams, once, along the batch.",
        story="A batch of one hides it, and so does greedy search.",
    ),
    "cache-pairs-apart": Entry(
        "Cached keys and values no longer belong together",
        "W over kⱼ, values vⱼ₊₁",
        "Weights follow the keys of one step and fall on the values of another.",
        "Roll, cut and reorder keys and values together.",
    ),
    "mask-in-cache": Entry(
        "Steps after cached ones see later keys",
        "i sees j > i where a cache is given",
        "The whole pass is causal, a chunk after cached steps is not.",
        "Build the mask for queries at s − t … s − 1.",
        story="A single token needs no mask. A chunk does.",
    ),
    "window-off-in-cache": Entry(
        "Steps from a cache see beyond the window",
        "i − j > n where a cache is given",
        "The whole pass keeps the window, cached steps see more keys.",
        "Cut the cache to the window, or mask it.",
    ),
    "position-offset-lost": Entry(
        "Steps get the positions of the first tokens",
        "x₀ + p₀ for every step",
        "Steps embed other positions than the whole pass.",
        "Start positions at the length of the cache.",
        story="Every later token believes it is the first.",
    ),
}

PATHS: dict[str, Entry] = {
    "mask-in-one-path": Entry(
        "The mask is dropped on one path",
        "the mask with an option, none or another without it",
        "The plain call is masked; with the option, hidden keys have weight.",
        "Pass the mask to every branch, and compare branches in a test.",
        ("https://github.com/huggingface/transformers/pull/30652",),
        story="Only debuggers set the option: returned weights, another back end.",
    ),
    "softcap-in-one-path": Entry(
        "The softcap is left out on one path",
        "z in place of cap · tanh(z / cap)",
        "One way of computing caps the scores, another does not.",
        "Refuse back ends that know no softcap, or cap in each of them.",
    ),
    "sinks-in-one-path": Entry(
        "The sinks are left out on one path",
        "Σ exp z in place of Σ exp z + exp sink",
        "Rows sum to less than 1 on one path and to 1 on another.",
        "Add the sink wherever a softmax is computed.",
    ),
    "bias-in-one-path": Entry(
        "The bias differs on one path",
        "z + B here, z there",
        "Two ways to compute scores add different numbers.",
        "Build the bias once, and pass it to every branch.",
    ),
}

LATENT: dict[str, Entry] = {
    "dropout-before-softmax": Entry(
        "Dropout zeroes scores",
        "softmax(dropout(z))",
        "Dropout comes between the scores and the softmax.",
        "Drop weights: dropout(softmax(z)) v.",
        story="A score of 0 is no missing key: it is a likely one.",
    ),
    "dropout-twice": Entry(
        "Weights are dropped twice",
        "dropout(dropout(W)) v",
        "Two dropouts act between the softmax and the values.",
        "Keep one of the two.",
    ),
    "rounded": Entry(
        "Numbers pass through a half type",
        "softmax(half(z)) v",
        "Given float32, the code casts scores or weights to a 16-bit float.",
        "Keep the dtype, or sum in float32.",
    ),
}

WIRING: dict[str, Entry] = {
    "values-are-keys": Entry(
        "The weighted sum is of the keys",
        "W k",
        "The output does not depend on the values.",
        "Multiply the weights by v.",
        story="Keys and values have one shape.",
    ),
    "values-rotated": Entry(
        "Values are rotated with the keys",
        "W R v",
        "Outputs are weights times values turned by their positions.",
        "Rotate queries and keys only.",
    ),
    "cross-ignores-context": Entry(
        "Cross-attention looks at its own input",
        "k, v from x in place of the context",
        "No output depends on the context.",
        "Project keys and values from the context.",
        story="A decoder that ignores its source is a fluent language model.",
    ),
    "cross-causal": Entry(
        "Cross-attention is causal",
        "j ≤ i, of another sequence",
        "Query 0 sees key 0 of the context, the last query as many keys as there are queries.",
        "Say is_causal=False where keys come from elsewhere.",
        ("https://github.com/huggingface/transformers/issues/48172",),
        "Two sequences have no common order: most of the context is never seen.",
    ),
    "batch-and-sequence-exchanged": Entry(
        "The layer attends over the batch",
        "softmax over rows of the batch",
        "A row changes with other rows at its position, not with its own other positions.",
        "Say which comes first: batch_first=True for (b, t, c).",
    ),
}

POSITIONED: dict[str, Entry] = {
    "left-padding-positions": Entry(
        "Positions count the padding on the left",
        "p₀ for the padding, pₙ for the first word",
        "Padding before a text changes its outputs.",
        "Count positions from the mask: mask.cumsum(-1) - 1.",
        kind="hazard",
        story="Training pads on the right, generation in batches on the left.",
    ),
    "softcap-after-mask": Entry(
        "The softcap comes after the mask",
        "cap · tanh(−∞ / cap) = −cap",
        "Hidden keys all have the score −cap.",
        "Cap the scores first, and mask them last.",
    ),
    "mean-without-keys": Entry(
        "A query without keys gets the mean of all values",
        "softmax(−10⁹ …) = 1/s",
        "With every key hidden, the output is the mean of the values.",
        "Write zero where no key is allowed.",
        kind="hazard",
    ),
}
