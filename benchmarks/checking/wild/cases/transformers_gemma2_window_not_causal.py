"""Layers with a window multiply the additive mask by a triangle of far keys: nothing is hidden."""

import torch
from torch import Tensor

from wild.program import Adapter, leak, old_transformers, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/issues/31673",
    "kind": "mistake",
    "name": ("mask-missing",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("tf-4.42.1",), "mended": ("tf-4.42.2",)},
}


def make() -> Adapter:
    """A tiny Gemma 2: a layer with all keys, and one with a window."""
    old_transformers()
    from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
    from transformers.models.gemma2.modeling_gemma2 import Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        **dict(num_key_value_heads=2, head_dim=8, intermediate_size=32, sliding_window=16),
        **dict(query_pre_attn_scalar=8, attn_implementation="eager", use_cache=False),
    )
    return Adapter(randomised(Gemma2ForCausalLM(config)), lambda m, input_ids: m(input_ids).logits)


def inputs() -> dict[str, Tensor]:
    """Two texts of eight tokens."""
    return {"input_ids": tokens(2, 8)}


def wrong() -> tuple[bool, float]:
    """Outputs change with a later token."""
    effect = leak(make(), inputs()["input_ids"])
    return effect > 1e-3, effect
