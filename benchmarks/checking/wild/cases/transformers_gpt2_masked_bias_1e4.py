"""Masked scores are −10,000, which real scores can undercut: then later keys win the softmax."""

import torch
from torch import Tensor

from wild.program import Adapter, leak, old_transformers, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/pull/17306",
    "kind": "hazard",
    "name": ("mask-too-weak",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("tf-4.19.4",), "mended": ("tf-4.24.0",)},
}


def make() -> Adapter:
    """A GPT-2 whose queries and keys are large, as after divergence or in deep models."""
    old_transformers()
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Model

    torch.manual_seed(0)
    model = randomised(
        GPT2Model(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=64))
    )
    with torch.no_grad():
        model.h[0].attn.c_attn.weight[:, :64] *= 150.0
    return Adapter(
        model, lambda m, input_ids: m(input_ids=input_ids, use_cache=False).last_hidden_state
    )


def inputs() -> dict[str, Tensor]:
    """Four texts of eight tokens."""
    return {"input_ids": tokens(4, 8)}


def wrong() -> tuple[bool, float]:
    """Outputs change with a later token."""
    effect = leak(make(), inputs()["input_ids"])
    return effect > 1e-3, effect
