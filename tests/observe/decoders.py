"""Tiny models of transformers that generate, for the tests of joined steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

T: Any = transformers
ENDS: dict[str, Any] = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": None}
SIZES: dict[str, Any] = ENDS | {
    "bos_token_id": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.5}
MARIAN: dict[str, Any] = ENDS | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "init_std": 0.5,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5: dict[str, Any] = ENDS | {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 1,
}
WINDOW: dict[str, Any] = {"sliding_window": 4}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SIZES)),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(**ENDS, **GPT2, bos_token_id=1)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**SIZES, **WINDOW)),
    "mistral, wide": lambda: T.MistralForCausalLM(T.MistralConfig(**SIZES, sliding_window=40)),
    "gemma 2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**SIZES, **WINDOW, head_dim=8)),
    "qwen 2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**SIZES)),
    "gemma 3": lambda: T.Gemma3ForCausalLM(T.Gemma3TextConfig(**SIZES, **WINDOW, head_dim=8)),
    "marian": lambda: T.MarianMTModel(T.MarianConfig(**MARIAN)),
    "t5": lambda: T.T5ForConditionalGeneration(T.T5Config(**T5)),
}


def drawn(name: str, implementation: str | None = None) -> Any:
    """The same model at each call."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    if implementation is not None:
        model.set_attn_implementation(implementation)
    return model


def prompts() -> tuple[Tensor, dict[str, Any]]:
    """Two prompts, and options of `generate`: the second begins with two tokens of padding."""
    ids = torch.randint(2, 64, (2, 6))
    real = torch.ones_like(ids)
    real[1, :2] = 0
    return ids, {"attention_mask": real, "do_sample": False, "pad_token_id": 0}


def continued(ids: Tensor, real: Tensor) -> dict[str, Tensor]:
    """What one pass is given to attend as `generate` did, which counts from the first token."""
    real = torch.cat([real, real.new_ones(len(ids), ids.shape[1] - real.shape[1])], 1)
    at = (real.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": real, "position_ids": at}


@torch.no_grad()
def plain(model: Any, ids: Tensor, real: Tensor) -> tuple[Tensor, ...]:
    """The weights (b, h, t, s) of each layer in one pass of the plain formula."""
    model.set_attn_implementation("eager")
    return model(**continued(ids, real), output_attentions=True).attentions


@torch.no_grad()
def plain_decoder(model: Any, ids: Tensor, real: Tensor, made: Tensor) -> Any:
    """The output of one pass of an encoder and a decoder, with the weights of both."""
    model.set_attn_implementation("eager")
    return model(ids, attention_mask=real, decoder_input_ids=made[:, :-1], output_attentions=True)
