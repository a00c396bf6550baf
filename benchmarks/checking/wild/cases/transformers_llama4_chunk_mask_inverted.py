"""With eager attention, masked_fill hides the keys of the own chunk and leaves all others."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, old_transformers, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/pull/37329",
    "kind": "mistake",
    "name": ("mask-inverted",),
    "intent": {"mask": "causal() & segments([[0, 0, 0, 0, 1, 1, 1, 1]])"},
    "needs": {"affected": ("tf-4.51.0",), "mended": ("tf-4.51.3",)},
}


def make() -> Adapter:
    """A tiny Llama 4 with one layer of chunks of four."""
    old_transformers()
    from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4ForCausalLM

    torch.manual_seed(0)
    config = Llama4TextConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(num_key_value_heads=2, head_dim=8, intermediate_size=32, intermediate_size_mlp=32),
        **dict(attention_chunk_size=4, no_rope_layers=[1], moe_layers=[], use_cache=False),
        **dict(use_qk_norm=False, pad_token_id=0, attn_implementation="eager"),
    )
    model = randomised(Llama4ForCausalLM(config))

    def run(model: torch.nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return model(input_ids, attention_mask=attention_mask, use_cache=False).logits

    return Adapter(model, run)


def inputs() -> dict[str, Tensor]:
    """Eight tokens, in two chunks."""
    return {"input_ids": tokens(1, 8), "attention_mask": torch.ones(1, 8, dtype=torch.bool)}


def wrong() -> tuple[bool, float]:
    """A token of another chunk has an effect."""
    model, given = make(), inputs()
    changed = given["input_ids"].clone()
    changed[:, 6] += 1
    effect = apart(model(**{**given, "input_ids": changed})[:, :4], model(**given)[:, :4])
    return effect > 1e-3, effect
