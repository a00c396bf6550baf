"""Asked for its weights, Llama falls back to another path without a mask: nothing is causal."""

import torch
from torch import Tensor

from wild.program import Adapter, leak, old_transformers, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/pull/30652",
    "kind": "mistake",
    "name": ("mask-missing",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("tf-4.40.2",), "mended": ("tf-4.41.2",)},
}


def make() -> Adapter:
    """A tiny Llama that is asked for its weights."""
    old_transformers()
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        **dict(intermediate_size=32, max_position_embeddings=64, attn_implementation="sdpa"),
    )
    return Adapter(
        randomised(transformers.LlamaForCausalLM(config)),
        lambda m, input_ids: m(input_ids=input_ids, output_attentions=True, use_cache=False).logits,
    )


def inputs() -> dict[str, Tensor]:
    """Two texts of eight tokens."""
    return {"input_ids": tokens(2, 8)}


def wrong() -> tuple[bool, float]:
    """Outputs change with a later token."""
    effect = leak(make(), inputs()["input_ids"])
    return effect > 1e-3, effect
