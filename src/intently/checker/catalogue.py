"""The catalogue: every finding that `check` knows by name, what it amounts to, and the cure.

It is one table. Scores are z = q·k / √d, weights w = softmax(z), and outputs y = w v; a formula
says what the code computes in their place. An entry is ``name (kind) | title | formula``; below,
indented, how numbers give it away → the cure, and on lines of their own ``*`` why it goes unnoticed
and ``@`` where it really happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

Kind = Literal["mistake", "hazard", "by design", "convention"]


@dataclass(frozen=True)
class Entry:
    """One finding by name: its title, formula, tell-tale, cure, and real cases as links.

    ``told`` says how numbers give it away, ``story`` why it goes unnoticed.
    """

    title: str
    formula: str
    told: str
    cure: str
    cases: tuple[str, ...] = ()
    story: str = ""
    kind: Kind = "mistake"


TABLE = """
# Scale
no-scale | Scores are not scaled | z = q·k
  Scores rise by 1 for each unit of q·k, whatever d is.
  → Multiply scores by 1/√d, where d is the width of one head.
  * Dot products grow with √d, so one key takes nearly all the weight of a wide head.
scale-one-over-d | Scores are divided by d | z = q·k / d
  Scores rise by 1/d for each unit of q·k. → Divide by √d once: the queries or the product.
  * Often two people divided by √d.
scale-model-width | Scores are scaled by the width of the model | z = q·k / √c
  Scores rise by 1/√c for each unit of q·k, where c is all heads together.
  → Use the width of one head, c / h: `q.shape[-1]` after the split.
  * With one head it is right.
  @ lucidrains/vit-pytorch/issues/65
scale-by-heads | Scores are scaled by the number of heads | z = q·k / √h
  Scores rise by 1/√h for each unit of q·k. → Use the width of a head: c // h, not h.
scale-one-side | Only queries or keys are scaled by the fourth root | z = q·k / d^¼
  Scores rise by d^−¼ for each unit of q·k. → Scale both by d^−¼, or one of them by 1/√d.
scale-inverted | Scores are multiplied by √d | z = q·k · √d
  Scores rise by √d for each unit of q·k. → Divide by √d. With `scale=`, pass 1/√d: it multiplies.
other-scale (hazard) | The scale is not 1/√d | z = σ q·k
  Scores rise by σ for each unit of q·k, and σ is none of the usual slips.
  → None if it is meant: state it as `scale=`.

# Softmax
softmax-over-queries | The softmax runs over queries | w = exp z / Σᵢ exp z
  Columns of w sum to 1; rows do not. → Use `softmax(dim=-1)` on scores (…, t, s).
  @ FudanNLP/fastNLP/issues/254
  @ labmlai/annotated_deep_learning_paper_implementations/issues/146
softmax-over-heads | The softmax runs over heads | w = exp z / Σₕ exp z
  For a query and a key, the weights of all heads sum to 1.
  → Use `softmax(dim=-1)`: dim=1 of (b, h, t, s) is heads.
softmax-over-batch | The softmax runs over the batch | w = exp z / Σ_b exp z
  For a query and a key, the weights of the whole batch sum to 1.
  → Use `softmax(dim=-1)`: dim=0 is the batch.
  * Evaluated alone, every weight of a text is 1.
  @ PetrochukM/PyTorch-NLP/issues/2
not-normalised | Weights do not sum to 1 | w = f(z), Σⱼ w ≠ 1
  A constant value does not pass through unchanged. → Divide by the sum over the keys that are seen.
  * A layer norm hides it until texts get longer than those of training.
  @ lucidrains/performer-pytorch/issues/40
sink (convention) | A sink takes part of every row | w = exp z / (Σⱼ exp z + exp sink)
  What rows lack of 1 amounts to one additional score.
  → None if it is meant: some models learn a sink for each head.
gated (convention) | A gate changes the weights | w = g · softmax(z)
  Weights are changed between the softmax and the values.
  → None if it is meant: some models gate or mix heads.
sinks-missing | The sinks are missing | w = exp z / Σⱼ exp z, without exp sink
  Rows sum to 1 where the reference leaves a part to a sink.
  → Add it to the denominator on every path; most fused kernels cannot.
sinks-other | The sinks are others | w = exp z / (Σⱼ exp z + exp sink′)
  Rows lose another share to the sink. → Copy the sinks of each head with the other weights.
softcap-missing | The softcap is missing | z for cap · tanh(z / cap)
  Scores grow beyond the cap of the reference. → Apply it on every path, before the mask.
  * Small scores pass a softcap unchanged, so a random tiny model shows nothing.
softcap-other | The softcap is another | cap′ · tanh(z / cap′)
  Large scores flatten out at another height. → Read the cap from the config; cap scaled scores.
scores-other | Scores are of a different kind | z = another function of q and k
  The reference scores differently, by cosine for example.
  → Compare the scores of one query and one key.

# Masks
mask-missing | The causal mask is missing | z for z − ∞ where j > i
  Every query sees every key. → Pass the mask on every path: with a cache, with weights.
  * The training loss looks excellent, and generation is gibberish.
  @ huggingface/transformers/issues/48748
  @ huggingface/transformers/pull/30652
  @ huggingface/transformers/issues/48745
mask-inverted | The mask is inverted | z = −∞ where attention is allowed
  Every query sees exactly the keys it should not see. → Check what True means:
  `nn.MultiheadAttention` ignores where True, `scaled_dot_product_attention` attends.
  @ lucidrains/halonet-pytorch/issues/4
  @ InseeFrLab/torchTextClassifiers/pull/92
  @ lucidrains/x-transformers/issues/160
mask-transposed | The mask is transposed | z = −∞ where j < i
  Queries see later keys and not earlier ones. → Use `tril`, not `triu`: queries are rows.
mask-top-left | The causal mask is aligned top-left | z = −∞ where j > i, for j > i + s − t
  With more keys than queries, query 0 sees key 0 only.
  → Count positions from s − t: `tril(s - t)`, or `causal_lower_right` in PyTorch.
  * Both corners agree where t = s, so only a cache shows it.
  @ pytorch/pytorch/issues/144858
  @ onnx/onnx/pull/8068
causal-off-by-one | The causal mask is off by one | z = −∞ where j > i ± 1
  A query sees the next key, or not its own.
  → `tril(0)` keeps the diagonal; `triu(1)` marks what comes after it.
  * One key too far, and each position reads the token it should predict.
mask-after-softmax | The mask is applied after the softmax | w = softmax(z) · mask
  Rows sum to less than 1, by the weight of the hidden keys.
  → Set masked scores to −∞ before the softmax.
  @ huggingface/pytorch-image-models/pull/2236
mask-too-weak | The mask adds too little | z − c where hidden, c finite
  Hidden keys keep weight: e^−c of what they would have.
  → Use −∞, or the lowest number of the dtype.
  @ huggingface/transformers/pull/17306
mask-boolean-added | A boolean mask is added as a number | z + mask, mask in {0, 1}
  Keys on one side gain a factor e, and none is hidden.
  → `masked_fill(~mask, -inf)`, or make the mask additive first.
  @ Lightning-AI/litgpt/issues/1672
mask-on-queries | The padding mask lies on the queries | z = −∞ where query i is padding
  Rows of padding are hidden, columns of padding are seen.
  → Broadcast a mask of keys as (b, 1, 1, s): in self-attention the shapes agree either way.
mask-of-other-rows | The mask belongs to other rows of the batch | z of row b, mask of row b′
  A row of the batch has the mask of another one.
  → Use `repeat_interleave(h, 0)` for (b · h, t, s), not `repeat(h, 1, 1)`.
  * Equal lengths, or a batch of one, hide it.
mask-other | The mask is another than intended | z = −∞ elsewhere
  No known slip gives the keys that are seen. → Compare the rows, heads and keys that are named.
window-off-by-one | The window is off by one | z = −∞ where i − j > n ± 1
  Each query sees one key more or fewer than the window holds.
  → A window of n keys reaches n − 1 back: it holds the query's own key.
  @ huggingface/transformers/pull/26792
window-missing | The window is missing | z for z − ∞ where i − j > n
  Queries see keys beyond the window. → Apply the window on every path, the cached one included.
  * Texts shorter than the window, as in most tests, hide it.
softcap-after-mask | The softcap comes after the mask | z = cap · tanh(−∞ / cap) = −cap
  Hidden keys all have the score −cap. → Cap the scores first, and mask them last.

# Padding
padding-attended | Padding is attended to | w = softmax over real keys and padding
  Outputs change with what stands in padding.
  → Pass the padding mask to self-attention and to cross-attention.
  * A text then depends on the longest one in its batch.
  @ speechbrain/speechbrain/issues/1107
padding-side | The padding mask is on the wrong side | z = −∞ where j < s − n, for j ≥ n
  Real keys at one end are hidden, padding at the other is seen.
  → Build the mask from the ids, or ask the tokenizer for its padding side.
lengths-off-by-one | Lengths are off by one | z = −∞ where j ≥ n ± 1
  One key of padding is seen, or one real key is hidden. → `arange(s) < lengths`, strictly.
left-padding-positions (hazard) | Positions count the padding on the left | xₙ + pₙ for x₀ + p₀
  Padding before a text changes its outputs.
  → Count positions from the mask: `mask.cumsum(-1) - 1`.
  * Training pads on the right, generation in batches on the left.
nan-without-keys (hazard) | A query without keys gives NaN | w = softmax(−∞, …, −∞)
  A fully padded row is NaN. → Give such rows zero: `nan_to_num` on the weights.
  * The row is never used, but its gradient is NaN, and one is enough.
  @ pytorch/pytorch/issues/24816
mean-without-keys (hazard) | A query without keys gets the mean of all values | w = 1 / s
  With every key hidden, the output is the mean of the values. → Write zero where no key is allowed.
nan-with-keys | A query that has keys gives NaN | 0 · ∞, ∞ − ∞ or 0 / 0
  The example gives NaN, and no row is without keys.
  → Mask by `masked_fill`: a mask times −∞ is NaN where it is 0.

# Heads
split-by-reshape | Heads are split by a reshape | q = x.view(b, h, t, d)
  Each head reads numbers of several positions. → `x.view(b, t, h, d).transpose(1, 2)`.
  * A causal mask no longer hides the future, and the loss falls below what is possible.
merged-by-reshape | Heads are merged by a reshape | y.reshape(b, t, c) of y (b, h, t, d)
  What a head computed for one position is written to another.
  → `y.transpose(1, 2).reshape(b, t, h * d)`.
  * `view` would have raised an error; `reshape` does not.
  @ meta-pytorch/opacus/pull/825
key-heads-tiled (hazard) | Shared key heads are tiled | k of head i mod g, for i // (h / g)
  Heads 0 and 2 read the same keys where 0 and 1 should.
  → `repeat_interleave(h // g, 1)`, not `repeat`: consecutive heads share.
  * A model trained from scratch does not care. A checkpoint does.
  @ onnx/onnx/pull/7274
heads-interleaved | Heads take every h-th number of a projection | x.view(b, t, d, h)
  A head reads numbers that lie h apart. → Split as (h, d), the heads outside.

# Wiring
values-are-keys | The weighted sum is of the keys | y = w k
  Values are made of the keys. → Multiply the weights by v.
query-without-influence | The query cancels | z = q + k, without tanh
  Weights are the same for any query. → Put tanh between the sum and the last product.
values-are-queries | The weighted sum is of the queries | y = w q
  Values are made of the queries. → Multiply the weights by v.
keys-are-queries | Queries and keys come from one projection | z = q·q
  A projection has no effect: two of q, k and v read the same numbers of another.
  → Give each its own: `k = self.k(x)`.
values-of-other-keys | Values belong to other keys | yᵢ = Σⱼ wᵢⱼ vⱼ₊₁
  A key and the value of its weight are made of different rows.
  → Shift, cut and reorder keys and values together.
scores-of-other-queries | Scores are made of another query | zᵢⱼ = qᵢ·kⱼ + qᵢ₊₁·rₙ
  A score of query i changes with the row of query i + 1.
  → Relative shift without a causal mask needs all 2 t − 1 distances, as in Conformer.
  @ ZhengkunTian/OpenTransformer/issues/25
attention-repeated | Every head or step attends alike | w² = w¹ = w, of the same q and k
  Weights of all heads that code makes one by one, or of all steps of a decoder, are equal.
  → `[nn.Linear(c, d) for _ in range(h)]` for `[nn.Linear(c, d)] * h`; ask with the new state.
  @ stevinc/Transformer_Timeseries/issues/2
values-rotated | Values are rotated with the keys | y = w R v
  Outputs are weights times values turned by their positions. → Rotate queries and keys only.
output-reordered | Outputs come out in another order | yₜ₋₁₋ᵢ for yᵢ
  Each row is right, and stands at another place. → Return weights times values as they are.
output-lost | What attention gives is thrown away | x for x + y
  Nothing that comes out is made of weights times values. → Return the product, not the input.
  @ pinellolab/DNA-Diffusion/issues/235
output-changed | Something is done to weights times values | f(w v) for w v
  What comes out of the function is not the product.
  → Return weights times values; what comes after belongs into the caller.
cross-exchanged | Queries come from the context | y = attention(context, x, x)
  Queries are made of the context, keys and values of the layer's own input.
  → Project queries from x, keys and values from the context.
cross-ignores-context | Cross-attention looks at its own input | k, v of x for k, v of the context
  No output depends on the context. → Project keys and values from the context.
  * A decoder that ignores its source is a fluent language model.
cross-causal | Cross-attention is causal | z = −∞ where j > i, of another sequence
  Query 0 sees key 0 of the context, the last query as many keys as there are queries.
  → Say `is_causal=False` where keys come from elsewhere.
  @ huggingface/transformers/issues/48172
batch-and-sequence-exchanged | The layer attends over the batch | w over rows of the batch
  Keys of a query come from other rows of the batch.
  → Say which comes first: `batch_first=True` for (b, t, c).

# Positions
rotation-missing | Queries and keys are not rotated | z = q·k for R(i)q·R(j)k
  Scores do not depend on distance; the reference's do.
  → Rotate both, after the projection and before the product.
keys-not-rotated | Queries are rotated and keys are not | z = R(i)q·k
  Scores depend on the position of one side, not on the distance.
  → Rotate queries and keys, each by its own position.
rotation-off-by-one | Queries and keys are rotated one step apart | z = R(i ± 1)q·R(j)k
  Scores are those of a distance one larger or smaller.
  → Count positions of queries and keys from the same zero.
rotation-offset-lost | The rotation forgets its offset | z = R(0)q·R(j)k for R(t)q·R(j)k
  Beside older keys, every new query is rotated as the first one.
  → Rotate by positions in the text: add the length of the cache.
  * Training never takes a cached step. Generated text starts well and drifts.
  @ huggingface/transformers/pull/20203
rotary-pairs | Rotation pairs the wrong numbers of a head | (0, 1), (2, 3), … for (0, d/2), …
  Pairs are turned where halves are meant, or the angles of one are used on the other.
  → Convert the projections once, or rotate as the checkpoint was trained.
  * LLaMA was published with pairs and ported with halves and permuted weights.
rotary-over-heads | The angles grow with heads | R(head) for R(position)
  All positions of a head have the same angle.
  → Rotate along the axis of positions: after the transpose it is dim −2.
rotary-base | The base of the rotation is another | θ = base′^(−2n/d)
  Angles grow by another base than the reference's. → Read `rope_theta` from the config.
  * Only far tokens tell.
rotary-direction | The rotation turns the other way | z = R(i)q·R(−j)k
  Queries and keys are turned in opposite ways, so scores depend on i + j.
  → Check the sign of the sine in both halves.
rotation-other | Queries and keys are rotated otherwise | R′(i)q·R″(j)k
  Both are rotated, and no known slip makes one of the other.
  → Compare the angles at position 1: width, base, scaling.
bias-sign | A bias by distance has the wrong sign | z + m · (i − j)
  Of equal scores, the farthest key weighs most. → ALiBi subtracts: −m · (i − j).
  @ meta-pytorch/attention-gym/pull/86
bias-missing | The bias is missing | z for z + bias
  Scores hold nothing but q·k. → Add the bias to the scores before the softmax, on every path.
  * Fused kernels take a bias in the place of a mask, so one of the two is lost.
bias-twice | The bias is added several times | z + n · bias
  What is added is a multiple of the intended bias. → Add it once: in the mask, or beside it.
bias-scaled | The bias is scaled | z + c · bias
  What is added is a part of the intended bias. → Add the bias after the scale of q·k.
  * T5 does not scale its scores. In code that does, its bias shrinks by √d.
bias-slopes | The slopes of the heads are others | z − mₕ′ · (i − j)
  Each head adds another multiple of the bias.
  → ALiBi's slopes are 2^(−8n/h); for h no power of two the series is interleaved.
bias-other | The bias is another than intended | z + bias′
  What is added is no multiple of the intended bias.
  → Compare both tables at one distance: slope, bucket, order of heads.

# Step by step
cached-step-differs | Cached steps differ from the whole pass | yₜ of x₀ … xₜ ≠ yₜ of xₜ and a cache
  The same text in pieces gives other outputs.
  → Compare positions, masks and the order of keys with those of the whole pass.
state-left | State is left between calls | f(x) depends on earlier calls
  The same call gives another output after another call.
  → Start a text with an empty cache; keep nothing of a call on the module.
cache-overwritten | The cache drops keys that are still needed | keys of step i ⊊ {0 … i}
  A key has no weight from a later query that should see it.
  → Append, or roll only what the window no longer holds.
cache-rolled-early | The cache rolls one key too early | i − j < n − 1 for i − j < n
  The oldest key of the window is gone when it is needed last.
  → Hold as many keys as the window has, the query's own included.
cache-prepended | New keys stand before the older ones | k = [new, old]
  The mask hides the keys that it would hide if each step came first.
  → Concatenate the cache first: `cat((past, new))`.
  * Only chunks of several tokens show it.
cache-layers-exchanged | A layer reads the cache of another | k of layer l′ ≠ l
  Keys in steps come from the projections of two layers.
  → Index the cache by layer, and give each layer its own number.
cache-rows-exchanged | Rows of the batch exchange their caches | k of row b′ ≠ b
  A row attends to the keys of another one.
  → Reorder the cache with the beams, once, along the batch.
  * A batch of one hides it.
cache-pairs-apart | Cached keys and values no longer belong together | kⱼ beside vⱼ₊₁
  A key and the value of another step share a slot.
  → Roll, cut and reorder keys and values together.
cache-rotated-twice | Cached keys are rotated again | z = R(i)q·R(j)R(j)k
  The angle of a cached key changes from step to step.
  → Store keys after the rotation, or rotate them when they are read, not both.
mask-in-cache | Steps after cached ones see later keys | z for z − ∞ where j > i
  The whole pass is causal, a chunk after cached steps is not.
  → Build the mask for queries at s − t … s − 1.
  * A single token needs no mask. A chunk does.
window-off-in-cache | Steps from a cache see beyond the window | z for z − ∞ where i − j > n
  The whole pass keeps the window, cached steps see more keys.
  → Cut the cache to the window, or mask it.
position-offset-lost | Steps get the positions of the first tokens | xₜ + p₀ for xₜ + pₜ
  Steps embed other positions than the whole pass. → Start positions at the length of the cache.
bias-offset-lost | A bias by distance is lost in a cached step | z + bias of query 0
  Steps have another bias than the whole pass. → Build the bias from positions in the text.
  @ keras-team/keras-hub/pull/2977

# One path only
mask-in-one-path | The mask is dropped on one path | z for z − ∞ where hidden
  The plain call is masked; with the option, hidden keys have weight.
  → Pass the mask to every branch, and compare branches in a test.
  @ huggingface/transformers/pull/30652
softcap-in-one-path | The softcap is left out on one path | z for cap · tanh(z / cap)
  One way of computing caps the scores, another does not.
  → Refuse back ends that know no softcap, or cap in each of them.
sinks-in-one-path | The sinks are left out on one path | Σⱼ exp z for Σⱼ exp z + exp sink
  Rows sum to less than 1 on one path and to 1 on another.
  → Add the sink wherever a softmax is computed.
bias-in-one-path | The bias differs on one path | z + bias here, z there
  Two ways to compute scores add different numbers. → Build the bias once, for every branch.
setting-matters | A setting that should not matter changes the output | f(x, setting) ≠ f(x)
  The same call under another setting gives another output.
  → Run both on one example; the first layer in which they part has the cause.
paths-differ | Two paths compute different things | f(x) with gradients ≠ f(x) without
  Gradient mode, dtype or shape choose a fast path that computes something else.
  → Give the fused and the plain path the same mask, scale and dropout.
  @ pytorch/pytorch/issues/24816

# Training and evaluation
dropout-in-eval | Dropout acts in evaluation mode | y = dropout(w) v in eval()
  Two equal calls in `eval()` differ. → `F.dropout(x, p, self.training)`;
  for `scaled_dot_product_attention`, `dropout_p=p if self.training else 0.0`.
  @ pytorch/pytorch/issues/124464
  @ huggingface/pytorch-image-models/pull/1978
  @ meta-pytorch/torchtune/issues/1791
dropout-before-softmax | Dropout zeroes scores | w = softmax(dropout(z))
  Dropout comes between the scores and the softmax. → Drop weights: `dropout(softmax(z)) v`.
  * A score of 0 is no missing key: it is a likely one.
dropout-twice | Weights are dropped twice | y = dropout(dropout(w)) v
  Two dropouts act between the softmax and the values. → Keep one of the two.
gradient-cut | A gradient is cut | ∂y/∂x = 0 where y depends on x
  The output depends on a tensor that gets no gradient.
  → Remove `detach`, `.data`, `no_grad` and `item()` from the path.
  * Other parameters compensate, so training only looks slow.
gradient-scaled | A gradient is scaled | c · ∂y/∂x
  Autograd differs from central differences by a factor. → Mend the backward of the custom function.

# Calls
leak-later | Later inputs leak into earlier outputs | yᵢ depends on xⱼ, j > i
  The weights are causal, and outputs still change with later inputs.
  → Look for a convolution, a mean or a norm over positions.
batch-mixed | Rows of the batch are mixed | y of row b depends on x of row b′
  A row's output changes with the content of another.
  → Check `batch_first`, and every view that joins batch and sequence.
  * With `batch_first=False`, the default, (b, t, c) is read as (t, b, c).
  @ PetrochukM/PyTorch-NLP/issues/2
input-changed | The call changes its inputs | x ← g(x)
  A tensor of the caller differs afterwards. → Write `x = x * s`, not `x *= s`.
  * Harmless until a residual connection goes around the layer.
view-raises | A view raises | x.view(…) where the axes of x are not contiguous
  Every call raises; with `reshape` in place of `view` it does not.
  → Split with `x.view(b, t, h, d).transpose(1, 2)`, merge with
  `x.transpose(1, 2).reshape(b, t, c)`.
  * The error advises `reshape`, which runs and gives each head numbers of several positions.
strides | Strides change the output | f(x) ≠ f(x.contiguous())
  The same numbers in another memory layout give another output.
  → Replace `view` by `reshape`, or call `contiguous()` before it.

# Large and short numbers
large-scores (hazard) | Large scores overflow or are cut off | exp z / Σ exp z, without z − max z
  With scores of ±10,000, outputs are NaN, or the key with the largest score loses.
  → Call `softmax`, or subtract the largest score of each row before `exp`. Do not clamp.
half-overflow (hazard) | A half type overflows | q·k > 65,504
  In float16 the output is not finite where it is in float32.
  → Scale queries before the product; mask with −∞; leave no row without a key.
half-imprecise (hazard) | A half type loses more than it has to | Σ in half
  The error is more than twice that of the plain formula in the same type.
  → Sum in float32: the softmax, and the weighted values.
rounded | Numbers pass through a half type | w = softmax(half(z))
  Given float32, the code casts scores or weights to a 16-bit float. → Keep the dtype.

# Beside a reference
layout-of-fused-rows | A fused projection is cut in another order | (h, 3, d) for (3, h, d)
  Read in the other order, queries, keys and values are those of the reference.
  → Reorder the rows of the weight when a checkpoint is converted.
  * GPT-NeoX and BLOOM lay out (h, 3, d), GPT-2 (3, h, d).
projections-exchanged | Queries, keys and values are exchanged | q = W_k x, k = W_q x
  What one projects to keys, the other projects to queries.
  → Check the order in which the parts of a checkpoint are named.
projection-bias-missing | A projection's bias is missing | q = W x for W x + b
  A bias has no effect, or the projections differ by a constant.
  → Load the bias and add it: some models have it for q, k and v only.
weight-transposed | A weight is used transposed | q = Wᵀ x for W x
  The projection fits the transposed weight.
  → `nn.Linear` holds (out, in); Conv1D of GPT-2, JAX and TensorFlow hold (in, out).
projection-scaled | A projection is scaled | q = c · W x
  The projections differ by a factor. → Scale the scores once: in the weight, or in the product.
projection-other | A projection differs | q = W′ x for W x
  Queries, keys or values differ, and no known slip makes one of the other.
  → Compare the weights by name, and what enters them.
attentions-differ | The numbers of attentions differ | n′ attentions for n
  More or fewer attentions run than in the reference.
  → Compare depth and configuration: a layer may be skipped, shared or fused.
differs-from-reference | Outputs differ from the reference | f(x) ≠ g(x)
  The same inputs and weights give other outputs, and no attention tells why.
  → Start with the module named first: only what leaves it differs.
"""

HEAD = re.compile(r"([a-z-]+)(?: \(([a-z ]+)\))? \| ([^|]+) \| (.+)")


def _entry(lines: list[str]) -> tuple[str, Entry]:
    """One entry of the table, by its name."""
    head = HEAD.fullmatch(lines[0])
    assert head is not None, lines[0]
    name, kind, title, formula = head.groups()
    text = " ".join(x for x in lines[1:] if x[0] not in "*@")
    told, _, cure = text.partition(" → ")
    story = " ".join(x[2:] for x in lines if x.startswith("* "))
    cases = tuple(_link(x[2:]) for x in lines if x.startswith("@ "))
    return name, Entry(title, formula, told, cure, cases, story, cast(Kind, kind or "mistake"))


def _link(case: str) -> str:
    """The address of an issue or a pull request on GitHub."""
    return f"https://github.com/{case}"


def _chapters() -> Iterator[tuple[str, dict[str, Entry]]]:
    for chapter in TABLE.strip().split("\n\n"):
        title, *lines = chapter.split("\n")
        entries: list[list[str]] = []
        for line in lines:
            if line.startswith(" "):
                entries[-1].append(line.strip())
            else:
                entries.append([line])
        yield title.removeprefix("# "), dict(map(_entry, entries))


CHAPTERS: dict[str, dict[str, Entry]] = dict(_chapters())
"""The entries by name, in chapters."""

CATALOGUE: dict[str, Entry] = {
    name: entry for chapter in CHAPTERS.values() for name, entry in chapter.items()
}
