"""Without padding, sdpa is left to make the causal mask, and gets a dynamic mask in its place."""

import torch
from torch import Tensor

from wild.program import Adapter, leak, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/issues/48748",
    "kind": "mistake",
    "name": ("mask-missing",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("tf-5.17.0", "httpx"), "mended": ()},
}


def make() -> Adapter:
    """A tiny Doge of one layer."""
    from transformers import DogeConfig, DogeForCausalLM

    torch.manual_seed(0)
    config = DogeConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(num_key_value_heads=2, intermediate_size=32, attn_implementation="sdpa"),
    )
    model = randomised(DogeForCausalLM(config))
    return Adapter(model, lambda m, input_ids: m(input_ids, use_cache=False).logits)


def inputs() -> dict[str, Tensor]:
    """Two texts of eight tokens."""
    return {"input_ids": tokens(2, 8)}


def wrong() -> tuple[bool, float]:
    """Outputs change with a later token."""
    effect = leak(make(), inputs()["input_ids"])
    return effect > 1e-3, effect
