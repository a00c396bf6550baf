"""An untrained translator, and the sentence that all tests translate."""

from __future__ import annotations

import torch

from intently.nn.models.transformer import Transformer, TransformerOptions
from intently.tasks.text import Tokenizer
from intently.tasks.translation import Translator

BECAUSE = "The animal didn't cross the road because it was too wide."


def untrained(kind: str, share: str = "output") -> Translator:
    """A small translator with random weights over a vocabulary of a few sentences."""
    text = ["the cat sat on the mat", "L'animal dort.", "déjà-vu ☃"]
    tokenizer = Tokenizer.train(text, kind, 300)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        size = tokenizer.size
        options = TransformerOptions(size, size, width=16, heads=2, inner=16, share=share)  # type: ignore[arg-type]
        return Translator(Transformer(options), tokenizer, tokenizer, max_length=20)
