"""Cross-attention does not say that it is not causal, and sdpa takes it for a decoder's."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, normal

meta = {
    "package": "transformers",
    "url": "https://github.com/huggingface/transformers/issues/48172",
    "kind": "mistake",
    "name": ("cross-causal",),
    "intent": {"arguments": {"states": "context"}},
    "needs": {"affected": ()},
}


def make() -> Adapter:
    """Four heads, text that attends to an image."""
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig
    from transformers.models.mllama.modeling_mllama import MllamaTextCrossAttention

    torch.manual_seed(0)
    config = MllamaTextConfig(
        **dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, dropout=0.0),
        **dict(pad_token_id=0, attn_implementation="sdpa"),
    )
    module = MllamaTextCrossAttention(config, layer_idx=0).eval()
    return Adapter(module, lambda m, x, states: m(x, cross_attention_states=states)[0])


def inputs() -> dict[str, Tensor]:
    """Five tokens and nine patches."""
    return {"x": normal(2, 5, 32), "states": normal(2, 9, 32, seed=2)}


def wrong() -> tuple[bool, float]:
    """The last patch has no effect on the first token."""
    attend, given = make(), inputs()
    changed = given["states"].clone()
    changed[:, 8] += 1
    effect = apart(attend(**{**given, "states": changed})[:, 0], attend(**given)[:, 0])
    return effect < 1e-6, effect
