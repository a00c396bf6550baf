"""Mistakes of running: caches, state, dropout, gradients, settings, and what a call may touch."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

STEPS: dict[str, Entry] = {
    "cached-step-differs": Entry(
        "Cached steps differ from the whole pass",
        "f(x₀ … xₜ)ₜ ≠ f(xₜ | cache)",
        "The same text in pieces gives other outputs.",
        "Compare positions, masks and the order of keys with those of the whole pass.",
        story="Training runs the whole pass, users run steps, and no test compares them.",
    ),
    "state-left": Entry(
        "State is left between calls",
        "f(x) depends on earlier calls",
        "The same call gives another output after another call.",
        "Start a text with an empty cache; keep nothing of a call on the module.",
    ),
}

TRAINING: dict[str, Entry] = {
    "dropout-in-eval": Entry(
        "Dropout acts in evaluation mode",
        "dropout(W) v in eval()",
        "Two equal calls in `eval()` differ.",
        "`F.dropout(x, p, self.training)`; for `scaled_dot_product_attention`, "
        "`dropout_p=p if self.training else 0.0`.",
        (
            "https://github.com/pytorch/pytorch/issues/124464",
            "https://github.com/huggingface/pytorch-image-models/pull/1978",
            "https://github.com/meta-pytorch/torchtune/issues/1791",
        ),
        "`nn.Dropout` knows about `eval()`, functions do not. Every score is a little worse than "
        "it could be.",
    ),
    "gradient-cut": Entry(
        "A gradient is cut",
        "∂y/∂x = 0 where y depends on x",
        "The output depends on a tensor that gets no gradient.",
        "Remove `detach`, `.data`, `no_grad` and `item()` from the path.",
        story="Other parameters compensate, so training only looks slow.",
    ),
    "gradient-scaled": Entry(
        "A gradient is scaled",
        "c · ∂y/∂x",
        "Autograd differs from central differences by a factor.",
        "Mend the backward of the custom function.",
        story="Adam divides it away again. Almost.",
    ),
}

CALLS: dict[str, Entry] = {
    "leak-later": Entry(
        "Later inputs leak into earlier outputs",
        "yᵢ depends on xⱼ, j > i",
        "The weights are causal, and outputs still change with later inputs.",
        "Look for a convolution, a mean or a norm over positions.",
        story="Something beside the attention does it: a norm over the wrong axis, a pooled "
        "context, a token shift to the wrong side.",
    ),
    "batch-mixed": Entry(
        "Rows of the batch are mixed",
        "y of row 0 depends on x of row 1",
        "A row's output changes with the content of another.",
        "Check `batch_first`, and every view that joins batch and sequence.",
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
        "With `batch_first=False`, the default, (b, t, c) is read as (t, b, c): each position "
        "attends to the same position of other texts.",
    ),
    "setting-matters": Entry(
        "A setting that should not matter changes the output",
        "f(x, setting) ≠ f(x)",
        "The same call under another setting gives another output.",
        "Run both on one example; the first layer in which they part has the cause.",
    ),
    "paths-differ": Entry(
        "Two paths compute different things",
        "f(x) with gradients ≠ f(x) without",
        "The output with gradients differs from that without.",
        "Give the fused and the plain path the same mask, scale and dropout.",
        ("https://github.com/pytorch/pytorch/issues/24816",),
        "Gradient mode, dtype or shape choose a fast path, so training and production differ.",
    ),
    "input-changed": Entry(
        "The call changes its inputs",
        "x ← g(x)",
        "A tensor of the caller differs afterwards.",
        "Avoid in-place operations on arguments: `x = x * s`, not `x *= s`.",
        story="Harmless until a residual connection goes around the layer.",
    ),
    "view-raises": Entry(
        "A view raises",
        "x.view(…) where the axes of x are not contiguous",
        "Every call raises; with `reshape` in place of `view` it does not.",
        "A head is an axis of its own before axes move: `x.view(b, t, h, d).transpose(1, 2)`; "
        "merge with `x.transpose(1, 2).reshape(b, t, c)`.",
        story="The error advises `reshape`, which runs and gives each head numbers of several "
        "positions.",
    ),
    "strides": Entry(
        "Strides change the output",
        "f(x) ≠ f(x.contiguous())",
        "The same numbers in another memory layout give another output.",
        "Replace `view` by `reshape`, or call `contiguous()` before it.",
    ),
    "nan-without-keys": Entry(
        "A query without keys gives NaN",
        "softmax(−∞, …, −∞)",
        "A fully padded row is NaN.",
        "Give such rows zero: `nan_to_num` on the weights, or a kernel that does.",
        ("https://github.com/pytorch/pytorch/issues/24816",),
        "The row is never used, but its gradient is NaN, and one is enough.",
        kind="hazard",
    ),
    "nan-with-keys": Entry(
        "A query that has keys gives NaN",
        "0 · ∞, ∞ − ∞ or 0 / 0",
        "The example gives NaN, and no row is without keys.",
        "Mask by `masked_fill`: a mask times −∞ is NaN where it is 0.",
        story="One NaN reaches the loss, and then every weight.",
    ),
}
