"""Tiny random transformers models twice: theirs, and with our attention."""

from __future__ import annotations

import copy
from typing import Any

from intently.interop.transformers import register

from .tiny_models import GPT2, SHARED, foreign

SMALL: dict[str, Any] = SHARED | {"head_dim": 8, "attention_dropout": 0.0}


DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SMALL),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**SMALL, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", SMALL),
    "gemma2": ("Gemma2ForCausalLM", {**SMALL, "sliding_window": 4, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3ForCausalLM", {**SMALL, "sliding_window": 4, "sliding_window_pattern": 2}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**SMALL, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        GPT2 | {"pad_token_id": 0, "eos_token_id": None, "scale_attn_by_inverse_layer_idx": True},
    ),
}


def pair(name: str, config: dict[str, Any]) -> tuple[Any, Any]:
    """The same model twice: theirs, and with our attention."""
    register()
    eager = foreign(name, config)
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("intently")
    assert ours.config._attn_implementation == "intently"
    return eager, ours


def decoders(family: str) -> tuple[Any, Any]:
    return pair(*DECODERS[family])
