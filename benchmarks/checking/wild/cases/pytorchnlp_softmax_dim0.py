"""The softmax runs over axis 0 of (b · t, s): weights compete across the rows of the batch."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, loaded, normal

meta = {
    "package": "pytorch-nlp",
    "url": "https://github.com/PetrochukM/PyTorch-NLP/issues/2",
    "kind": "mistake",
    "name": ("softmax-over-batch", "softmax-over-queries"),
    "intent": {},
    "needs": {"affected": ("pytorch-nlp-0.1.0",), "mended": ("pytorch-nlp-0.2.0",)},
}


def make() -> Adapter:
    """Queries that attend to a context."""
    library = loaded("torchnlp/nn/attention.py")
    torch.manual_seed(0)
    module = library.Attention(16, attention_type="dot").eval()
    return Adapter(module, lambda m, query, context: m(query, context)[0])


def inputs() -> dict[str, Tensor]:
    """Four queries and six keys."""
    return {"query": normal(3, 4, 16), "context": normal(3, 6, 16, seed=2)}


def wrong() -> tuple[bool, float]:
    """A row alone gives another output than in a batch."""
    attend, given = make(), inputs()
    off = apart(attend(**given)[:1], attend(**{n: x[:1] for n, x in given.items()}))
    return off > 1e-3, off
