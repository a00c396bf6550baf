"""Tiny random transformers models, and how outputs are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from intently.interop.transformers import TextModel, load

transformers = pytest.importorskip("transformers")


SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "max_position_embeddings": 64,
}


SHARED = {**SMALL, "num_key_value_heads": 2}


ROPE = {"rope_theta": 500.0, "factor": 4.0}


GPT2 = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


MARIAN = {
    "vocab_size": 64,
    "d_model": 32,
    "pad_token_id": 0,
    "dropout": 0.0,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 0,
    "activation_function": "swish",
    "scale_embedding": True,
}


T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5 |= {"dropout_rate": 0.0, "pad_token_id": 0}
"""A model that runs on our attention, though `load` does not read it."""


DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 by layer": ("GPT2Model", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "llama": ("LlamaForCausalLM", {**SHARED, "head_dim": 12, "tie_word_embeddings": True}),
    "llama biased": ("LlamaModel", {**SHARED, "attention_bias": True, "mlp_bias": True}),
    "llama linear": ("LlamaModel", {**SHARED, "rope_parameters": {**ROPE, "rope_type": "linear"}}),
    "llama 3": (
        "LlamaModel",
        {
            **SHARED,
            "rope_parameters": {
                **ROPE,
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "qwen2 yarn": (
        "Qwen2Model",
        {
            **SHARED,
            "rope_parameters": {
                **ROPE,
                "rope_type": "yarn",
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**SHARED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**SHARED, "head_dim": 12}),
    "mistral": ("MistralForCausalLM", {**SHARED, "sliding_window": 4, "head_dim": 8}),
}


BERT = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def foreign(name: str, given: dict[str, Any]) -> Any:
    """A model of theirs whose weights lie far from zero, biases and norms too."""
    kind = getattr(transformers, name)
    config = kind.config_class(**given)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    torch.manual_seed(1)
    for p in model.parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, mean=float(p.ndim == 1), std=p.shape[-1] ** -0.5)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return model


def ids(t: int = 11, seed: int = 3) -> Tensor:
    return torch.randint(2, 64, (2, t), generator=torch.Generator().manual_seed(seed))


def padded(side: str, t: int = 11, n: int = 4) -> Tensor:
    """A mask of two rows, of which the second has ``n`` tokens of padding."""
    seen = torch.ones(2, t, dtype=torch.long)
    seen[-1, slice(0, n) if side == "left" else slice(t - n, t)] = 0
    return seen


def places(seen: Tensor) -> Tensor:
    """Positions that count from the first real token."""
    return (seen.cumsum(-1) - 1).clamp(min=0)


def first(out: Any) -> Tensor:
    return out.logits if "logits" in out else out.last_hidden_state


def close(found: Tensor, want: Tensor, seen: Tensor | None = None, tol: float = 1e-5) -> None:
    assert found.shape == want.shape
    if seen is not None:
        found, want = found[seen.bool()], want[seen.bool()]
    apart = float((found.detach() - want.detach()).abs().max())
    assert apart <= tol * max(1.0, float(want.detach().abs().max())), apart


def close_all(found: Iterable[Tensor], want: Iterable[Tensor]) -> None:
    for a, b in zip(found, want, strict=True):
        close(a, b)


def close_maps(found: Mapping[str, Any], name: str, want: Iterable[Tensor]) -> None:
    """The lazy matrices of a stack, by the name of its layers, are the weights of theirs."""
    close_all((found[name.format(i)].dense() for i in range(2)), want)


def close_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    for (name, p), q in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            close(q.grad, p.grad, tol=2e-5)


def text(name: str, given: dict[str, Any]) -> tuple[Any, TextModel]:
    theirs = foreign(name, given)
    model = load(theirs)
    assert isinstance(model, TextModel)
    return theirs, model
