"""A sliding window of four attends to five keys."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, flipped, mended, old_transformers, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/pull/26792",
    "kind": "mistake",
    "name": ("window-off-by-one",),
    "intent": {"mask": "causal() & window(3, 0)"},
    "needs": {"affected": ("tf-4.34.1",), "mended": ()},
}


def make() -> Adapter:
    """One layer with a window of four; in current releases on the plain path."""
    old_transformers()
    from transformers.models.mistral.configuration_mistral import MistralConfig
    from transformers.models.mistral.modeling_mistral import MistralModel

    torch.manual_seed(0)
    config = MistralConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(num_key_value_heads=2, intermediate_size=32, max_position_embeddings=64),
        **dict(sliding_window=4, **({"attn_implementation": "eager"} if mended() else {})),
    )

    def run(m: MistralModel, input_ids: Tensor) -> Tensor:
        mask = torch.ones_like(input_ids)
        return m(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state

    return Adapter(randomised(MistralModel(config)), run)


def inputs() -> dict[str, Tensor]:
    """Two texts of twelve tokens."""
    return {"input_ids": tokens(2, 12)}


def wrong() -> tuple[bool, float]:
    """Token 2 reaches further than output 5."""
    model, ids = make(), inputs()["input_ids"]
    a, b = model(input_ids=ids), model(input_ids=flipped(ids, 2))
    last = max(i for i in range(12) if apart(b[:, i], a[:, i]) > 1e-4)
    return last != 5, float(last - 2 + 1)
