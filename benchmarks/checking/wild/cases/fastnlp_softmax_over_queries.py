"""Softmax(dim=2) was written for (b, t, s); with heads, axis 2 of (b, h, t, s) is the queries."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, hollow, normal

meta = {
    "package": "fastNLP",
    "url": "https://github.com/FudanNLP/fastNLP/issues/254",
    "kind": "mistake",
    "name": ("softmax-over-queries",),
    "intent": {},
    "needs": {"affected": ("fastnlp-0.5.0",), "mended": ("fastnlp-0.5.5",)},
}


def make() -> Adapter:
    """Attention of four heads."""
    hollow("fastNLP", "fastNLP.modules", "fastNLP.modules.encoder")
    from fastNLP.modules.encoder.attention import MultiHeadAttention

    torch.manual_seed(0)
    module = MultiHeadAttention(32, key_size=8, value_size=8, num_head=4)
    return Adapter(module.eval(), lambda m, query, context: m(query, context, context))


def inputs() -> dict[str, Tensor]:
    """Five queries and seven keys."""
    return {"query": normal(2, 5, 32), "context": normal(2, 7, 32, seed=2)}


def wrong() -> tuple[bool, float]:
    """Another query changes the output of the first."""
    attend, given = make(), inputs()
    changed = given["query"].clone()
    changed[:, 3] += 1
    effect = apart(attend(**{**given, "query": changed})[:, 0], attend(**given)[:, 0])
    return effect > 1e-3, effect
