"""RoFormerForCausalLM builds a mask for both directions: every position attends to later ones."""

import torch
from torch import Tensor

from wild.program import Adapter, leak, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/issues/48745",
    "kind": "mistake",
    "name": ("mask-missing",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("tf-5.17.0", "httpx"), "mended": ()},
}


def make() -> Adapter:
    """A tiny language model."""
    import transformers

    torch.manual_seed(0)
    config = transformers.RoFormerConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        **dict(intermediate_size=32, max_position_embeddings=64, is_decoder=True),
        **dict(embedding_size=32),
    )
    model = randomised(transformers.RoFormerForCausalLM(config))
    return Adapter(model, lambda m, input_ids: m(input_ids=input_ids).logits)


def inputs() -> dict[str, Tensor]:
    """Two texts of eight tokens."""
    return {"input_ids": tokens(2, 8)}


def wrong() -> tuple[bool, float]:
    """Outputs change with a later token."""
    effect = leak(make(), inputs()["input_ids"])
    return effect > 1e-3, effect
