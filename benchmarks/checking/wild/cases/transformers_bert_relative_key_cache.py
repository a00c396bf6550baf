"""Relative distances are counted from 0 in each cached step."""

import torch
from torch import Tensor, nn

from wild.program import Adapter, apart, old_transformers, randomised, tokens

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/pull/20203",
    "kind": "mistake",
    "name": ("rotation-offset-lost", "bias-offset-lost"),
    "intent": {"mask": "causal()", "same": [{"cached": True}]},
    "needs": {"affected": ("tf-4.24.0",), "mended": ("tf-4.34.1",)},
}


def make() -> Adapter:
    """A decoder whose positions are distances, whole or step by step."""
    old_transformers()
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertLMHeadModel

    torch.manual_seed(0)
    config = BertConfig(
        **dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        **dict(intermediate_size=32, max_position_embeddings=64, is_decoder=True),
        position_embedding_type="relative_key",
    )

    def run(m: nn.Module, input_ids: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            return m(input_ids=input_ids, use_cache=False).logits
        past, out = None, []
        for i in range(input_ids.shape[1]):
            step = m(
                input_ids=input_ids[:, i : i + 1],
                use_cache=True,
                past_key_values=past,
                attention_mask=torch.ones(len(input_ids), i + 1),
            )
            past = step.past_key_values
            out.append(step.logits)
        return torch.cat(out, 1)

    return Adapter(randomised(BertLMHeadModel(config)), run)


def inputs() -> dict[str, Tensor]:
    """Two texts of eight tokens."""
    return {"input_ids": tokens(2, 8)}


def wrong() -> tuple[bool, float]:
    """Steps differ from the whole pass."""
    decode, ids = make(), inputs()["input_ids"]
    off = apart(decode(input_ids=ids, cached=True), decode(input_ids=ids))
    return off > 1e-3, off
