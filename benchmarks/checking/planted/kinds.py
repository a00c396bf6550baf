"""The kinds of mistakes: a slug, and one sentence that says what is wrong."""

from __future__ import annotations

KINDS: dict[str, str] = {
    # scale
    "no-scale": "The scores are not divided by √d.",
    "scale-by-d": "The scores are divided by d, not by √d.",
    "scale-by-width": "The scores are divided by √c, the width of the model, not by √d of a head.",
    "scaled-twice": "The scores are divided by √d two times.",
    "like-scale": "The scores are multiplied by another number than the reference's.",
    # softmax and weights
    "softmax-over-queries": "The softmax runs over the queries, not the keys.",
    "softmax-over-heads": "The softmax runs over the heads, not the keys.",
    "softmax-over-batch": "The softmax runs over the batch, not the keys.",
    "not-normalised": "The weights of a query do not sum to 1.",
    "rounded": "Scores or weights pass through a half-precision type.",
    "values-are-keys": "The weighted sum is of the keys, not of the values.",
    "softcap-in-one-back-end": "One of two ways to compute leaves out the softcap.",
    "softcap-after-mask": "The softcap comes after the mask and lifts masked scores to −cap.",
    "sinks-in-one-back-end": "One of two ways to compute leaves out the sinks.",
    # masks
    "mask-missing": "There is no mask, or it is computed and not used.",
    "mask-inverted": "What should be hidden is seen, and what should be seen is hidden.",
    "mask-transposed": "The mask has queries and keys exchanged: queries see the future.",
    "mask-top-left": "With more keys than queries, query 0 stands at key 0, not at s − t.",
    "mask-ahead-by-one": "A query sees one key after its own.",
    "mask-behind-by-one": "A query does not see the key of its own step.",
    "mask-after-softmax": "The mask zeroes weights after the softmax, so rows sum to less than 1.",
    "mask-after-softmax-renormalised": "The mask acts after the softmax and the rest is divided "
    "by its sum: another way to write the same.",
    "mask-too-weak": "What is added to hidden scores is too small to hide them.",
    "mask-twice": "The mask or bias is added two times.",
    "mask-added-as-number": "A boolean mask is added to the scores as 0 and 1.",
    "mask-head-order": "The mask is laid out for another order of heads and batch rows.",
    "mask-batch-rows": "A batch row gets the mask of another row.",
    "mask-on-query-axis": "The mask of the keys lies along the queries.",
    "mask-dropped-with-dropout": "The mask is left out in training or with dropout.",
    "mask-dropped-with-weights": "The mask is left out where the weights are asked for.",
    "mask-in-one-back-end": "One of two ways to compute leaves out the mask or has another.",
    "mask-in-cache": "With earlier steps in the cache, new steps see each other unmasked.",
    "window-left-off-by-one": "The window reaches one key too far or too little into the past.",
    "window-right-off-by-one": "The window reaches one key too far or too little ahead.",
    "window-missing": "A side of the window has no limit.",
    "window-off-in-cache": "Steps from the cache see more keys than the window holds.",
    # padding
    "padding-attended": "Self-attention looks at padding.",
    "padding-attended-in-cross": "Cross-attention looks at the padding of its context.",
    "lengths-off-by-one": "The padding begins one step too early or too late.",
    "left-padding-positions": "Positions count the padding on the left.",
    "nan-for-empty-row": "A query that may see nothing gets NaN.",
    "mean-for-empty-row": "A query that may see nothing gets the mean of all values.",
    # heads and axes
    "heads-split-by-reshape": "Heads are split by a reshape that mixes steps and heads.",
    "heads-merged-by-reshape": "Heads are joined by a reshape that mixes steps and heads.",
    "heads-interleaved": "A head takes every h-th column, not d neighbours.",
    "key-heads-tiled": "Shared key heads are laid out 0 1 0 1, not 0 0 1 1.",
    "batch-and-sequence-exchanged": "The layer attends over the batch, not over the sequence.",
    "cross-ignores-context": "Cross-attention looks at its own input, not at the context.",
    # positions
    "rotation-offset-lost": "Steps after cached ones are rotated as if they were the first.",
    "rotation-off-by-one": "Rotated positions are off by one.",
    "keys-not-rotated": "Queries are rotated, keys are not.",
    "values-rotated": "Values are rotated with the keys.",
    "rotary-base": "The rotation has another base than the reference's.",
    "rotary-pairs": "The rotation pairs neighbours where it should pair halves, or mixes both.",
    "rotary-direction": "The rotation turns the other way.",
    "rotary-over-heads": "The angle grows with the head, not with the step.",
    "position-offset-lost": "Steps after cached ones get the embeddings of the first positions.",
    "alibi-sign": "ALiBi favours distant keys.",
    "alibi-missing": "ALiBi is not added.",
    "alibi-slopes": "Heads have other slopes than they should.",
    "alibi-offset-lost": "Steps after cached ones get ALiBi as if they were the first.",
    "bias-scaled": "The bias is divided by √d with the scores.",
    "bias-in-one-back-end": "One of two ways to compute leaves out the bias or has another.",
    # caches and state
    "cache-overwritten": "New steps overwrite keys or values that are still needed.",
    "cache-rolled-early": "The cache drops the oldest step while it is still in the window.",
    "cache-rows-exchanged": "Cached keys or values belong to another batch row.",
    "cache-prepended": "New keys or values are put before the old ones, so the mask hides others.",
    "cache-pairs-apart": "Cached keys and values no longer stand at the same steps.",
    "cache-layers-exchanged": "A layer gets the cache of another layer.",
    "cache-rotated-twice": "Cached keys are rotated again at each step.",
    "state-left": "A call goes on from what an earlier, unrelated call left behind.",
    # dropout and gradients
    "dropout-in-eval": "Dropout acts outside of training.",
    "dropout-twice": "Dropout acts two times.",
    "dropout-before-softmax": "Dropout zeroes scores, not weights.",
    "gradient-cut": "A gradient does not flow: something is detached.",
    "gradient-scaled": "A gradient is larger or smaller than it should be.",
    "input-changed": "The call changes a tensor of its caller.",
    # leaks beside the attention
    "leak-by-convolution": "A convolution in a causal layer sees later steps.",
    "leak-by-norm": "A normalisation in a causal layer runs over the steps.",
    "leak-by-mean": "A mean or deviation over all steps enters a causal layer.",
    # weights of a reference
    "layout-of-fused-rows": "The rows of a fused projection are read in another layout.",
    "projections-exchanged": "Two of the query, key and value projections are exchanged.",
    "bias-missing": "A projection's bias is left out.",
    "weight-transposed": "A projection's weight is transposed.",
}

ALIKE: tuple[frozenset[str], ...] = (
    frozenset({"scale-by-d", "scaled-twice"}),
    frozenset({"scale-by-d", "scaled-twice", "scale-by-width", "no-scale", "like-scale"}),
    frozenset({"mask-added-as-number", "mask-too-weak"}),
    frozenset({"mask-missing", "padding-attended", "padding-attended-in-cross"}),
    frozenset({"mask-in-one-back-end", "mask-dropped-with-weights", "mask-dropped-with-dropout"}),
    frozenset({"heads-interleaved", "layout-of-fused-rows", "heads-split-by-reshape"}),
    frozenset({"leak-by-mean", "leak-by-norm"}),
    frozenset({"cache-overwritten", "cache-rolled-early"}),
)
"""Kinds that are one function from outside, or one mistake under two names: naming any of a group
where another was planted is right. The first group is exact: √d · √d = d."""
