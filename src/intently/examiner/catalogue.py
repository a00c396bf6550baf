"""The catalogue: every mistake that `check` knows by name, what it amounts to, and the cure.

An entry says what the code computes in place of softmax(q kᵀ / √d) v, how the mistake is told from
its neighbours, how to mend it, and where it really happened.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One mistake: its title, formula, tell-tale, cure, and real cases as links."""

    title: str
    formula: str
    told: str
    cure: str
    cases: tuple[str, ...] = ()


CATALOGUE: dict[str, Entry] = {
    # --- scale ---
    "no-scale": Entry(
        "Scores are not scaled",
        "softmax(q kᵀ) v",
        "log W rises by 1 for each unit of q · k, whatever d is.",
        "Multiply scores by 1/√d, d being the width of one head.",
    ),
    "scale-one-over-d": Entry(
        "Scores are divided by d",
        "softmax(q kᵀ / d) v",
        "The slope of log W over q · k is 1/d. Dividing twice by √d is the same formula.",
        "Divide once, by √d: not in the projection and again in the product.",
    ),
    "scale-model-width": Entry(
        "Scores are scaled by the width of the model",
        "softmax(q kᵀ / √c) v",
        "The slope is 1/√c, c being all heads together.",
        "Use the width of one head: c / h.",
    ),
    "scale-inverted": Entry(
        "Scores are multiplied by √d", "softmax(q kᵀ · √d) v", "The slope is √d.", "Divide by √d."
    ),
    # --- softmax ---
    "softmax-over-queries": Entry(
        "The softmax runs over queries",
        "W = exp z / Σᵢ exp z",
        "Columns of W sum to 1, rows do not.",
        "Use softmax(dim=-1) on scores (…, t, s); count axes again after an einsum.",
        ("https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",),
    ),
    "softmax-over-heads": Entry(
        "The softmax runs over heads",
        "W = exp z / Σₕ exp z",
        "For each query and key, the weights of all heads sum to 1.",
        "Use softmax(dim=-1): dim=1 of (b, h, t, s) is heads.",
    ),
    "softmax-over-batch": Entry(
        "The softmax runs over the batch",
        "W = exp z / Σ_b exp z",
        "Weights at one place sum to 1 over the rows of the batch.",
        "Use softmax(dim=-1): dim=0 is the batch.",
    ),
    "not-normalised": Entry(
        "Weights do not sum to 1",
        "W = f(z), Σⱼ W ≠ 1",
        "A constant value does not pass through unchanged.",
        "Divide by the sum over keys.",
        ("https://github.com/lucidrains/performer-pytorch/issues/40",),
    ),
    # --- masks ---
    "mask-missing": Entry(
        "The causal mask is missing",
        "softmax(q kᵀ / √d) v, all keys",
        "Every query sees every key.",
        "Pass the mask on every path: also with returned weights, a cache, another back end.",
        ("https://github.com/huggingface/transformers/pull/30652",),
    ),
    "mask-inverted": Entry(
        "The mask is inverted",
        "z = −∞ where attention is allowed",
        "Exactly the keys that should be hidden are seen.",
        "Check what True means: nn.MultiheadAttention ignores where True, SDPA attends.",
        (
            "https://github.com/lucidrains/halonet-pytorch/issues/4",
            "https://github.com/InseeFrLab/torchTextClassifiers/pull/92",
        ),
    ),
    "mask-transposed": Entry(
        "The mask is transposed",
        "maskᵀ",
        "Queries see later keys and not earlier ones.",
        "Use tril for a causal mask, not triu; queries are rows.",
    ),
    "mask-top-left": Entry(
        "The causal mask is aligned top-left",
        "j ≤ i where t ≠ s",
        "With more keys than queries, query 0 sees key 0 only.",
        "Count positions from s − t: tril(s − t), or causal_lower_right in PyTorch.",
        (
            "https://github.com/pytorch/pytorch/issues/144858",
            "https://github.com/onnx/onnx/pull/8068",
        ),
    ),
    "causal-off-by-one": Entry(
        "The causal mask is off by one",
        "j ≤ i ± 1",
        "A query sees the next key, or not its own.",
        "tril(0) includes the diagonal; triu(1) hides what comes after it.",
    ),
    "mask-after-softmax": Entry(
        "The mask is applied after the softmax",
        "W = softmax(z) · mask",
        "Rows sum to less than 1, by the weight of the hidden keys.",
        "Set masked scores to −∞ before the softmax.",
    ),
    "mask-too-weak": Entry(
        "The mask adds too little",
        "z − c where hidden, c finite",
        "Hidden keys keep weight, e^−c of what they would have.",
        "Use −∞, or the lowest number of the dtype.",
        ("https://github.com/huggingface/transformers/pull/17306",),
    ),
    "mask-boolean-added": Entry(
        "A boolean mask is added as a number",
        "z + mask, mask in {0, 1}",
        "Allowed keys gain a factor e, and nothing is hidden.",
        "masked_fill(~mask, −∞), or make the mask additive first.",
        ("https://github.com/Lightning-AI/litgpt/issues/1672",),
    ),
    "mask-on-queries": Entry(
        "The padding mask lies on the queries",
        "mask[:, :, None]",
        "Rows of padding are hidden, columns of padding are seen.",
        "Broadcast a mask of keys as (b, 1, 1, s).",
    ),
    "mask-of-other-rows": Entry(
        "The mask belongs to other batch rows",
        "mask laid out (h, b), scores (b, h)",
        "A row of the batch gets the mask of another.",
        "Use repeat_interleave(h, 0), not repeat(h, 1, 1), for (b · h, t, s).",
    ),
    "mask-other": Entry(
        "The mask is another than intended",
        "",
        "No known slip gives the keys that are seen.",
        "Compare with the counterexample.",
    ),
    "window-off-by-one": Entry(
        "The window is off by one",
        "i − j ≤ n ± 1",
        "One key more or fewer than the window holds.",
        "A window of n keys reaches n − 1 back, its own key included.",
        ("https://github.com/huggingface/transformers/pull/26792",),
    ),
    "window-missing": Entry(
        "The window is missing", "", "Keys beyond the window are seen.", "Apply it on every path."
    ),
    "padding-attended": Entry(
        "Padding is attended",
        "",
        "Outputs change with what stands in padding.",
        "Hand the padding mask to self-attention and to cross-attention.",
        ("https://github.com/speechbrain/speechbrain",),
    ),
    "lengths-off-by-one": Entry(
        "Lengths are off by one",
        "j < n ± 1",
        "One padded key is seen, or one real key hidden.",
        "arange(s) < lengths, strictly.",
    ),
    # --- heads ---
    "split-by-reshape": Entry(
        "Heads are split by a reshape",
        "x.view(b, h, t, d)",
        "Each head reads numbers of several positions.",
        "x.view(b, t, h, d).transpose(1, 2).",
    ),
    "merged-by-reshape": Entry(
        "Heads are merged by a reshape",
        "y.reshape(b, t, h·d) of (b, h, t, d)",
        "Parts of heads land on other positions.",
        "y.transpose(1, 2).reshape(b, t, h·d).",
        ("https://github.com/meta-pytorch/opacus/pull/825",),
    ),
    "key-heads-tiled": Entry(
        "Shared key heads are tiled",
        "head i reads key head i mod g",
        "Heads 0 and 2 read the same keys, where 0 and 1 should.",
        "repeat_interleave(h / g), not repeat.",
        ("https://github.com/onnx/onnx/pull/7274",),
    ),
    # --- positions ---
    "rotation-offset-lost": Entry(
        "The rotation forgets its offset in a cached step",
        "R(0) q in place of R(t) q",
        "Step by step differs from the whole pass; in steps, scores depend on no distance.",
        "Rotate by the positions in the text: add the length of the cache.",
        ("https://github.com/huggingface/transformers/pull/20203",),
    ),
    "bias-sign": Entry(
        "A bias by distance has the wrong sign",
        "z + m · (i − j)",
        "Of equal scores, the farthest key weighs most.",
        "ALiBi subtracts: −m · (i − j).",
        ("https://github.com/meta-pytorch/attention-gym/pull/86",),
    ),
    "bias-offset-lost": Entry(
        "A bias by distance is lost in a cached step",
        "bias of query 0 for each step",
        "Step by step has another bias than the whole pass.",
        "Build the bias from positions in the text.",
        ("https://github.com/keras-team/keras-hub/pull/2977",),
    ),
    "bias-missing": Entry("The bias is missing", "", "", "Add it before the softmax."),
    "bias-twice": Entry("The bias is added several times", "", "", "Add it once."),
    "bias-other": Entry("The bias is another than intended", "", "", "Compare the tables."),
    # --- caches and state ---
    "cached-step-differs": Entry(
        "Cached steps differ from the whole pass",
        "",
        "The same text in pieces gives other outputs.",
        "Compare positions, masks and the order of keys in a step with those of the whole pass.",
    ),
    "state-left": Entry(
        "State is left between calls",
        "",
        "The same call gives another output after another call.",
        "Reset caches at the start of a text.",
    ),
    "setting-matters": Entry(
        "A setting changes the output that should not", "", "", "Make both paths the same."
    ),
    "paths-differ": Entry(
        "Two paths compute different things",
        "",
        "With gradients the output differs from that without.",
        "Fused and plain paths have to take the same mask and scale.",
        ("https://github.com/pytorch/pytorch/issues/24816",),
    ),
    # --- dropout, gradients ---
    "dropout-in-eval": Entry(
        "Dropout acts in evaluation mode",
        "",
        "Two equal calls in eval() differ.",
        "F.dropout(x, p, self.training); dropout_p=p if self.training else 0.0 for SDPA.",
        (
            "https://github.com/pytorch/pytorch/issues/124464",
            "https://github.com/huggingface/pytorch-image-models/pull/1978",
            "https://github.com/meta-pytorch/torchtune/issues/1791",
        ),
    ),
    "gradient-cut": Entry(
        "A gradient is cut",
        "",
        "The output depends on a tensor that gets no gradient.",
        "Remove detach, .data, no_grad and item() from the path.",
    ),
    "gradient-scaled": Entry(
        "A gradient is scaled",
        "",
        "Autograd differs from central differences by a factor.",
        "Mend the backward of the custom function.",
    ),
    "input-changed": Entry(
        "The call changes its inputs",
        "",
        "A tensor of the caller differs afterwards.",
        "Avoid in-place operations on arguments: x = x * s, not x *= s.",
    ),
    # --- leaks ---
    "leak-later": Entry(
        "Later inputs leak into earlier outputs",
        "",
        "The weights are causal, and outputs still change with later inputs.",
        "Look for a convolution, a mean or a normalisation over positions beside the attention.",
    ),
    "batch-mixed": Entry(
        "Rows of the batch are mixed",
        "",
        "A row's output changes with the content of another.",
        "Check batch_first, and every view and reshape that joins batch and sequence.",
        ("https://github.com/PetrochukM/PyTorch-NLP",),
    ),
    "nan-without-keys": Entry(
        "A query without keys gives NaN",
        "softmax(−∞, …, −∞)",
        "A fully padded row is NaN.",
        "Give such rows zero.",
        ("https://github.com/pytorch/pytorch/issues/24816",),
    ),
    "strides": Entry(
        "Strides change the output",
        "",
        "The same numbers in another layout give another output.",
        "Replace view by reshape, or call contiguous() before it.",
    ),
}
