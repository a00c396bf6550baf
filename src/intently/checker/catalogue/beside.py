"""How two implementations differ that should be the same: layouts, projections, weights."""

from __future__ import annotations

from intently.checker.catalogue.entry import Entry

BESIDE: dict[str, Entry] = {
    "layout-of-fused-rows": Entry(
        "A fused projection is cut in another order",
        "(h, 3, d) for (3, h, d)",
        "Read in the other order, queries, keys and values are those of the reference.",
        "Reorder the rows of the weight when a checkpoint is converted.",
        story="GPT-NeoX and BLOOM lay out (h, 3, d), GPT-2 (3, h, d). Trained from scratch, "
        "either is right.",
    ),
    "heads-interleaved": Entry(
        "Heads take every h-th number of a projection",
        "x.view(b, t, d, h) for x.view(b, t, h, d)",
        "A head reads numbers that lie h apart.",
        "Split as (h, d), the heads outside.",
    ),
    "projections-exchanged": Entry(
        "Queries, keys and values are exchanged",
        "q = W_k x, k = W_q x",
        "What one projects to keys, the reference projects to queries.",
        "Check the order in which the parts of a checkpoint are named.",
        story="Exchanging q and k transposes the scores. Trained so, it is right.",
    ),
    "projection-bias-missing": Entry(
        "A projection's bias is missing",
        "W x for W x + b",
        "The projections differ by a constant.",
        "Load the bias, or build the layer with one: some models have it for q, k and v only.",
        story="`load_state_dict(strict=False)` says nothing.",
    ),
    "weight-transposed": Entry(
        "A weight is used transposed",
        "x W for x Wᵀ",
        "The projection fits the transposed weight.",
        "`nn.Linear` holds (out, in); Conv1D of GPT-2, JAX and TensorFlow hold (in, out).",
        story="A square weight fits both ways.",
    ),
    "projection-scaled": Entry(
        "A projection is scaled",
        "c · W x",
        "The projections differ by a factor.",
        "Scale the scores once: in the weight, or in the product.",
    ),
    "projection-other": Entry(
        "A projection differs",
        "W′ x for W x",
        "Queries, keys or values differ, and no known slip makes one of the other.",
        "Compare the weights by name, and what enters them.",
    ),
    "attentions-differ": Entry(
        "The numbers of attentions differ",
        "",
        "More or fewer attentions run than in the reference.",
        "Compare depth and configuration: a layer may be skipped, shared or fused.",
    ),
    "differs-from-reference": Entry(
        "Outputs differ from the reference",
        "f(x) ≠ g(x)",
        "The same inputs and weights give other outputs, and no attention tells why.",
        "Start with the module named first: only what leaves it differs.",
    ),
}
