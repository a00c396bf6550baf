"""Mistakes in what is hidden: causal masks, windows, masks of any kind, and padding."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

MASKS: dict[str, Entry] = {
    "mask-missing": Entry(
        "The causal mask is missing",
        "softmax(q kᵀ / √d) v over all keys",
        "Every query sees every key.",
        "Pass it on every path: with returned weights, a cache, another back end.",
        (
            "https://github.com/huggingface/transformers/issues/48748",
            "https://github.com/huggingface/transformers/pull/30652",
            "https://github.com/huggingface/transformers/issues/48745",
        ),
        "The training loss looks excellent and generation is gibberish. Often one path only lacks "
        "it: the one nobody tests.",
    ),
    "mask-inverted": Entry(
        "The mask is inverted",
        "z = −∞ where attention is allowed",
        "Every query sees exactly the keys it should not see.",
        "Check what True means: `nn.MultiheadAttention` ignores where True, "
        "`scaled_dot_product_attention` attends.",
        (
            "https://github.com/lucidrains/halonet-pytorch/issues/4",
            "https://github.com/InseeFrLab/torchTextClassifiers/pull/92",
            "https://github.com/lucidrains/x-transformers/issues/160",
        ),
        "PyTorch itself has both meanings.",
    ),
    "mask-transposed": Entry(
        "The mask is transposed",
        "maskᵀ",
        "Queries see later keys and not earlier ones.",
        "Use `tril` for a causal mask, not `triu`. Queries are rows.",
        story="The model knows the future and has forgotten the past.",
    ),
    "mask-top-left": Entry(
        "The causal mask is aligned top-left",
        "j ≤ i where t ≠ s",
        "With more keys than queries, query 0 sees key 0 only.",
        "Count positions from s − t: `tril(s - t)`, or `causal_lower_right` in PyTorch.",
        (
            "https://github.com/pytorch/pytorch/issues/144858",
            "https://github.com/onnx/onnx/pull/8068",
        ),
        "Both corners agree where t = s. With a cache, the newest query sees only the oldest key.",
    ),
    "causal-off-by-one": Entry(
        "The causal mask is off by one",
        "j ≤ i ± 1",
        "A query sees the next key, or not its own.",
        "`tril(0)` keeps the diagonal; `triu(1)` marks what comes after it.",
        story="One key too far: each position reads the token it should predict. One too few: the "
        "first query has no key, and its row is NaN or the mean of everything.",
    ),
    "mask-after-softmax": Entry(
        "The mask is applied after the softmax",
        "W = softmax(z) · mask",
        "Rows sum to less than 1, by the weight of the hidden keys.",
        "Set masked scores to −∞ before the softmax.",
        ("https://github.com/huggingface/pytorch-image-models/pull/2236",),
        story="Hidden keys still take weight: later tokens change the size of earlier outputs.",
    ),
    "mask-too-weak": Entry(
        "The mask adds too little",
        "z − c where hidden, c finite",
        "Hidden keys keep weight: e^−c of what they would have.",
        "Use −∞, or the lowest number of the dtype.",
        ("https://github.com/huggingface/transformers/pull/17306",),
        "Once scores fall below −10,000, hidden keys win.",
    ),
    "mask-boolean-added": Entry(
        "A boolean mask is added as a number",
        "z + mask, mask in {0, 1}",
        "Keys on one side gain a factor e, and none is hidden.",
        "`masked_fill(~mask, -inf)`, or make the mask additive first.",
        ("https://github.com/Lightning-AI/litgpt/issues/1672",),
        "True is 1, False is 0, and no error is raised.",
    ),
    "mask-on-queries": Entry(
        "The padding mask lies on the queries",
        "mask[:, :, None] for mask[:, None, :]",
        "Rows of padding are hidden, columns of padding are seen.",
        "Broadcast a mask of keys as (b, 1, 1, s).",
        story="In self-attention the shapes agree.",
    ),
    "mask-of-other-rows": Entry(
        "The mask belongs to other rows of the batch",
        "mask in the order (h, b), scores in (b, h)",
        "A row of the batch has the mask of another one.",
        "Use `repeat_interleave(h, 0)` for (b · h, t, s), not `repeat(h, 1, 1)`.",
        story="Equal lengths, or a batch of one, hide it.",
    ),
    "mask-other": Entry(
        "The mask is another than intended",
        "",
        "No known slip gives the keys that are seen.",
        "Start from the counterexample: one query and one key.",
    ),
    "window-off-by-one": Entry(
        "The window is off by one",
        "i − j ≤ n ± 1",
        "Each query sees one key more or fewer than the window holds.",
        "A window of n keys reaches n − 1 back: it holds the query's own key.",
        ("https://github.com/huggingface/transformers/pull/26792",),
        "Every library decides anew whether `window=4096` counts the own key. A cache that counts "
        "the other way forgets a key earlier or later.",
    ),
    "window-missing": Entry(
        "The window is missing",
        "j ≤ i without i − j < n",
        "Queries see keys beyond the window.",
        "Apply the window on every path, the cached one included.",
        story="Texts shorter than the window, as in most tests, hide it.",
    ),
}

PADDING: dict[str, Entry] = {
    "padding-attended": Entry(
        "Padding is attended to",
        "softmax over real keys and padding",
        "Outputs change with what stands in padding.",
        "Pass the padding mask to self-attention and to cross-attention.",
        ("https://github.com/speechbrain/speechbrain/issues/1107",),
        "A text then depends on the longest one in its batch. Cross-attention is where the mask is "
        "forgotten.",
    ),
    "padding-side": Entry(
        "The padding mask is on the wrong side",
        "j ≥ s − n for j < n",
        "Real keys at one end are hidden, padding at the other is seen.",
        "Build the mask from the ids, or ask the tokenizer for its padding side.",
    ),
    "lengths-off-by-one": Entry(
        "Lengths are off by one",
        "j < n ± 1",
        "One key of padding is seen, or one real key is hidden.",
        "`arange(s) < lengths`, strictly.",
        story="The last real key, often the end of the sentence, matters little to the loss "
        "and much to a reader.",
    ),
}
