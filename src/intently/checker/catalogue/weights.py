"""Mistakes in the weights themselves: their scale, and the axis along which they sum to 1."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

SCALE: dict[str, Entry] = {
    "no-scale": Entry(
        "Scores are not scaled",
        "softmax(q kᵀ) v",
        "log W rises by 1 for each unit of q · k, whatever d is.",
        "Multiply scores by 1/√d, where d is the width of one head.",
        story="Dot products grow with √d, so the softmax of a wide head saturates: one key takes "
        "nearly all the weight, and gradients vanish.",
    ),
    "scale-one-over-d": Entry(
        "Scores are divided by d",
        "softmax(q kᵀ / d) v",
        "log W rises by 1/d for each unit of q · k.",
        "Divide by √d once: the queries or the product.",
        story="Often two people divided by √d. The weights come out nearly uniform, and the model "
        "learns around it.",
    ),
    "scale-model-width": Entry(
        "Scores are scaled by the width of the model",
        "softmax(q kᵀ / √c) v",
        "log W rises by 1/√c for each unit of q · k, where c is all heads together.",
        "Use the width of one head, c / h: `q.shape[-1]` after the split.",
        ("https://github.com/lucidrains/vit-pytorch/issues/65",),
        story="The scale is computed before heads are split. With one head it is right.",
    ),
    "scale-inverted": Entry(
        "Scores are multiplied by √d",
        "softmax(q kᵀ · √d) v",
        "log W rises by √d for each unit of q · k.",
        "Divide by √d. With `scale=`, pass 1/√d: it multiplies.",
        story="`scale` multiplies in one library and divides in another.",
    ),
    "other-scale": Entry(
        "The scale is not 1/√d",
        "softmax(σ q kᵀ) v",
        "log W rises by σ for each unit of q · k, and σ is none of the usual slips.",
        "None if it is meant: some models learn the scale or fold it into weights.",
        kind="convention",
    ),
}

SOFTMAX: dict[str, Entry] = {
    "softmax-over-queries": Entry(
        "The softmax runs over queries",
        "W = exp z / Σᵢ exp z",
        "Columns of W sum to 1; rows do not.",
        "Use `softmax(dim=-1)` on scores (…, t, s), and count axes again after an einsum.",
        (
            "https://github.com/FudanNLP/fastNLP/issues/254",
            "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",
        ),
        "Queries compete for each key, and share out a key that all of them need.",
    ),
    "softmax-over-heads": Entry(
        "The softmax runs over heads",
        "W = exp z / Σₕ exp z",
        "For a query and a key, the weights of all heads sum to 1.",
        "Use `softmax(dim=-1)`: dim=1 of (b, h, t, s) is heads.",
        story="`dim=1` was keys when the tensor was (t, s); then somebody added heads.",
    ),
    "softmax-over-batch": Entry(
        "The softmax runs over the batch",
        "W = exp z / Σ_b exp z",
        "For a query and a key, the weights of the whole batch sum to 1.",
        "Use `softmax(dim=-1)`: dim=0 is the batch.",
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
        "Each text competes with its neighbours in the batch. Evaluated alone, every weight is 1.",
    ),
    "not-normalised": Entry(
        "Weights do not sum to 1",
        "W = f(z), Σⱼ W ≠ 1",
        "A constant value does not pass through unchanged.",
        "Divide by the sum over the keys that are seen.",
        ("https://github.com/lucidrains/performer-pytorch/issues/40",),
        "Outputs grow with the number of keys. A layer norm hides it until texts get longer than "
        "those of training.",
    ),
    "sink": Entry(
        "A sink takes part of every row",
        "W = exp z / (Σⱼ exp z + exp sink)",
        "What rows lack of 1 amounts to one additional score.",
        "None if it is meant: some models learn a sink for each head.",
        kind="convention",
    ),
    "gated": Entry(
        "A gate multiplies each row",
        "gᵢ · softmax(z)",
        "Rows sum to numbers that depend on neither queries nor keys.",
        "None if it is meant: some models gate the output of each head.",
        kind="convention",
    ),
    "sinks-missing": Entry(
        "The sinks are missing",
        "exp z / Σⱼ exp z, without exp sink",
        "Rows sum to 1 where the reference leaves a part to a sink.",
        "Add it to the denominator on every path; most fused kernels cannot.",
        story="A model with sinks may look at nothing. Without them it cannot.",
    ),
    "softcap-missing": Entry(
        "The softcap is missing",
        "z for cap · tanh(z / cap)",
        "Scores grow beyond the cap of the reference.",
        "Apply it on every path, before the mask.",
        story="Small scores pass a softcap unchanged, so a random tiny model shows nothing.",
    ),
    "softcap-other": Entry(
        "The softcap is another",
        "cap · tanh(z / cap), another cap",
        "Large scores flatten out at another height.",
        "Read the cap from the config, and cap scores after they are scaled.",
    ),
    "sinks-other": Entry(
        "The sinks are others",
        "exp z / (Σ exp z + exp sink), another sink",
        "Rows lose another share of their weight to the sink.",
        "Copy the sinks of each head with the other weights.",
    ),
    "scores-other": Entry(
        "Scores are of a different kind",
        "another function of q and k",
        "The weights fit another score than the reference's, such as cosine.",
        "Compare the scores of one query and one key.",
    ),
}
